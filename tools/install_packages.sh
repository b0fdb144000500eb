#!/bin/sh
# Installs missing packages through apt: g++ and Python's venv, and with --bazel also what `make test` and `bazel` need:
# Bazel with its packaged rules, and googletest. If it cannot, it prints the command to run and fails.
set -eu

needed=''
command -v g++ >/dev/null || needed="$needed g++"
python3 -c 'import ensurepip, venv' 2>/dev/null || needed="$needed python3-venv"
for_bazel=''
if test "${1:-}" = --bazel; then
  command -v bazel >/dev/null || for_bazel="$for_bazel bazel-bootstrap bazel-rules-java bazel-rules-proto"
  test -e /usr/include/gtest/gtest.h || for_bazel="$for_bazel libgtest-dev"
fi
test -n "$needed$for_bazel" || exit 0

sudo=''
test "$(id -u)" = 0 || sudo='sudo'
if ! command -v apt-get >/dev/null || { test -n "$sudo" && ! command -v sudo >/dev/null; }; then
  echo "packages are missing and cannot be installed (no apt-get, or neither root nor sudo). On Debian 12, as root:" >&2
  echo "  apt-get install$needed$for_bazel" >&2
  exit 1
fi
echo "setup: installing$needed$for_bazel through apt"
# One repository that cannot be reached, which may have nothing to do with these packages, makes apt-get fail.
$sudo apt-get -qq update || echo 'setup: apt-get update failed: continuing with the lists of packages that apt has' >&2

install() {
  test $# = 0 || $sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >/dev/null
}

# Two calls, because apt installs nothing if one package is unknown, and some distributions do not have Bazel's.
# shellcheck disable=SC2086 (one argument per package)
install $needed
# shellcheck disable=SC2086
install $for_bazel || echo "setup: without$for_bazel, \`make test\` and \`bazel\` do not work; all else does" >&2
