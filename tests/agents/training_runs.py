"""Short synchronous training runs in this process, for tests of learning."""

import dataclasses
import io
from unittest import mock

from scalable_agents.actor import actor_host
from scalable_agents.environments import registry
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import run_directory
from scalable_agents.tests.training import training
from scalable_agents.training import run_config
from scalable_agents.training import run_log
from scalable_agents.training import train_loop


def returns_more_than(wanted):
  """Returns a condition: 300 episodes have ended, and the mean return of the last 100 of every level is larger.

  Args:
    wanted: a number, or a dict from level to number.
  """
  def is_reached(statistics):
    returns = {name.removeprefix('episode_return/'): value for name, value in statistics.items()
               if name.startswith('episode_return/')}
    limits = wanted if isinstance(wanted, dict) else dict.fromkeys(returns, wanted)
    return statistics['episodes'] >= 300 and all(returns[level] > limit for level, limit in limits.items())
  return is_reached


def train(test, agent, config, num_environments: int | str = 16, until=lambda statistics: False):
  """Trains until total_environment_frames, or until the statistics of episodes are as wanted.

  Args:
    test: the test case.
    agent: the agent's definition.
    config: the agent's hyper-parameters. Actors and learner must take turns, so that policy lag does not depend on the
      machine's pace. With the barrier step, nothing does; with unroll, the batches of inference do.
    num_environments: number of environments; auto, if the agent determines it.
    until: takes the values about episodes of a row of metrics.jsonl.
  Returns:
    The rows of metrics.jsonl.
  """
  agent.validate(config)
  assert config.barrier != 'none'
  run = run_config.RunConfig(logdir=test.create_tempdir().full_path, num_environments=num_environments,
                             num_environment_workers=1)
  run = agent.complete_run(config, run)
  levels = registry.expand(config.level_name)
  with run_directory.open_run(run.logdir, dataclasses.asdict(config), ()) as directory:
    host = actor_host.ActorHost(levels, atari57_protocol.Protocol().environments(levels, True), run, config.seed)
    statistics = run_log.make_statistics(levels)
    with mock.patch.object(run_log, 'make_statistics', return_value=statistics):
      trainer = train_loop.Trainer(host, training.job(agent, config, run), directory, io.StringIO())
    has_finished = trainer._has_finished
    trainer._has_finished = lambda: has_finished() or until(statistics.metrics())
    trainer.train()
  return training.rows(run.logdir)
