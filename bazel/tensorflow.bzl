"""Finds the Python that has TensorFlow, and the flags to compile and link a TensorFlow op library.

The repository has two targets. `:tensorflow` is a cc_library of TensorFlow's headers and its framework library.
`:python_toolchain` is the Python that runs every py_binary and py_test: the one of `.venv` in the workspace or, without
it, the python3 on PATH. So `bazel run` and `bazel test` work without activating a virtual environment.
"""

_ASK = """
import importlib.machinery
import tensorflow as tf
copy = importlib.machinery.PathFinder.find_spec('scalable_agents')
print(copy.origin if copy and copy.origin else '')
print(tf.sysconfig.get_include())
print(tf.sysconfig.get_lib())
print(' '.join(tf.sysconfig.get_compile_flags()))
print(' '.join(tf.sysconfig.get_link_flags()))
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_import", "cc_library")
load("@rules_python//python:defs.bzl", "py_runtime", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_import(
    name = "framework",
    shared_library = "lib/{framework}",
)

cc_library(
    name = "tensorflow",
    hdrs = glob(["include/**/*"], exclude = ["include/external/**"]),
    defines = {defines},
    includes = ["include"],
    deps = [":framework"],
)

py_runtime(
    name = "python",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!/usr/bin/env python3",
)

py_runtime_pair(
    name = "python_pair",
    py3_runtime = ":python",
)

toolchain(
    name = "python_toolchain",
    toolchain = ":python_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _tensorflow_configure(repository_ctx):
    # This makes the file a dependency: Bazel runs the rule again when the file changes.
    root = repository_ctx.path(Label("//:requirements.txt")).dirname
    python = root.get_child(".venv").get_child("bin").get_child("python3")
    if not python.exists:
        python = repository_ctx.which("python3")
    answer = repository_ctx.execute([python, "-c", _ASK], environment = {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if answer.return_code:
        fail("%s cannot import TensorFlow; run `make setup`.\n%s" % (python, answer.stderr))
    copy, include, lib, compile_flags, link_flags = answer.stdout.split("\n")[-6:-1]

    # Bazel's files take precedence over an editable install, but an installed copy would be imported in their place.
    if copy:
        is_ours = str(python).startswith(str(root) + "/")  # `make setup` has installed what the build needs.
        fail("%s would import the copy %s instead of this workspace; run `%s -m pip install%s --editable %s`." % (
            python,
            copy,
            python,
            " --no-build-isolation --no-deps" if is_ours else "",
            root,
        ))
    repository_ctx.symlink(include, "include")
    repository_ctx.symlink(lib, "lib")
    repository_ctx.file("BUILD", _BUILD.format(
        framework = link_flags.split("-l:")[-1],
        defines = repr([flag[2:] for flag in compile_flags.split(" ") if flag.startswith("-D")]),
        python = python,
    ))

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure,
    environ = ["PATH"],
    local = True,
)
