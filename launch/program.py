"""The program of every agent's binary: it reads flags, checks settings as early as possible, and trains or evaluates.

A binary chooses an agent's module and a protocol, and has defaults of its own:

  from scalable_agents.processes import quiet
  if __name__ == '__main__':
    quiet.start()  # Before TensorFlow is imported.
  ...
  if __name__ == '__main__':
    program.run(impala, impala.ImpalaConfig(), atari57_protocol.Protocol())

agent_interface.py lists what the module of an agent, its config and a protocol have.
"""

from collections.abc import Collection, Mapping
import dataclasses
import functools
import signal
import sys
import time
from typing import Any, NamedTuple, NoReturn

from absl import flags
import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import leftovers
from scalable_agents.cluster import act_loop
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import evaluation_results
from scalable_agents.evaluation import evaluations
from scalable_agents.experience import memory
from scalable_agents.population import population_member
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import runtime_config
from scalable_agents.records.settings import free_settings
from scalable_agents.training import agent_interface
from scalable_agents.training import run_config as run_config_lib
from scalable_agents.training import sweep
from scalable_agents.training import train_loop

flags.disclaim_key_flags()  # The flags belong to the binary, so that its --help shows them.


def run(agent_module: agent_interface.AgentModule, config: runtime_config.RuntimeConfig,
        protocol: agent_interface.EnvironmentProtocol,
        run_config: run_config_lib.RunConfig = run_config_lib.RunConfig()) -> NoReturn:
  """Defines a flag for each field of the configs, with the field's value as default, and runs `main`.

  The settings of a population and of a cluster are flags too, and are the same for all binaries.
  """
  for defaults in (config, protocol, population_member.PopulationConfig(), cluster_config.ClusterConfig(), run_config):
    run_flags.define(defaults)

  def main_and_leave():
    main(agent_module, type(config), type(protocol))
    sys.stdout.flush()
    quiet.leave(0)  # Threads may still wait for the network, and Python would crash if one of them went on meanwhile.

  run_flags.run_main(main_and_leave)


def main(agent_module: agent_interface.AgentModule, config_class: type[runtime_config.RuntimeConfig],
         protocol_class: type[agent_interface.EnvironmentProtocol]):
  """Trains, acts or evaluates, as the flags say. The flags must have been defined.

  Raises:
    errors.UserError, run_directory.RunDirectoryError: an error that the user can correct.
    KeyboardInterrupt: Ctrl-C. While training, Ctrl-C ends the run cleanly and does not raise.
  """
  config, protocol, population, membership, run_config = _read_flags(agent_module, config_class, protocol_class)
  try:
    with quiet.stdout_to_log(), leftovers.cleanup():
      levels = registry.expand(config.level_name)
      for level in levels:
        registry.check(level)
  except (ValueError, ImportError) as error:
    raise errors.UserError(f'--level_name: {error}') from error
  try:
    protocol.validate(levels)
  except ValueError as error:
    raise errors.UserError(str(error)) from error
  is_idle = run_config.num_environments == 0 and membership.job_name == 'learner' and run_config.mode == 'train'
  if run_config.num_environments != 'auto' and run_config.num_environments < len(levels) and not is_idle:
    raise errors.UserError(
        f'--num_environments={run_config.num_environments}: want at least {len(levels)}, one per level')
  settings = _settings(config, protocol, population, membership, run_config)
  try:
    if run_config.mode == 'test':
      _test(agent_module, config, protocol, levels, settings, run_config)
    elif membership.job_name == 'actor':
      _act(agent_module, config, protocol, membership, levels, settings, run_config)
    else:
      _train(agent_module, config, protocol, population, membership, levels, settings, run_config)
  except tf.errors.ResourceExhaustedError as error:
    sizes = [f'--{name}' for name in ('replay_capacity', 'batch_size', 'unroll_length', 'queue_size')
             if hasattr(config, name)]
    raise errors.UserError(f'memory is used up ({error.message}): choose a smaller {", ".join(sizes)} or '
                           '--num_environments') from error


