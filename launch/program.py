"""The program of every agent's binary: it reads flags, checks settings as early as possible, and trains or evaluates.

agents/train.py calls `run` with a preset.
"""

import dataclasses
import functools
import signal
import sys
import time
from typing import NoReturn

import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import leftovers
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import relay
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import evaluation_results
from scalable_agents.evaluation import evaluations
from scalable_agents.experience import memory
from scalable_agents.launch import act_loop
from scalable_agents.launch import preset as preset_lib
from scalable_agents.ops import messages
from scalable_agents.population import population_config
from scalable_agents.population import population_member
from scalable_agents.processes import devices
from scalable_agents.processes import machine
from scalable_agents.processes import ports
from scalable_agents.processes import python_path
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import runtime_config
from scalable_agents.records import settings
from scalable_agents.training import definition
from scalable_agents.training import run_config
from scalable_agents.training import train_loop


def run(preset: preset_lib.Preset) -> NoReturn:
  """Runs `main` with a preset whose flags are defined (launch/preset_flags.py), and ends the process."""
  agent: definition.Definition = python_path.load(preset.agent)

  def main_and_leave():
    code = main(preset, agent)
    sys.stdout.flush()
    quiet.leave(code)  # Threads may still wait for the network. If one went on while Python ends, Python would crash.

  run_flags.run_main(main_and_leave)


def main(preset: preset_lib.Preset, agent: definition.Definition) -> int:
  """Trains, acts or evaluates, as the flags say. The flags must have been defined.

  Returns:
    The exit code; see act_loop.ActLoop.act. It is 0 for a process that trains or evaluates.
  Raises:
    errors.UserError, run_directory.RunDirectoryError: an error that the user can correct.
    KeyboardInterrupt: Ctrl-C. While training, Ctrl-C ends the run cleanly and does not raise.
  """
  if not isinstance(preset.config, agent.config):
    raise errors.UserError(f'the preset has a config of {type(preset.config).__name__}: want one of '
                           f'{agent.config.__name__}, the config class of {agent.name}')
  job = _read_flags(preset, agent)
  _check(job)
  try:
    if job.run.mode == 'test':
      _test(job)
    elif job.cluster.job_name == 'actor':
      return _act(job)
    else:
      _train(job)
    return 0
  except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
    # The second message is that of a copy to a card that is full.
    if isinstance(error, tf.errors.InternalError) and 'Dst tensor is not initialized' not in error.message:
      raise
    sizes = ', '.join(f'--{name}' for name in ('replay_capacity', 'batch_size', 'unroll_length', 'queue_size')
                      if hasattr(job.config, name))
    learns = job.run.mode == 'train' and job.cluster.job_name != 'actor'
    also = f', or begin another run (--logdir) with a smaller {sizes}' if learns else ''
    # TensorFlow's message of an error in a function has the function's Python lines.
    said = messages.one_line(messages.op_message(error.message) or error.message)
    raise errors.UserError(f'memory is used up ({said}): choose a smaller --num_environments{also}') from error


def _check(job):
  """Raises errors.UserError if settings of several parts do not fit together."""
  with errors.of_user(ValueError):
    job.protocol.validate(job.levels)
  # Without such a flag, as on DMLab-30, levels say themselves where a life is lost.
  if getattr(job.config, 'reset_on_life_loss', False) and not getattr(job.protocol, 'episode_end_on_life_loss', True):
    raise errors.UserError('--reset_on_life_loss: want --episode_end_on_life_loss as well: without it, a lost life '
                           'ends no episode')
  is_idle = job.run.num_environments == 0 and job.cluster.job_name == 'learner' and job.run.mode == 'train'
  if isinstance(job.run.num_environments, int) and job.run.num_environments < len(job.levels) and not is_idle:
    raise errors.UserError(
        f'--num_environments={job.run.num_environments}: want at least {len(job.levels)}, one per level')
  refresh, unroll_length = job.refresh_steps(), job.config.unroll_length
  if job.agent.is_on_policy and refresh and unroll_length % refresh:
    raise errors.UserError(f'--parameter_refresh={refresh}: want auto, paper, unroll, or a divisor of {unroll_length}, '
                           f'so that unrolls begin with new parameters: {job.agent.name} does not correct for stale '
                           'ones')


