"""The Python interface: `scalable_agents.train` and `scalable_agents.load`. docs/python.md has examples."""

from collections.abc import Mapping
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple

from scalable_agents.processes import kernels

kernels.choose()  # Before TensorFlow is imported, unless the user has done so.

import dm_env
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.agents import agent_file
from scalable_agents.agents import registry as agents
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation
from scalable_agents.evaluation import lone_environment
from scalable_agents.processes import devices
from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings as settings_lib
from scalable_agents.training import run_config

# The help of --dataset_path in programs that read a run.
DATASET_PATH = ('The images that two levels of DeepMind Lab need, or dummy; see impala_dmlab30. Default: those of the '
                'training, if they are still there.')


class TrainingError(RuntimeError):
  """The training has ended with an error. The message is the process's exit code; the reason is on the screen."""


def train(agent: str, **settings: Any) -> str:
  """Trains in a process of its own, as the command does, and waits for it. Resumes the run in `logdir` if there is one.

  Ctrl-C, or a notebook's interrupt, also interrupts the training, which saves a checkpoint. If this process ends, the
  training saves one and ends, too.

  Args:
    agent: the name of a program, for example 'impala_atari57'; or 'module:NAME' of an agent of your own.
    **settings: the flags, for example level_name='catch'.
  Returns:
    The run directory. In a cluster, it is that of the first learner.
  Raises:
    errors.UserError: there is no such agent.
    TrainingError: the process ended with an error.
    KeyboardInterrupt: Ctrl-C, after the training has ended.
  """
  preset = agents.find(agent)
  flags = [f'--{name}={value}' for name, value in settings.items()]
  # In a session of its own, it gets the terminal's Ctrl-C only from `_wait`, once, and may still print to the terminal.
  code = _wait(subprocess.Popen(
      [sys.executable, *agents.command(agent), *flags], env=python_path.environment(), stdin=subprocess.DEVNULL,
      start_new_session=True, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM)))
  if code:
    raise TrainingError(f'exit code {code}')
  level = settings.get('level_name', preset.config.level_name)
  return run_config.directory(settings.get('logdir', ''), level)


def _wait(training: subprocess.Popen) -> int:
  """Returns the exit code of a training. Passes Ctrl-C on to it, and raises it when the training has ended."""
  interrupt = None
  with training:
    try:
      while training.poll() is None:
        try:
          training.wait()
        except KeyboardInterrupt as error:
          interrupt = error
          training.send_signal(signal.SIGINT)
    finally:
      training.terminate()  # Does nothing if it has ended.
  if interrupt:
    raise interrupt
  return training.returncode


class State(NamedTuple):
  """What a Policy keeps between two steps of B environments."""
  agent_state: Any         # nest of [B, ...], for example of an LSTM.
  last_action: np.ndarray  # [B] int32.