def _read_flags(agent_module, config_class, protocol_class):
  """Returns the five configs. An evaluation has the stored settings of its run; the command line cannot change them."""
  stored = None
  config = run_flags.config_from_flags(config_class, agent_module.validate)
  run_config = run_config_lib.from_flags(default_run=config.level_name)
  membership = run_flags.config_from_flags(cluster_config.ClusterConfig, cluster_config.validate)
  if membership.job_name == 'learner' and membership.task > 0 and run_config.mode == 'train':
    # The run directory belongs to the first learner. Each other learner has one of its own; they may share no disk.
    run_config = dataclasses.replace(run_config, logdir=f'{run_config.logdir}_learner_{membership.task}')
  if run_config.mode == 'test':
    stored = run_directory.read_config(run_config.logdir)['flags']
    for part in (config_class, protocol_class, population_member.PopulationConfig, cluster_config.ClusterConfig):
      run_flags.check_stored(part, stored, run_directory.path(run_config.logdir, run_directory.CONFIG))
    membership = dataclasses.replace(membership, num_learners=stored.get('num_learners', 1))
    config = run_flags.config_from_flags(config_class, agent_module.validate, stored)
  elif run_config.video:
    raise errors.UserError('--video: only with --mode=test')
  population = run_flags.config_from_flags(population_member.PopulationConfig, population_member.validate, stored)
  config = _with_sample(agent_module, config, population.population_size > 1)
  protocol = run_flags.config_from_flags(protocol_class, stored=stored)
  if membership.job_name and config.synchronous:
    raise errors.UserError('--synchronous: only without --job_name; processes of a cluster cannot take turns')
  if population.population_size > 1 and ',' in membership.learner_addresses:
    raise errors.UserError('--population_size: all learners of a member are in one process; give one address in '
                           '--learner_addresses, and --num_learners for several')
  if not stored and membership.job_name != 'actor':
    try:
      population_member.validate_member(population, config.learning_rate_decay, run_config.logdir)
    except ValueError as error:
      raise errors.UserError(str(error)) from error
  return config, protocol, population, membership, run_config


def _with_sample(agent_module, config, is_member):
  """Returns the config with the sample of hyper-parameters that --sweep_index selects.

  A sweep has a number of samples. Populations may start with any, so that several of them start differently.
  """
  num_samples = agent_module.SWEEP.num_samples
  if config.sweep_index == sweep.NO_SAMPLE:
    return config
  if config.sweep_index >= num_samples and not is_member:
    raise errors.UserError(f'--sweep_index={config.sweep_index}: want 0 to {num_samples - 1}, or {sweep.NO_SAMPLE} '
                           'for no sample')
  sample = agent_module.SWEEP.draw(config.sweep_index)
  for name in run_flags.present(sample):
    raise errors.UserError(f'--{name}: --sweep_index={config.sweep_index} draws it; leave one of the two out')
  return dataclasses.replace(config, **sample)


class _Settings(NamedTuple):
  """All settings of a run."""
  values: Mapping[str, Any]
  free: Collection[str]  # The names of those that may change when a run is resumed.
  defaults: Mapping[str, Any]


def _settings(config, protocol, population, membership, run_config) -> _Settings:
  values = {}
  for part in (config, protocol, population, membership, run_config):
    values |= dataclasses.asdict(part)
  free = run_config_lib.FREE_FLAGS.union(*map(free_settings, (config, protocol, membership)))
  return _Settings(values, free, run_flags.defaults(values))


def _common(agent_module, settings):
  """Returns the settings that must be the same in all processes of a cluster."""
  return {'agent': agent_module.NAME} | {
      f'--{name}': value for name, value in settings.values.items() if name not in settings.free}


def _train(agent_module, config, protocol, population, membership, levels, settings, run_config):
  """Trains in run_config.logdir; resumes the run there if there is one."""
  make_evaluations = None
  if run_config.evaluation_interval and membership.task <= 0:  # Of several learners, the first one has the run.
    what = evaluations.request(agent_module, config, levels, protocol, run_config)
    make_evaluations = functools.partial(evaluations.Evaluations, what, run_config.evaluation_interval)
  with run_directory.open_run(run_config.logdir, settings.values, settings.free, agent_module.NAME,
                              settings.defaults) as directory:
    quiet.keep_log(run_directory.path(directory.path, run_directory.LIBRARY_LOG))
    train_loop.configure_tensorflow()
    screen = quiet.screen()
    port, strategy = _join_learners(agent_module, membership, settings, screen)
    resumed = checkpoint.latest(run_directory.path(directory.path, run_directory.CHECKPOINTS))
    number = cluster_config.host_number(membership)
    # The seed depends on the checkpoint, so that a resumed run does not repeat the episodes of its beginning.
    seed = _seed_of_host(config.seed, number, checkpoint.number_of(resumed) if resumed else 0)

    def check(specification):
      return memory.check_stored_frames(
          specification, agent_module.replay_steps(config), getattr(config, 'replay_capacity', 0))

    host = _make_host(config, protocol, membership, levels, run_config, number, seed, screen, check)
    try:
      make_member = None
      if population.population_size > 1:
        make_member = functools.partial(population_member.Member, config=population, levels=levels, seed=config.seed,
                                        directory=directory)
      trainer = train_loop.Trainer(host, agent_module, config, levels, run_config, directory, screen,
                                   make_member=make_member, port=port, strategy=strategy,
                                   make_evaluations=make_evaluations, protocol=_protocol_of_experience(protocol))
      try:
        trainer.train()
      finally:
        directory.has_begun |= trainer.has_learned
    finally:
      host.close()


