"""Macros for Python targets, one line each: the target's name is that of its file, without `.py`.

    modules({"queue": [], "actor_host": [":inference", "//environments:dmlab"]})
    binaries({"impala_atari57": [":impala", "//training:program"]})
    tests("small", {"queue_test": ["//learner:queue"]})

The values are the targets that the file imports. tests/build_files_test.py holds them against the files.
"""

def modules(deps_by_name, **kwargs):
    """Python files that others import. `kwargs` as for py_library."""
    for name, deps in deps_by_name.items():
        native.py_library(name = name, srcs = [name + ".py"], deps = deps, **kwargs)

def binaries(deps_by_name, **kwargs):
    """Python programs. `kwargs` as for py_binary."""
    for name, deps in deps_by_name.items():
        native.py_binary(name = name, srcs = [name + ".py"], deps = deps, **kwargs)

def tests(size, deps_by_name, **kwargs):
    """Python tests. `size` and `kwargs` as for py_test."""
    for name, deps in deps_by_name.items():
        native.py_test(name = name, size = size, srcs = [name + ".py"], deps = deps, **kwargs)