class Policy:
  """A trained agent that acts in one environment or in several at once.

  Attributes:
    name: the agent's name, for example 'impala'.
    config: the hyper-parameters of the run.
    levels: the names of the levels that the run was trained on, in their version for evaluation.
    environment_frames: number of frames that the agent was trained for.
    learner_steps: number of updates.
    agent: the network, an agent_lib.Agent.
    selection: how actions are selected.
    protocol: settings of the environments; see registry.make_from_json.
    portable_settings: the stored settings of the protocol by name, without those of the machine that trained.
    timeout_seconds: how long to wait for an environment in a process of its own.
    spec: agent_lib.EnvironmentSpec; `spec.observation` says which observations `step` takes.
  """

  def __init__(self, run: 'StoredRun', stored: 'checkpoint.Loaded | agent_file.AgentFile', selection: acting.Selection,
               seed: int):
    """Makes the network and reads its parameters. Call `load` instead of this."""
    self.name = run.agent.name
    self.config, self.levels, self.selection = run.config, run.levels, selection
    self.protocol, self.portable_settings, self.timeout_seconds = (
        run.protocol, run.portable_settings, run.timeout_seconds)
    self.spec = run.environment_spec()
    restored = _restore(lambda: run.agent.network(self.spec, run.config), stored)
    self.environment_frames, self.learner_steps = restored.environment_frames, restored.learner_steps
    self.agent = restored.agent
    self._random = np.random.RandomState(seed)
    self._step = acting.compiled(self.agent, selection)

  def make_environment(self, level: str = '', seed: int = 0) -> dm_env.Environment:
    """Makes an environment as evaluations do. Default: the first level of the run.

    Raises:
      ImportError: a package is missing; or it is a level of DeepMind Lab, which cannot run in this process, because
        this process has imported TensorFlow.
    """
    return registry.make_from_json(level or self.levels[0], seed, self.protocol)

  def step(self, observation: Mapping[str, Any], state: State | None = None, reward: Any = 0.,
           done: Any = None) -> tuple[Any, State]:
    """Selects actions.

    Args:
      observation: name -> array, as in `spec.observation`; or [B, ...] for B environments.
      state: what the last step returned. None at the first step.
      reward: the reward of the last action, a number or [B]. Agents with an LSTM observe it.
      done: whether the observation is the first of an episode, a bool or [B]. Default: where `state` is None.
    Returns:
      The action, an int or [B] int32; and the state for the next step.
    Raises:
      ValueError: the observations are not a dict, one is missing, or one has another shape or values that its type
        cannot have; or `state`, `reward` or `done` are those of another number of environments.
    """
    arrays, is_single = self._arrays(observation)
    batch = len(next(iter(arrays.values())))
    if state is None:
      state, done = State(self.agent.initial_state(batch), np.zeros(batch, np.int32)), True
    elif len(state.last_action) != batch:
      raise ValueError(f'state: want that of as many environments as there are observations, {batch}, '
                       f'got {len(state.last_action)}')
    done = _of_each('done', False if done is None else done, np.bool_, batch)
    inputs = acting.lone_inputs(
        {name: tf.constant(array) for name, array in arrays.items()}, tf.constant(state.last_action),
        tf.constant(_of_each('reward', reward, np.float32, batch)), tf.constant(done))
    seed = tf.constant(self._random.randint(1 << 31, size=2), tf.int64)
    output, agent_state = self._step(inputs, state.agent_state, seed)
    action = output.action.numpy()
    return int(action[0]) if is_single else action, State(agent_state, action)

  def _arrays(self, observation):
    """Returns the observations with a batch dimension, and whether they had none."""
    names, arrays, ranks = sorted(self.spec.observation), {}, set()
    if not isinstance(observation, Mapping):
      raise ValueError(f'observation: want a dict with {names}, got {type(observation).__name__}')
    for name, spec in self.spec.observation.items():
      if name not in observation:
        raise ValueError(f'observation: want {names}, got {sorted(observation)}')
      given = np.asarray(observation[name])
      with np.errstate(invalid='ignore'):
        array = given.astype(spec.dtype.as_numpy_dtype)
      if not spec.dtype.is_floating and (array != given).any():
        raise ValueError(f'observation {name!r}: want {spec.dtype.name}, got {given.dtype} with other values')
      batch_rank = array.ndim - len(spec.shape)
      if batch_rank not in (0, 1) or array.shape[batch_rank:] != tuple(spec.shape):
        raise ValueError(f'observation {name!r}: want shape {tuple(spec.shape)}, or with a batch dimension before it, '
                         f'got {array.shape}')
      ranks.add(batch_rank)
      arrays[name] = array
    if len(ranks) > 1:
      raise ValueError('observation: some arrays have a batch dimension and others have none')
    is_single = ranks == {0}
    return {name: array[np.newaxis] if is_single else array for name, array in arrays.items()}, is_single


def _of_each(name, values, dtype, batch):
  """Returns [batch] values, from one for all environments or from one for each."""
  array = np.asarray(values, dtype)
  if array.shape not in ((), (batch,)):
    raise ValueError(f'{name}: want one value, or shape ({batch},), got shape {array.shape}')
  return np.broadcast_to(array, [batch])


def _restore(make_agent, stored: checkpoint.Loaded | agent_file.AgentFile) -> evaluation.Restored:
  """Returns the agent of a checkpoint or of a file. A file does not have the heads that only the learner uses."""
  device = devices.choose()
  if isinstance(stored, checkpoint.Loaded):
    return evaluation.restore(make_agent, stored, device)
  with tf.device(device):
    agent = make_agent()
  agent_file.assign(stored, agent.acting_variables)
  return evaluation.Restored(agent, stored.manifest.environment_frames, stored.manifest.learner_steps)


@dataclasses.dataclass(frozen=True)
class StoredRun:
  """The settings of a run, read from its directory or from a file of export.py."""
  agent: Any                # definition.Definition.
  config: Any               # The hyper-parameters.
  protocol: dict[str, Any]  # Settings of the environments in evaluations; see registry.make_from_json.
  portable_settings: dict[str, Any]  # Of the protocol, by name, without those of the machine that trained.
  levels: tuple[str, ...]   # The levels in their version for evaluation.
  timeout_seconds: float    # How long to wait for an environment, as in the run.

  def environment_spec(self) -> agent_lib.EnvironmentSpec:
    """Returns the specification of the environments. For this it makes one, but starts no episode.

    Raises:
      errors.UserError: the environment cannot be made.
    """
    protocol = self.protocol
    if 'dmlab' in protocol:  # Only an episode needs the data set, so export.py works without it.
      protocol = protocol | {'dmlab': protocol['dmlab'] | {'dataset_path': dmlab.DUMMY_DATASET}}
    with lone_environment.start(self.levels[0], 0, protocol, self.timeout_seconds) as environment:
      its = environment.specification
    observation = {name: tf.TensorSpec(shape, dtype, name) for name, (dtype, shape) in its.observation.items()}
    return agent_lib.EnvironmentSpec(its.num_actions, observation, self.levels, its.frame_stacks)


