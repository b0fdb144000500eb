"""A sweep of LASER agents for tests. Its replay job is that of forgetful_replay.py, and all processes start quickly."""

import atexit
import dataclasses
import os
import runpy
import signal
import subprocess
import sys
import types

from absl import flags

from scalable_agents.agents import laser_sweep
from scalable_agents.processes import child_process
from scalable_agents.processes import forked_program
from scalable_agents.processes import run_flags
from scalable_agents.tests.experience import forgetful_replay


class _ForkedChild:
  """A child that has imported TensorFlow already, with those methods of subprocess.Popen that child_process needs."""

  def __init__(self, command, env, preexec_fn, **unused_options):
    _, _, module, *arguments = command  # python -m MODULE
    output, its_output = os.pipe()
    self.returncode, self.pid = None, os.fork()
    if not self.pid:
      request = {'module': module, 'arguments': arguments, 'folder': os.getcwd(), 'environment': env}
      _run(module, request, (os.open(os.devnull, os.O_RDONLY), its_output, its_output), preexec_fn)
    os.close(its_output)
    self.stdout = open(output, 'rb', buffering=0)

  def poll(self):
    return self._wait(os.WNOHANG)

  def wait(self):
    return self._wait(0)

  def send_signal(self, number):
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self):
    self.send_signal(signal.SIGKILL)

  def _wait(self, options):
    if self.returncode is None:
      pid, status = os.waitpid(self.pid, options)
      self.returncode = os.waitstatus_to_exitcode(status) if pid else None
    return self.returncode


def _run(module, request, streams, preexec_fn):
  """Runs a program in this new process, and ends it."""
  code = 1
  try:
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, signal.SIG_DFL)
    preexec_fn()
    forked_program.become(request, streams)
    for name in dataclasses.asdict(laser_sweep.SweepConfig()):  # The program defines flags of its own.
      delattr(flags.FLAGS, name)
    flags.FLAGS.unparse_flags()
    sys.modules.pop(module, None)  # Otherwise runpy warns, and what a process says before it refuses counts.
    runpy.run_module(module, run_name='__main__', alter_sys=True)
    code = 0
  except SystemExit as end:
    code = end.code or 0
  finally:
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _with_forgetful_replay(commands):
  def changed(*args):
    agents, (option, _, *its_flags) = commands(*args)
    return agents, [option, forgetful_replay.__name__, *its_flags]
  return changed


if __name__ == '__main__':
  laser_sweep.commands = _with_forgetful_replay(laser_sweep.commands)
  child_process.subprocess = types.SimpleNamespace(**(vars(subprocess) | {'Popen': _ForkedChild}))
  run_flags.define(laser_sweep.SweepConfig())
  run_flags.run_main(laser_sweep.main, takes_others=True)
