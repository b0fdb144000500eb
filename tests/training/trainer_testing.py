"""A test case with trainers that run in the test's process, with real environment workers."""

import dataclasses
import io
from unittest import mock

from absl.testing import parameterized

from scalable_agents.actor import actor_host
from scalable_agents.agents import impala
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import registry
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import learning_curve
from scalable_agents.records import run_directory
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.training import run_config
from scalable_agents.training import train_loop

_TIMING = {'wall_seconds', 'frames_per_second', 'bottleneck', 'queue_size', 'inference_batch_size',
           'time/learner_waits', 'time/queue_full', 'time/inference_idle', 'time/environments_stepping',
           'memory_megabytes'}


def learner_calling(before, agent=impala.IMPALA):
  """Returns a function that makes learners. They call `before(learner, unroll)` at the start of each step."""
  def make(*args):
    learner = agent.make_learner(*args)
    step = learner.step

    def step_after(batch):
      before(learner, batch.unroll)
      return step(batch)
    learner.step = step_after
    return learner
  return make


def values(learner):
  """Returns the whole state of a learner: parameters, optimiser slots and counters."""
  return [variable.numpy() for variable in learner.variables]


def plain(rows):
  """Returns rows of metrics.jsonl without the figures that depend on the clock."""
  return [{name: value for name, value in row.items() if name not in _TIMING} for row in rows]


class TrainerTestCase(parameterized.TestCase):
  """Makes trainers.

  Attributes:
    screen: where they show their progress.
  """

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)
    self.screen = io.StringIO()
    self._directory = None
    # To draw a curve takes half a second. Processes that draw one during the training are not affected.
    self.enterContext(mock.patch.object(learning_curve, 'draw'))
    # Only on a busy machine would there be rows without an update.
    self.enterContext(mock.patch.object(train_loop, '_LONGEST_SILENCE_SECONDS', 1e6))

  def trainer(self, make_learner=None, make_agent=None, logdir=None, updates=3, run=run_config.RunConfig(),
              num_environments=4, num_workers=1, agent=impala.IMPALA, refresh_steps=0, port=None, **settings):
    """Makes a trainer that ends after `updates` updates, by default each of 4 unrolls of 5 steps."""
    config = agent.config(**dict(
        level_name='catch', torso='shallow', unroll_length=5, batch_size=4, synchronous=True,
        learning_rate_decay=False) | settings)
    config = dataclasses.replace(
        config, total_environment_frames=updates * config.unroll_length * config.batch_size)
    agent.validate(config)
    run = dataclasses.replace(run, logdir=logdir or self.create_tempdir().full_path,
                              num_environments=num_environments, num_environment_workers=num_workers)
    flags = dataclasses.asdict(config) | dataclasses.asdict(run)
    free = run_config.FREE_FLAGS | {'total_environment_frames'}
    if self._directory:
      self._directory.close()  # The previous trainer, perhaps in the same directory, has ended.
    self._directory = self.enterContext(run_directory.open_run(run.logdir, flags, free))
    levels = registry.expand(config.level_name)
    protocol = atari57_protocol.Protocol().environments(levels, training=True)
    host = actor_host.ActorHost(levels, protocol, run, config.seed)
    self.addCleanup(host.close)
    agent = dataclasses.replace(agent, network=make_agent or agent.network)
    if make_learner:
      object.__setattr__(agent, 'make_learner', make_learner)  # The definition is frozen.
    job = training.job(agent, config, run)
    if refresh_steps:
      job = dataclasses.replace(job, cluster=cluster_config.ClusterConfig(parameter_refresh=str(refresh_steps)))
    trainer = train_loop.Trainer(host, job, self._directory, self.screen, port=port)
    trainer.logdir = run.logdir
    return trainer

  def rows(self, *args, **settings):
    """Trains. Returns the rows of metrics.jsonl."""
    trainer = self.trainer(*args, **settings)
    trainer.train()
    return training.rows(trainer.logdir)