def read(logdir: str, agent: str = '', **given: str) -> StoredRun:
  """Reads the settings of a run. Those of the machine that trained it are not used.

  Args:
    logdir: the run directory.
    agent: 'module:NAME' of the run's agent if it is not one of this project's.
    **given: as for `_stored_run`.
  Raises:
    errors.UserError: there is no run, its settings are damaged, or its agent is not known or not the given one.
  """
  stored = run_directory.read_config(logdir)
  return _stored_run(stored.get('agent'), stored['flags'], agent, run_directory.path(logdir, run_directory.CONFIG),
                     **given)


def _stored_run(name: str | None, flags: dict[str, Any], agent: str, file: str, **given: str) -> StoredRun:
  """Returns the settings of a run for this machine.

  Args:
    name: the name of its agent's definition.
    flags: the settings that were stored.
    agent: 'module:NAME' of the agent if it is not one of this project's.
    file: where they were stored, for messages.
    **given: settings of the protocol for this machine, '' for none. A protocol without such a setting ignores it.
  Raises:
    errors.UserError: a setting has a value that it cannot have, or the agent is not known or not the given one.
  """
  candidates = [agents.find(agent)] if agent else [
      preset for preset in agents.PRESETS.values() if preset.agent == agents.AGENTS.get(str(name))]
  if not candidates:
    raise errors.UserError(f'{file}: the agent {name!r} is not one of this project: give --agent=module:NAME, or in '
                           "Python agent='module:NAME'")
  # Several suites may have this agent. The run's suite is the one whose protocol's settings were stored, except perhaps
  # those of later versions.
  preset = max(candidates, key=lambda candidate: len(
      {field.name for field in dataclasses.fields(candidate.protocol)} & flags.keys()))
  definition = python_path.load(preset.agent)
  if name and name != definition.name:
    raise errors.UserError(f'--agent={agent}: {file} has another agent, {settings_lib.shown(name)}')
  config = run_flags.stored_config(definition.config, flags, file)
  levels = registry.expand(config.level_name)
  protocol = run_flags.stored_config(type(preset.protocol), flags, file)
  # A file of export.py has no settings of the run.
  run = run_flags.stored_config(run_config.RunConfig, dataclasses.asdict(preset.run) | flags, file)
  portable = settings_lib.portable(protocol)
  here = _on_this_machine(protocol, portable, given)
  return StoredRun(definition, config, here.environments(levels, training=False), dataclasses.asdict(portable),
                   tuple(map(registry.test_level, levels)), run.environment_timeout_seconds)


def _on_this_machine(protocol: Any, portable: Any, given: dict[str, str]) -> Any:
  """Returns the portable settings of a protocol with those that are given, and with its data set if this is here."""
  folder = getattr(protocol, 'dataset_path', '')
  with contextlib.suppress(errors.UserError):  # A path of another machine may be impossible on this one.
    if folder and os.path.isdir(run_flags.user_path(folder)):
      portable = dataclasses.replace(portable, dataset_path=folder)
  names = {field.name for field in dataclasses.fields(portable)}
  changed = dataclasses.replace(portable, **{name: value for name, value in given.items() if value and name in names})
  with errors.of_user(ValueError):
    settings_lib.check(changed)
  return changed


def load(logdir: str, selection: str = '', epsilon: float = 0.001, seed: int = 0, agent: str = '',
         dataset_path: str = '', renderer: str = '') -> Policy:
  """Loads the agent of a run's newest checkpoint, or of a file of export.py.

  Settings of the machine that trained it, such as --level_cache, are not used.

  Args:
    logdir: the run directory; or the file, which ends in .npz.
    selection: how actions are selected, as --test_policy: 'sampled', 'greedy' or 'epsilon'. Default: as evaluations do.
    epsilon: probability of a random action with 'epsilon'.
    seed: random seed of the actions.
    agent: 'module:NAME' of the run's agent if it is not one of this project's.
    dataset_path: the images for two levels of DeepMind Lab, as the flag --dataset_path. Default: those of the training
      if they are still there.
    renderer: of DeepMind Lab, 'software' or 'hardware'. Default: 'software'.
  Raises:
    errors.UserError: there is no run, no checkpoint or no file, it is damaged, or the agent cannot select actions in
      this way, or its environment cannot be made. Messages name the flags.
  """
  with contextlib.suppress(RuntimeError):  # It is too late if the caller has used TensorFlow before.
    devices.grow_memory()
  logdir, given = run_flags.user_path(logdir), {'dataset_path': dataset_path, 'renderer': renderer}
  if logdir.endswith(agent_file.ENDING):
    stored = agent_file.read(logdir)
    run = _stored_run(stored.manifest.agent, stored.manifest.flags, agent, logdir, **given)
  else:
    run = read(logdir, agent, **given)
    stored = evaluation.load(logdir, logdir)
  how = run_config.RunConfig(test_policy=selection, test_epsilon=epsilon)
  with errors.of_user(ValueError):
    settings_lib.check(how)
  return Policy(run, stored, evaluation.selection_of(run.agent, how), seed)
