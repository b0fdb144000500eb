#!/bin/sh
# Runs a program without address space randomisation, if that is allowed. With randomisation, the system may place the
# program where a sanitizer keeps its shadow memory, and the sanitizer then fails at the start.
if setarch "$(uname -m)" -R true 2>/dev/null; then
  exec setarch "$(uname -m)" -R "$@"
fi
exec "$@"