def _read_flags(preset, agent) -> definition.Job:
  """Returns the run. An evaluation has the stored settings of its run; the command line cannot change them."""
  stored = None
  config = run_flags.config_from_flags(agent.config)  # Only types and ranges are checked: stored flags may complete it.
  run_settings = run_config.from_flags(default_run=config.level_name)
  cluster = run_flags.config_from_flags(cluster_config.ClusterConfig, cluster_config.validate)
  if cluster.job_name == 'learner' and cluster.task > 0 and run_settings.mode == 'train':
    # The run directory belongs to the first learner. Each other learner has its own: machines may not share a disk.
    run_settings = dataclasses.replace(run_settings, logdir=f'{run_settings.logdir}_learner_{cluster.task}')
  if run_settings.mode == 'test':
    of_run = run_directory.read_config(run_settings.logdir)
    run_directory.check_agent(run_settings.logdir, of_run, agent.name)  # Before its flags, which another one lacks.
    stored = of_run['flags']
    for part in (agent.config, type(preset.protocol), population_config.PopulationConfig,
                 cluster_config.ClusterConfig):  # Raises if a value is impossible.
      run_flags.stored_config(part, stored, run_directory.path(run_settings.logdir, run_directory.CONFIG))
    # What this process is in a cluster is its own; only what the run's learners have in common is stored.
    role = settings.free_settings(cluster_config.ClusterConfig)
    cluster = run_flags.config_from_flags(cluster_config.ClusterConfig, cluster_config.validate,
                                          {name: value for name, value in stored.items() if name not in role})
    config = run_flags.config_from_flags(agent.config, agent.validate, stored)
  else:
    if run_settings.video:
      raise errors.UserError('--video: only with --mode=test')
    config = run_flags.config_from_flags(agent.config, agent.validate)
    with errors.of_user(ValueError):
      run_settings = agent.complete_run(config, run_settings)
  population = run_flags.config_from_flags(population_config.PopulationConfig, stored=stored)
  config = _with_sample(agent, config, population.population_size > 1)
  protocol = run_flags.config_from_flags(type(preset.protocol), stored=stored)
  if cluster.job_name and config.barrier != 'none':
    cause = '--synchronous' if config.synchronous else agent.name
    raise errors.UserError(f'{cause}: only without --job_name; processes of a cluster cannot take turns')
  if not agent.can_have_several_learners and (cluster.num_learners > 1 or len(cluster.addresses) > 1):
    name = '--num_learners' if cluster.num_learners > 1 else '--learner_addresses'
    raise errors.UserError(f'{name}: {agent.name} has one learner, which applies the gradient of one worker at a time')
  if population.population_size > 1 and len(cluster.addresses) > 1:
    raise errors.UserError('--population_size: all learners of a member are in one process; give one address in '
                           '--learner_addresses, and --num_learners for several')
  if not stored and cluster.job_name != 'actor':
    with errors.of_user(ValueError):
      population_config.validate_member(population, config.learning_rate_decay, run_settings.logdir)
  return definition.Job(agent, preset.agent, config, protocol, run_settings, _levels(config), cluster, population)


def _levels(config):
  with errors.of_user(ValueError, ImportError, prefix='--level_name: '), quiet.stdout_to_log(), leftovers.cleanup():
    levels = registry.expand(config.level_name)
    for level in levels:
      registry.check(level)
    return levels


