"""Macros for Python targets, one line per target. A target has the name of its file, without `.py`.

    modules({"queue": [], "actor_host": [":inference", "//environments:dmlab"]})
    binaries({"impala_atari57": [":impala", "//launch:program"]})
    tests("small", {"queue_test": ["//learner:queue"]})
    suite("suite", "small", {"losses_test": ["//learner:losses"], "vtrace_test": ["//learner:vtrace"]})

The values list the targets that each file imports. tests/build_files_test.py compares them with the files' imports.
"""

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

def modules(deps_by_name, **kwargs):
    """Defines Python libraries. `kwargs` are those of py_library."""
    for name, deps in deps_by_name.items():
        py_library(name = name, srcs = [name + ".py"], deps = deps, **kwargs)

def binaries(deps_by_name, **kwargs):
    """Defines Python programs. `kwargs` are those of py_binary."""
    for name, deps in deps_by_name.items():
        py_binary(name = name, srcs = [name + ".py"], deps = deps, **kwargs)

def tests(size, deps_by_name, **kwargs):
    """Defines Python tests. `size` and `kwargs` are those of py_test."""
    for name, deps in deps_by_name.items():
        py_test(name = name, size = size, srcs = [name + ".py"], deps = deps, **kwargs)

def suite(name, size, deps_by_name, tags = [], **kwargs):
    """Defines Python tests that run in one process, which imports TensorFlow only once.

    Use it for tests that do not disturb one another. `bazel test //...` runs the target `name`, which runs all files in
    the given order. Each file also has a target of its own. That target runs only if it is named, as in `bazel test
    //tests/learner:vtrace_test`. `size`, `tags` and `kwargs` are those of py_test.
    """
    tests(size, deps_by_name, tags = tags + ["manual"], **kwargs)
    py_test(
        name = name,
        size = size,
        srcs = ["//tests/suites:suite.py"],
        main = "//tests/suites:suite.py",
        args = ["--files=" + ",".join(["%s/%s.py" % (native.package_name(), test) for test in deps_by_name])],
        tags = tags,
        deps = ["//tests/suites:ending"] + [":" + test for test in deps_by_name],
        **kwargs
    )
