"""Forks programs for tests; see processes/forked_program.py. Tests of how a program starts use subprocess instead."""

from collections.abc import Sequence
import os
import sys
from typing import TextIO

from scalable_agents.processes import forked_program

if 'TEST_TMPDIR' in os.environ:  # Otherwise matplotlib makes a folder, which each program would remove at its end.
  os.environ.setdefault('MPLCONFIGDIR', os.environ['TEST_TMPDIR'])
# What training programs have in common, and what they import when they draw the learning curve.
_IMPORTED = ('scalable_agents.agents.impala', 'scalable_agents.launch.program', 'matplotlib.figure',
             'matplotlib.ticker', 'matplotlib.backends.backend_agg', 'scalable_agents.tests.launch.quick_graphs')


def fork(module: str, arguments: Sequence[str], streams: tuple[int, int, int]) -> forked_program.ForkedProgram:
  """Starts a program; see ForkedProgram."""
  return forked_program.ForkedProgram(_IMPORTED, module, arguments, streams)


def start(test, module: str, *arguments: str) -> tuple[forked_program.ForkedProgram, TextIO]:
  """Starts a program that ends with a test at the latest. Returns it and what it prints; its errors are the test's."""
  read, write = os.pipe()
  with open(os.devnull, 'rb') as nothing, open(write, 'wb') as output:
    process = fork(module, arguments, (nothing.fileno(), output.fileno(), sys.__stderr__.fileno()))
  test.addCleanup(process.kill)
  return process, test.enterContext(open(read, encoding='utf-8'))