def _with_sample(agent, config, is_member):
  """Returns the config with the sample of hyper-parameters that --sweep_index selects.

  Without a population, the sample must be one of the sweep's own. In a population it may have any number, so that
  several populations start differently.
  """
  if config.sweep_index == runtime_config.NO_SAMPLE:
    return config
  num_samples = agent.sweep.num_samples
  if config.sweep_index >= num_samples and not is_member:
    raise errors.UserError(f'--sweep_index={config.sweep_index}: want 0 to {num_samples - 1}, or '
                           f'{runtime_config.NO_SAMPLE} for no sample')
  sample = agent.sweep.draw(config.sweep_index)
  if given := run_flags.present(sample):
    raise errors.UserError(f'--{given[0]}: --sweep_index={config.sweep_index} draws it; leave one of the two out')
  return dataclasses.replace(config, **sample)


def _common(job):
  """Returns the settings that must be the same in all processes of a cluster."""
  free, values = job.free_settings(), job.settings()
  fixed = {name: value for name, value in values.items() if name not in free}
  for part in (job.config, job.protocol):
    fixed |= settings.kinds(part, values)
  return {'agent': job.agent.name} | {f'--{name}': value for name, value in fixed.items()}


def _kernel_threads(job, learns):
  """Returns the number of threads of a kernel on the CPU, or None for the usual one. `learns`: this process learns."""
  if job.run.num_kernel_threads != settings.AUTO:
    return job.run.num_kernel_threads
  needs_all = learns and (job.run.num_environments == 0 or job.agent.mostly_learns(job.config))
  return machine.num_cores() if needs_all else None


def _train(job):
  """Trains in the run directory; resumes the run there if there is one."""
  make_evaluations = None
  if job.run.evaluation_interval and job.cluster.task <= 0:  # Of several learners, the first one has the run.
    make_evaluations = functools.partial(
        evaluations.Evaluations, evaluations.request(job), job.run.evaluation_interval)
  values = job.settings()
  with run_directory.open_run(job.run.logdir, values, job.free_settings(), job.agent.name,
                              run_flags.defaults(values)) as directory:
    _check_kinds(job, run_directory.read_config(directory.path)['flags'])
    quiet.keep_log(run_directory.path(directory.path, run_directory.LIBRARY_LOG))
    devices.configure_tensorflow(job.run.tf32, _kernel_threads(job, learns=True))
    screen = quiet.screen()
    port, strategy = _join_learners(job, screen)
    resumed = checkpoint.latest(run_directory.path(directory.path, run_directory.CHECKPOINTS))
    # The seed depends on the checkpoint, so that a resumed run does not repeat the episodes of its beginning.
    number = cluster_config.host_number(job.cluster)
    seed = _seed_of_host(job.config.seed, number, checkpoint.number_of(resumed) if resumed else 0)

    def check(specification):
      return memory.check_stored_frames(
          specification, job.agent.replay_steps(job.config), getattr(job.config, 'replay_capacity', 0))

    host = _make_host(job, number, seed, screen, check)
    try:
      make_member = None
      if job.population.population_size > 1:
        make_member = functools.partial(population_member.Member, config=job.population, levels=job.levels,
                                        seed=job.config.seed, directory=directory)
      trainer = train_loop.Trainer(
          host, job, directory, screen, make_member=make_member, port=port, strategy=strategy,
          make_evaluations=make_evaluations)
      try:
        trainer.train()
      finally:
        directory.has_begun |= trainer.has_learned
    finally:
      host.close()


def _check_kinds(job, stored):
  """Checks that the free settings of a resumed run are of the same kinds as those that it was started with.

  Raises:
    errors.UserError: one is not, for example the number of learners, or config.json is damaged.
  """
  for part in (job.config, job.protocol, job.cluster):  # Raises if a value is impossible.
    run_flags.stored_config(type(part), stored, run_directory.path(job.run.logdir, run_directory.CONFIG))
  before = job.kinds(stored)
  for name, now in job.kinds(job.settings()).items():
    if now != before[name]:
      raise run_directory.RunDirectoryError(
          f'--{name}: {job.run.logdir} was started with {before[name]} and has {now} now: continue it as it was '
          'started, or use another --logdir')


