"""Rules for the C++ core, which knows no TensorFlow and is tested under the sanitizers.

core_library and core_test take the arguments of cc_library and cc_test. Each makes three targets: `name` as it is
shipped, `name_tsan` under ThreadSanitizer and `name_asan` under AddressSanitizer with LeakSanitizer and
UndefinedBehaviorSanitizer. A sanitizer only sees what was compiled for it, so sources are compiled once for each.
"""

# NDEBUG: as in TensorFlow's own build, with whose inline functions ours are linked.
COPTS = ["-std=c++17", "-O3", "-DNDEBUG", "-Wall", "-Wextra"]

# TensorFlow's own constructors of its errors are marked as deprecated.
OP_COPTS = COPTS + ["-Wno-deprecated-declarations"]

_SANITIZERS = {
    "asan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-fsanitize=thread"],
}

_SANITIZED_COPTS = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-fPIC", "-Wall", "-Wextra"]

# Debian's libgtest-dev.
_GTEST = ["-lgtest_main", "-lgtest", "-lpthread"]

def core_library(name, srcs = [], hdrs = [], deps = [], testonly = False, **kwargs):
    """A library of the core; `deps` are core libraries."""
    native.cc_library(name = name, testonly = testonly, srcs = srcs, hdrs = hdrs, deps = deps, copts = COPTS, **kwargs)
    for variant, flags in _SANITIZERS.items():
        native.cc_library(
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
    """A googletest test, run three times; `deps` are core libraries."""
    native.cc_test(name = name, size = size, srcs = srcs, deps = deps, copts = COPTS, linkopts = _GTEST, **kwargs)
    for variant, flags in _SANITIZERS.items():
        binary = name + "_" + variant + "_binary"
        native.cc_binary(
            name = binary,
            testonly = True,
            srcs = srcs,
            copts = _SANITIZED_COPTS + flags,
            linkopts = flags + ["-pie"] + _GTEST,
            deps = [dep + "_" + variant for dep in deps],
        )
        native.sh_test(
            name = name + "_" + variant,
            size = size,
            srcs = ["//bazel:run_unrandomized.sh"],
            args = ["$(rootpath :%s)" % binary],
            data = [":" + binary],
            **kwargs
        )
