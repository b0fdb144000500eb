#!/bin/sh
# Installs missing packages through apt: g++, Python's venv, Bazel with its packaged rules, and googletest. If it
# cannot, it prints the command to run and fails. Bazel and googletest are needed only for `make test` and `bazel`.
set -eu

packages=''
command -v g++ >/dev/null || packages="$packages g++"
python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
command -v bazel >/dev/null || packages="$packages bazel-bootstrap bazel-rules-java bazel-rules-proto"
test -e /usr/include/gtest/gtest.h || packages="$packages libgtest-dev"
test -n "$packages" || exit 0

sudo=''
test "$(id -u)" = 0 || sudo='sudo'
if ! command -v apt-get >/dev/null || { test -n "$sudo" && ! command -v sudo >/dev/null; }; then
  echo "packages are missing and cannot be installed (no apt-get, or neither root nor sudo). On Debian 12, as root:" >&2
  echo "  apt-get install$packages" >&2
  exit 1
fi
echo "setup: installing$packages through apt"
$sudo apt-get -qq update
# shellcheck disable=SC2086 (one argument per package)
$sudo env DEBIAN_FRONTEND=noninteractive \
  apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends $packages >/dev/null
