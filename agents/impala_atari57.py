"""IMPALA on an Atari game, on several or all 57 at once, or on a built-in or gymnasium task.

  bazel run //agents:impala_atari57 -- --level_name=pong --logdir=runs/pong
  bazel run //agents:impala_atari57 -- --level_name=pong --logdir=runs/pong --mode=test
  bazel run //agents:impala_atari57 -- --level_name=atari57 --logdir=runs/atari57

The same --logdir again resumes. Every hyper-parameter is a flag; their defaults are those of Espeholt et al. 2018
(table G.1: the deep feed-forward network).
"""

from scalable_agents.agents import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

# pylint: disable=g-import-not-at-top
import dataclasses

from scalable_agents.actor import environment_workers
from scalable_agents.agents import actor_host
from scalable_agents.agents import evaluation
from scalable_agents.agents import impala
from scalable_agents.agents import run_flags
from scalable_agents.agents import train_loop
from scalable_agents.environments import atari
from scalable_agents.environments import registry
from scalable_agents.learner import run_directory

_STICKY_PROBABILITY = 0.25  # Machado et al. 2018.


def environment_protocol(config: impala.ImpalaConfig, training: bool) -> dict:
  """The protocol of Atari games (environments/atari.py) as environment workers take it.

  An agent of several games has all 18 actions in each (section 5.3.2).
  """
  return {'atari': {
      'action_repeats': config.action_repeats,
      'max_pooled_frames': min(2, config.action_repeats),
      'noop_max': config.noop_max,
      'episode_end_on_life_loss': config.episode_end_on_life_loss and training,
      'full_action_set': config.full_action_set or len(registry.expand(config.level_name)) > 1,
      'sticky_actions': _STICKY_PROBABILITY if config.sticky_actions else 0.,
      'max_episode_frames': config.max_episode_frames,
  }}


def train(config: impala.ImpalaConfig, run: run_flags.RunConfig):
  """Trains, or goes on training, in run.logdir."""
  flags = dataclasses.asdict(config) | dataclasses.asdict(run)
  with run_directory.open_run(run.logdir, flags, run_flags.FREE_FLAGS):
    quiet.keep_log(run_directory.path(run.logdir, run_directory.LIBRARY_LOG))
    train_loop.configure_tensorflow()
    levels = registry.expand(config.level_name)
    try:
      host = actor_host.ActorHost(levels, environment_protocol(config, training=True), run, config.seed)
    except environment_workers.WorkerError as error:
      raise run_flags.UserError(str(error)) from error
    try:
      train_loop.Trainer(host, impala.Agent, impala.Learner, config, levels, run, quiet.screen()).train()
    finally:
      host.close()


def test(config: impala.ImpalaConfig, run: run_flags.RunConfig):
  """Evaluates the run in run.logdir."""
  quiet.keep_log(run_directory.path(run.logdir, run_directory.LIBRARY_LOG))
  train_loop.configure_tensorflow()
  summary = evaluation.evaluate(impala.Agent, config, registry.expand(config.level_name),
                                environment_protocol(config, training=False), run, quiet.screen())
  print(evaluation.report(summary), flush=True)


def main():
  """Reads the flags, checks what can be checked at once, and trains or evaluates."""
  config = run_flags.config_from_flags(impala.ImpalaConfig, impala.validate)
  run = run_flags.run_config_from_flags(default_run=config.level_name)
  if run.mode == 'test':  # With the flags of the run, which the command line cannot change.
    stored = run_directory.read_config(run.logdir)['flags']
    config = run_flags.config_from_flags(impala.ImpalaConfig, impala.validate, stored)
    run_directory.check_same(run.logdir, dataclasses.asdict(config) | dataclasses.asdict(run), run_flags.FREE_FLAGS)
  elif run.video:
    raise run_flags.UserError('--video: only with --mode=test')
  try:
    with quiet.aside():
      levels = registry.expand(config.level_name)
      for level in levels:
        registry.check(level)
  except (ValueError, ImportError) as error:
    raise run_flags.UserError(f'--level_name: {error}') from error
  if run.num_environments != 'auto' and run.num_environments < len(levels):
    raise run_flags.UserError(f'--num_environments={run.num_environments}: want at least {len(levels)}, one per level')
  try:
    atari.AtariSettings(**environment_protocol(config, training=True)['atari'])
  except ValueError as error:
    raise run_flags.UserError(f'--{error}') from error
  {'train': train, 'test': test}[run.mode](config, run)


if __name__ == '__main__':
  run_flags.define(impala.ImpalaConfig)
  run_flags.define(run_flags.RunConfig)
  run_flags.run_main(main)
