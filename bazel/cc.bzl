"""Macros for the C++ core, which does not use TensorFlow and is tested under the sanitizers.

core_library and core_test take the arguments of cc_library and cc_test. Each makes three targets: `name` is the normal
build, `name_tsan` uses ThreadSanitizer, and `name_asan` uses AddressSanitizer with LeakSanitizer and
UndefinedBehaviorSanitizer. A sanitizer checks only code that was compiled for it, so the sources are compiled
separately for each one.
"""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("@rules_shell//shell:sh_test.bzl", "sh_test")

# TensorFlow is built with NDEBUG, and its inline functions must be compiled in the same way here.
COPTS = ["-std=c++17", "-O3", "-DNDEBUG", "-Wall", "-Wextra"]

# TensorFlow marks the constructors of its own errors as deprecated.
OP_COPTS = COPTS + ["-Wno-deprecated-declarations"]

_SANITIZERS = {
    "asan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-fsanitize=thread"],
}

_SANITIZED_COPTS = ["-std=c++17", "-O1", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-Wall", "-Wextra"]

# For the files of tests: unlike the core, they are not optimised, which halves the time to compile them.
_TEST_COPTS = ["-O0"]

# From Debian's package libgtest-dev.
_GTEST = ["-lgtest_main", "-lgtest", "-lpthread"]

def core_library(name, srcs = [], hdrs = [], deps = [], testonly = False, **kwargs):
    """Defines a library of the core. Its `deps` are core libraries."""
    cc_library(name = name, testonly = testonly, srcs = srcs, hdrs = hdrs, deps = deps, copts = COPTS, **kwargs)
    for variant, flags in _SANITIZERS.items():
        cc_library(
            name = name + "_" + variant,
            testonly = True,
            srcs = srcs,
            hdrs = hdrs,
            copts = _SANITIZED_COPTS + flags,
            linkstatic = True,
            deps = [dep + "_" + variant for dep in deps],
            **kwargs
        )

def core_test(name, srcs, deps, size = "small", **kwargs):
    """Defines a googletest test in three variants. Its `deps` are core libraries."""
    cc_test(
        name = name,
        size = size,
        srcs = srcs,
        deps = deps,
        copts = COPTS + _TEST_COPTS,
        linkopts = _GTEST,
        **kwargs
    )
    for variant, flags in _SANITIZERS.items():
        binary = name + "_" + variant + "_binary"
        cc_binary(
            name = binary,
            testonly = True,
            srcs = srcs,
            copts = _SANITIZED_COPTS + flags + _TEST_COPTS,
            linkopts = flags + ["-pie"] + _GTEST,
            deps = [dep + "_" + variant for dep in deps],
        )
        sh_test(
            name = name + "_" + variant,
            size = size,
            srcs = ["//bazel:run_unrandomized.sh"],
            args = ["$(rootpath :%s)" % binary],
            data = [":" + binary],
            **kwargs
        )
