"""Training for tests: makes run directories, and starts the binary and watches its run directory and its screen."""

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from unittest import mock

from absl import flags
import psutil
import tensorflow as tf

from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import environment_worker
from scalable_agents.agents import impala
from scalable_agents.agents import impala_atari57
from scalable_agents.agents import registry as agent_registry
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import registry
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import preset
from scalable_agents.launch import preset_flags
from scalable_agents.launch import program
from scalable_agents.population import population_config
from scalable_agents.processes import devices
from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import episode_statistics
from scalable_agents.records import learning_curve
from scalable_agents.records import metric_table
from scalable_agents.records import run_directory
from scalable_agents.records.settings import free_settings
from scalable_agents.tests.launch import forked_program
from scalable_agents.training import definition
from scalable_agents.training import run_config

_POLL_SECONDS = 0.05
SLOW_START = re.compile(r'(?m)^[\d,]+ of [\d,]+ environments made\r?\n')  # Only a busy machine prints such lines.
_DEADLINE_SECONDS = 300.  # Deadline for everything that takes a few seconds on an idle machine.


def make_run(logdir, config, protocol=atari57_protocol.Protocol()):
  """Makes a run directory with an ImpalaConfig. Returns an untrained Learner and the Checkpointer that saves it."""
  flags = {}
  for settings in (config, protocol, population_config.PopulationConfig(), cluster_config.ClusterConfig(),
                   run_config.RunConfig(logdir=str(logdir))):
    flags |= dataclasses.asdict(settings)
  run_directory.open_run(
      str(logdir), flags, run_config.FREE_FLAGS | free_settings(cluster_config.ClusterConfig),
      impala.IMPALA.name).close()
  levels = registry.expand(config.level_name)
  environment = registry.make_from_json(levels[0], 0, protocol.environments(levels, training=True))
  spec = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in environment.observation_spec().items()}
  agent = impala.Agent(
      agent_lib.EnvironmentSpec(environment.action_spec().num_values, spec, levels), config)
  learner = impala.IMPALA.make_learner(agent, config)
  return learner, checkpoint.Checkpointer(
      run_directory.path(logdir, run_directory.CHECKPOINTS), learner=learner,
      statistics=episode_statistics.EpisodeStatistics(levels))


def configure_tensorflow():
  """Configures TensorFlow as the programs do, but without its graph optimiser, Grappler."""
  devices.configure_tensorflow()
  disable_grappler()


def disable_grappler():
  """Disables TensorFlow's graph optimiser. To optimise a graph takes longer here than to run it."""
  tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})


def job(agent, config, run, protocol=None):
  """Returns the definition.Job of an agent with these settings."""
  levels = registry.expand(config.level_name)
  return definition.Job(agent, agent_registry.AGENTS.get(agent.name, ''), config,
                        protocol or atari57_protocol.Protocol(), run, levels)


def run_preset(name, *arguments):
  """Does what the binary of this name does in this process; see run_in_this_process."""
  chosen = agent_registry.PRESETS[name]
  return run_in_this_process(python_path.load(chosen.agent), chosen.config, chosen.protocol, *arguments)


def run_in_this_process(agent, config, protocol, *arguments):
  """Does what program.run does in this process, with flags of its own. Raises errors and draws no learning curve."""
  flag_values = flags.FlagValues()
  chosen = preset.Preset(agent_registry.AGENTS.get(agent.name, ''), config, protocol)
  preset_flags.define(chosen, flag_values)
  flag_values(['program', *arguments])
  replaced = {name: functools.partial(getattr(run_flags, name), flag_values=flag_values)
              for name in ('config_from_flags', 'present', 'defaults')}
  read_run = functools.partial(run_config.from_flags, flag_values=flag_values)
  # To draw a curve takes half a second.
  with mock.patch.multiple(run_flags, **replaced), mock.patch.object(run_config, 'from_flags', read_run), \
       mock.patch.object(learning_curve, 'draw'):
    return program.main(chosen, agent)


def rows(logdir):
  """Returns the complete rows of metrics.jsonl. Checks that metric_table has all metrics of this project's agents."""
  file = pathlib.Path(logdir, 'metrics.jsonl')
  lines = file.read_text(encoding='utf-8').splitlines(keepends=True) if file.exists() else []
  found = [json.loads(line) for line in lines if line.endswith('\n')]
  config = pathlib.Path(logdir, 'config.json')
  if found and json.loads(config.read_text(encoding='utf-8')).get('agent') in agent_registry.AGENTS:
    unknown = {name for row in found for name in row if not metric_table.find(name)}
    assert not unknown, f'records/metric_table.py does not describe {sorted(unknown)}'
  return found


