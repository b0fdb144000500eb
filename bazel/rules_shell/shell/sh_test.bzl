"""The native sh_test under the name that newer Bazel versions load it by."""

sh_test = native.sh_test
