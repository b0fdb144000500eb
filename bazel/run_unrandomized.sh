#!/bin/sh
# Runs a program without address space randomisation where that is allowed: with many random bits the system may put
# the program where a sanitizer keeps its shadow memory, which then gives up at the start.
if setarch "$(uname -m)" -R true 2>/dev/null; then
  exec setarch "$(uname -m)" -R "$@"
fi
exec "$@"