def episodes(logdir):
  """Returns the rows of episodes.csv as lists of strings, without the header."""
  header, *lines = pathlib.Path(logdir, 'episodes.csv').read_text(encoding='utf-8').splitlines()
  assert header == 'frames,level,return,length', header
  return [line.split(',') for line in lines]


def still_alive(processes, seconds=300.):
  """Returns the processes that have not ended after `seconds`."""
  return psutil.wait_procs(processes, timeout=seconds)[1]


def commands(process, recursive=False):
  """Returns pairs (child of the process, its command line). The command line is empty if the child has just begun."""
  pairs = []
  for child in psutil.Process(process.pid).children(recursive):
    with contextlib.suppress(psutil.NoSuchProcess):  # The child has just ended.
      pairs.append((child, child.cmdline()))
  return pairs


class Terminal:
  """A terminal of 100 columns; `text` is what has been printed on it."""

  def __init__(self):
    self._master, self.descriptor = pty.openpty()
    fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack('HHHH', 25, 100, 0, 0))
    self._read = bytearray()
    self._reader = threading.Thread(target=self._keep_reading, daemon=True)
    self._reader.start()

  @property
  def text(self):
    """Everything that has been printed on it."""
    return self._read.decode(errors='replace')  # It may end within a character of several bytes.

  def press_ctrl_c(self):
    os.write(self._master, b'\x03')

  def close(self):
    """Must be called when the process that used it has ended."""
    os.close(self.descriptor)
    self._reader.join()
    os.close(self._master)

  def _keep_reading(self):
    with contextlib.suppress(OSError):  # Reading raises OSError when no process has the terminal open.
      while block := os.read(self._master, 1 << 16):
        self._read += block


class Training:
  """A training process in a session of its own. As a context manager it kills the process if it has not ended."""

  def __init__(self, logdir, *flags, terminal=None, program=impala_atari57.__name__):
    """Starts the process, in a Terminal if one is given.

    Args:
      logdir: the run directory.
      *flags: further flags.
      terminal: a Terminal, or None.
      program: the name of the program's module, which is forked (forked_program.py), or a tuple of arguments for a new
        Python process.
    """
    self.logdir = logdir
    self._output = tempfile.TemporaryFile()
    with open(os.devnull, 'rb') as nothing:
      output = self._output.fileno()
      streams = (terminal.descriptor,) * 3 if terminal else (nothing.fileno(), output, output)
      arguments = [f'--logdir={logdir}', *flags]
      if isinstance(program, str):
        self.process = forked_program.fork(program, arguments, streams)
      else:
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments], env=python_path.environment(), start_new_session=True,
            **dict(zip(('stdin', 'stdout', 'stderr'), streams)))

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    self.process.kill()
    self.process.wait()
    self._output.close()

  def screen(self):
    """Returns what it has printed so far, but for slow starts. Not available with a Terminal."""
    return SLOW_START.sub('', os.pread(self._output.fileno(), 1 << 20, 0).decode())

  def workers(self):
    """Returns its environment workers."""
    return [child for child, words in commands(self.process, recursive=True) if environment_worker.__name__ in words]

  def wait_until(self, condition, what):
    """Waits until `condition()` is true.

    Raises:
      AssertionError: the condition was still false at the deadline, or when the process had ended.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
      # This is read before the condition, so that the condition is checked once more after the end.
      over = self.process.poll() is not None or time.monotonic() > deadline
      if condition():
        return
      if over:
        raise AssertionError(f'{what}: not seen, exit code {self.process.poll()}, screen:\n{self.screen()}')
      with contextlib.suppress(subprocess.TimeoutExpired):
        self.process.wait(_POLL_SECONDS)

  def wait_for_rows(self, count):
    """Waits until metrics.jsonl has `count` more rows than now. Returns all rows."""
    wanted = len(rows(self.logdir)) + count
    self.wait_until(lambda: len(rows(self.logdir)) >= wanted, f'{wanted} rows')
    return rows(self.logdir)

  def wait_for_checkpoint(self):
    """Waits for the next checkpoint."""
    state = pathlib.Path(self.logdir, 'checkpoints', 'checkpoint')
    read = lambda: state.read_text(encoding='utf-8') if state.exists() else ''
    before = read()
    self.wait_until(lambda: read() != before, 'a checkpoint')

  def kill(self):
    """Kills the process (SIGKILL). Returns those of its workers that do not end."""
    workers = self.workers()
    self.process.kill()
    self.process.wait()
    return still_alive(workers)

  def end(self, number=None):
    """Sends a signal, if any, to this process only, and waits for its end. Returns the exit code and the seconds."""
    began = time.monotonic()
    if number is not None:
      self.process.send_signal(number)
    return self.process.wait(_DEADLINE_SECONDS), time.monotonic() - began