def _protocol_of_experience(protocol):
  """Returns the settings of the environments that experience depends on: name -> value."""
  free = free_settings(protocol)
  return {name: value for name, value in dataclasses.asdict(protocol).items() if name not in free}


def _join_learners(agent_module, membership, settings, screen):
  """Returns the learner's port, or None if all is in this process, and the strategy of all learners."""
  port = None
  try:
    learner_port.configure_devices(membership.num_learners)
    if membership.job_name:
      addresses, task = membership.learner_addresses.split(','), max(membership.task, 0)
      others = ''
      if len(addresses) > 1:
        others = f'; it waits for all {len(addresses)} learners'
        # The learners wait for each other in C++, and Python's signal handlers do not run meanwhile. So SIGINT gets its
        # default action here. SIGTERM has it since quiet.keep_log. Trainer.train installs handlers for both again.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
      _, number = cluster_config.split_address(addresses[task])
      print(f'port {number} opens on all interfaces, for anybody: whoever reaches it can run code in this process. '
            f'Keep it on a private network{others}', file=screen, flush=True)
      port = learner_port.LearnerPort(membership, _common(agent_module, settings))
    return port, learner_port.make_strategy(membership.num_learners, port)
  except learner_port.ClusterError as error:
    raise errors.UserError(str(error)) from error


def _seed_of_host(*numbers):
  """Mixes numbers into a seed. Two hosts of a cluster, or two runs with neighbouring seeds, get different episodes."""
  return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 3  # Below the seeds of evaluations.


def _make_host(config, protocol, membership, levels, run_config, number, seed, screen,
               check=lambda specification: None):
  """Makes the environments of this process, which has the number `number` in the cluster.

  `check` is called when the first ones are made, since the others may take minutes.
  """
  environments, *_ = actor_host.counts(run_config, levels)
  if membership.job_name and environments > cluster_config.MAX_ENVIRONMENTS:
    raise errors.UserError(f'--num_environments={environments}: want at most {cluster_config.MAX_ENVIRONMENTS} in '
                           'a process of a cluster')
  memory.check_environments(levels, environments)
  # Agents whose actors have different settings know the number of all actors.
  offset = cluster_config.place_offset(number, environments, getattr(config, 'num_actors', 0))
  try:
    return actor_host.ActorHost(levels, protocol.environments(levels, training=True), run_config, seed, screen,
                                cluster_config.first_actor_id(number), place_offset=offset, check=check)
  except environment_workers.WorkerError as error:
    raise errors.UserError(str(error)) from error


def _act(agent_module, config, protocol, membership, levels, settings, run_config):
  """Runs an actor host, which acts for a learner in another process."""
  train_loop.configure_tensorflow()
  screen = quiet.screen()
  number = cluster_config.host_number(membership)
  seed = _seed_of_host(config.seed, number, time.time_ns())  # After a restart the episodes differ.
  host = _make_host(config, protocol, membership, levels, run_config, number, seed, screen)
  try:
    act_loop.ActLoop(host, agent_module, config, levels, run_config, membership, _common(agent_module, settings),
                     number, screen).act()
  finally:
    host.close()


def _test(agent_module, config, protocol, levels, settings, run_config):
  """Evaluates the run in run_config.logdir."""
  with run_directory.open_evaluation(run_config.logdir, settings.values, settings.free, agent_module.NAME,
                                     settings.defaults) as directory:
    quiet.keep_log(run_directory.path(directory.path, run_directory.LIBRARY_LOG))
    train_loop.configure_tensorflow()
    summary = evaluation.evaluate(agent_module, config, [registry.test_level(level) for level in levels],
                                  protocol.environments(levels, training=False), run_config, directory, quiet.screen(),
                                  free_settings(protocol))
  print(evaluation_results.report(summary), flush=True)
