"""A test case that evaluates runs in the test's process, with real environment workers."""

import dataclasses
import io
import json
import os
import pty
import signal
import termios
from unittest import mock

from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.evaluation import evaluation
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import run_directory
from scalable_agents.tests.training import training
from scalable_agents.training import run_config

_ALWAYS = 50.  # Bias of an action's logit with which the policy never takes another action.


class Terminal(io.StringIO):
  """A terminal of 24 x 80 characters that keeps what is written."""

  def __init__(self):
    super().__init__()
    self._ends = pty.openpty()
    termios.tcsetwinsize(self._ends[1], (24, 80))

  def isatty(self):
    return True

  def fileno(self):
    return self._ends[1]

  def close(self):
    if not self.closed:
      for end in self._ends:
        os.close(end)
    super().close()


class Reacting(io.StringIO):
  """A screen that calls a function when a word appears on it."""

  def __init__(self, word, react):
    super().__init__()
    self._word, self._react = word, react

  def write(self, text):
    written = super().write(text)
    if self._word in text:
      self._react()
    return written


def children() -> set[int]:
  with open(f'/proc/self/task/{os.getpid()}/children', encoding='utf-8') as file:
    return set(map(int, file.read().split()))


class EvaluationTestCase(parameterized.TestCase):
  """Makes runs and evaluates them."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    training.configure_tensorflow()

  def setUp(self):
    super().setUp()
    # Installs Python's own handler: a shell that runs the tests in the background makes them ignore SIGINT.
    self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
    # Only a busy machine is slow enough to report how many environments have started.
    self.enterContext(mock.patch.object(actor_host, '_START_REPORT_SECONDS', 1e6))

  def make_run(self, level='catch', always=None, bias=_ALWAYS, **settings):
    """Makes a run directory with a checkpoint. The policy is uniform, or takes only action `always` if it is given."""
    config = configs.ImpalaConfig(level_name=level, torso='shallow', **settings)
    run = run_config.RunConfig(logdir=self.create_tempdir().full_path, mode='test', num_environments=4,
                               num_environment_workers=1, test_num_episodes=30)
    learner, checkpointer = training.make_run(run.logdir, config)
    weights, biases = (variable for name in ('w', 'b') for variable in learner.agent.trainable_variables
                       if variable.name == f'agent/policy/{name}:0')
    weights.assign(tf.zeros_like(weights))
    if always is not None:
      biases.assign(tf.one_hot(always, biases.shape[0], on_value=bias))
    learner.environment_frames.assign(12_800)
    learner.update_steps.assign(20)
    checkpointer.save()
    return config, run

  def evaluate(self, config, run, screen=None, protocol=atari57_protocol.Protocol(), **changes):
    run = dataclasses.replace(run, **changes)
    with run_directory.open_evaluation(run.logdir, run_directory.read_config(run.logdir)['flags'], ()) as directory:
      job = training.job(impala.IMPALA, config, run, protocol)
      return evaluation.evaluate(job, directory, screen or io.StringIO())

  def stored(self, run):
    with open(run_directory.path(run.logdir, run_directory.EVALUATION), encoding='utf-8') as file:
      return json.load(file)
