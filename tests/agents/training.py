"""Training processes for tests: the binary as a user starts it, watched through its run directory and its screen."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import psutil

from scalable_agents.agents import impala_atari57

_POLL_SECONDS = 0.05
_DEADLINE_SECONDS = 120.  # Of everything that takes a few seconds on an idle machine.


def command(*flags):
  """The command line of the binary."""
  return [sys.executable, '-m', impala_atari57.__name__, *flags]


def environment():
  """The environment variables with which it finds what this process finds."""
  return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))


def rows(logdir):
  """The complete rows of metrics.jsonl."""
  file = pathlib.Path(logdir, 'metrics.jsonl')
  lines = file.read_text(encoding='utf-8').splitlines(keepends=True) if file.exists() else []
  return [json.loads(line) for line in lines if line.endswith('\n')]


def episodes(logdir):
  """The rows of episodes.csv as lists of text, without the header."""
  header, *lines = pathlib.Path(logdir, 'episodes.csv').read_text(encoding='utf-8').splitlines()
  assert header == 'frames,level,return,length', header
  return [line.split(',') for line in lines]


def still_alive(processes, seconds=5.):
  """Those of the processes that have not ended after so many seconds."""
  return psutil.wait_procs(processes, timeout=seconds)[1]


class Training:
  """A training process in a session of its own, as a terminal's foreground job is; `with` ends it."""

  def __init__(self, logdir, *flags, terminal=None):
    """Starts it. `terminal`: a descriptor to show its screen on instead of keeping it for `screen`."""
    self.logdir = logdir
    self._output = tempfile.TemporaryFile()
    self.process = subprocess.Popen(
        command(f'--logdir={logdir}', *flags), env=environment(), stdin=subprocess.DEVNULL, stdout=self._output,
        stderr=self._output if terminal is None else terminal, start_new_session=True)

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    if self.process.poll() is None:
      self.process.kill()
      self.process.wait()
    self._output.close()

  def screen(self):
    """What it has printed so far."""
    return os.pread(self._output.fileno(), 1 << 20, 0).decode()

  def children(self):
    """Its worker processes and whatever else it has started."""
    return psutil.Process(self.process.pid).children(recursive=True)

  def workers(self):
    """Its environment workers."""
    return [child for child in self.children() if any('environment_worker' in word for word in child.cmdline())]

  def wait_until(self, condition, what):
    """Waits until `condition()` is true.

    Raises:
      AssertionError: it did not come about in time, or the process ended before.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
      if self.process.poll() is not None or time.monotonic() > deadline:
        raise AssertionError(f'{what}: not seen, exit code {self.process.poll()}, screen:\n{self.screen()}')
      try:
        self.process.wait(_POLL_SECONDS)
      except subprocess.TimeoutExpired:
        pass

  def wait_for_rows(self, count, last=lambda row: True):
    """Waits until `count` rows more than now are written and the last one satisfies `last`; returns all rows."""
    wanted = len(rows(self.logdir)) + count
    self.wait_until(lambda: len(rows(self.logdir)) >= wanted and last(rows(self.logdir)[-1]), f'{wanted} rows')
    return rows(self.logdir)

  def wait_for_checkpoint(self):
    """Waits until there is one more than now. Returns its name."""
    state = pathlib.Path(self.logdir, 'checkpoints', 'checkpoint')
    read = lambda: state.read_text(encoding='utf-8') if state.exists() else ''
    before = read()
    self.wait_until(lambda: read() != before, 'a checkpoint')

  def interrupt(self):
    """Ctrl-C in its terminal: SIGINT to the whole foreground process group."""
    os.killpg(self.process.pid, signal.SIGINT)

  def end(self):
    """Waits for its end. Returns exit code and the seconds it took."""
    began = time.monotonic()
    return self.process.wait(_DEADLINE_SECONDS), time.monotonic() - began