def _join_learners(job, screen):
  """Returns the learner's port, or None if all is in this process, and the strategy of all learners."""
  port, membership = None, job.cluster
  learner_port.configure_devices(membership.num_learners)
  if membership.job_name:
    addresses, task = membership.addresses, max(membership.task, 0)
    others = ''
    if len(addresses) > 1:
      others = f'; it waits for all {len(addresses)} learners'
      # The learners wait for each other in C++, and Python's signal handlers do not run meanwhile. So SIGINT gets its
      # default action here. SIGTERM has it since quiet.keep_log. Trainer.train installs handlers for both again.
      signal.signal(signal.SIGINT, signal.SIG_DFL)
    _, number = ports.split_address(addresses[task])
    _say_port_opens(number, screen, others)
    port = learner_port.LearnerPort(membership, _common(job))
  strategy = learner_port.make_strategy(membership.num_learners, port)
  if strategy.num_replicas_in_sync > 1:
    print(f'{strategy.num_replicas_in_sync} learners; {learner_port.summing(port)} sums their gradients',
          file=screen, flush=True)
  return port, strategy


def _seed_of_host(*numbers):
  """Mixes numbers into a seed. Two hosts of a cluster, or two runs with neighbouring seeds, get different episodes."""
  return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 3  # Below the seeds of evaluations.


def _make_host(job, number, seed, screen, check=lambda specification: None):
  """Makes the environments of this process.

  Args:
    number: the host's number, drawn once: its actors' ids follow from it, and its reports have it.
    check: called when the first environments are made, since the others may take minutes.
  """
  run, levels = job.run, len(job.levels)
  environments, *_ = actor_host.counts(run, job.levels)
  if job.cluster.job_name and environments > cluster_config.MAX_ENVIRONMENTS:
    if run.num_environments != 'auto':
      raise errors.UserError(f'--num_environments={environments}: want at most {cluster_config.MAX_ENVIRONMENTS} in '
                             'a process of a cluster')
    environments = cluster_config.MAX_ENVIRONMENTS // levels * levels  # As many for each level.
    run = dataclasses.replace(run, num_environments=environments)
  memory.check_environments(job.levels, environments)
  # An agent whose actors have different settings, such as R2D2 with its epsilons, knows the number of all actors.
  offset = cluster_config.place_offset(number, environments, getattr(job.config, 'num_actors', 0))
  with errors.of_user(environment_workers.WorkerError):
    return actor_host.ActorHost(
        job.levels, job.protocol.environments(job.levels, training=True), run, seed, screen,
        cluster_config.first_actor_id(number), first_level=number * environments, place_offset=offset, check=check)


def _act(job):
  """Runs an actor host, which acts for a learner in another process. Returns the exit code."""
  devices.configure_tensorflow(job.run.tf32, _kernel_threads(job, learns=False))
  screen = quiet.screen()
  relay_port = None
  if job.cluster.relay_port:
    _say_port_opens(job.cluster.relay_port, screen)
    relay_port = relay.RelayPort(job.cluster.relay_port)
  number = cluster_config.host_number(job.cluster)
  seed = _seed_of_host(job.config.seed, number, time.time_ns())  # Other episodes each time.
  host = _make_host(job, number, seed, screen)
  try:
    return act_loop.ActLoop(host, job, _common(job), number, screen, relay_port).act()
  finally:
    host.close()


def _say_port_opens(number, screen, others=''):
  print(f'port {number} opens on all interfaces, without authentication: anyone who reaches it can run code in this '
        f'process. Keep it on a private network{others}', file=screen, flush=True)


def _test(job):
  """Evaluates the run."""
  values = job.settings()
  with run_directory.open_evaluation(job.run.logdir, values, job.free_settings(), job.agent.name,
                                     run_flags.defaults(values)) as directory:
    quiet.keep_log(run_directory.path(directory.path, run_directory.LIBRARY_LOG))
    devices.configure_tensorflow(job.run.tf32, _kernel_threads(job, learns=False))
    summary = evaluation.evaluate(job, directory, quiet.screen())
  print(evaluation_results.report(summary), flush=True)
