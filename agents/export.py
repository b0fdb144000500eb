"""Exports the agent of a run: as a TensorFlow SavedModel, which acts without this project, or as a small file.

  scalable-agents export --logdir=runs/pong --output=exported/pong
  scalable-agents export --logdir=runs/pong --output=impala_pong.npz

The file (agents/agent_file.py) has the weights that act and a manifest. play.py shows it, and
`scalable_agents.load` loads it. The SavedModel has two functions for B environments at once; metadata.json beside it
says what they take:

  initial_state(batch_size)                                            -> state
  step(observation, last_action, reward, done, seed, state)            -> {'action': [B] int32, 'state': state}
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import contextlib
import dataclasses
import os
import shlex
import shutil
from typing import Any

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import agent_file
from scalable_agents.agents import python_api
from scalable_agents.cluster import cluster_config
from scalable_agents.population import population_config
from scalable_agents.processes import run_flags
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import json_text
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import run_config

METADATA = 'metadata.json'


@dataclasses.dataclass(frozen=True)
class ExportConfig:
  """The flags."""

  logdir: str = setting('', 'The run directory. Its newest checkpoint is exported.', required='a folder')
  output: str = setting('', 'The folder of the SavedModel to make; or the file to write, which ends in .npz.',
                        required='a folder or a file that ends in .npz')
  precision: str = setting('float16', 'Type of the weights in a .npz file: float16; or int8, half as large and less '
                           'exact. Biases are always float16.', choices=agent_file.PRECISIONS)
  test_policy: str = setting('', 'In a SavedModel, how actions are selected: sampled, greedy or epsilon. Default: as '
                             'in evaluations.', choices=run_config.TEST_POLICIES)
  test_epsilon: float = setting(0.001, 'With epsilon: the probability of a random action.', at_least=0, at_most=1)
  agent: str = setting('', "module:NAME of the run's agent, if it is not one of this project's.")


def validate(config: ExportConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  if config.output.endswith(agent_file.ENDING):
    names, wanted = ('test_policy', 'test_epsilon'), 'without .npz: only a SavedModel selects actions'
  else:
    names, wanted = ('precision',), 'that ends in .npz: the weights of a SavedModel are float32'
  for name in names:
    if (value := getattr(config, name)) != getattr(ExportConfig, name):
      raise ValueError(f'--{name}={value}: want an --output {wanted}')


class Exported(tf.Module):
  """The agent with its two functions. All tensors have a batch dimension of any size."""

  def __init__(self, policy: python_api.Policy):
    super().__init__('exported')
    self._agent: Any = policy.agent
    state = self._agent.initial_state(1)

    def batched(shape, dtype, name):
      return tf.TensorSpec([None, *shape], dtype, name)

    inputs = {
        'observation': {name: batched(spec.shape, spec.dtype, name) for name, spec in policy.spec.observation.items()},
        'last_action': batched([], tf.int32, 'last_action'), 'reward': batched([], tf.float32, 'reward'),
        'done': batched([], tf.bool, 'done'), 'seed': tf.TensorSpec([2], tf.int64, 'seed'),
        'state': tf.nest.map_structure(lambda tensor: batched(tensor.shape[1:], tensor.dtype, None), state)}
    self.step = tf.function(self._step_of(policy.selection), autograph=False, input_signature=list(inputs.values()))
    self.initial_state = tf.function(
        self._agent.initial_state, autograph=False, input_signature=[tf.TensorSpec([], tf.int32, 'batch_size')])

  def _step_of(self, selection):
    def step(observation, last_action, reward, done, seed, state):
      inputs = acting.lone_inputs(observation, last_action, reward, done)
      output, state = self._agent.step(inputs, state, seed, selection)
      return {'action': output.action, 'state': state}
    return step


def export(policy: python_api.Policy, folder: str) -> None:
  """Writes the SavedModel and metadata.json.

  Args:
    policy: from `python_api.load`.
    folder: the folder to make.
  Raises:
    errors.UserError: the folder exists already, or cannot be written. Then no folder stays.
  """
  if os.path.exists(folder):
    raise errors.UserError(f'--output={folder}: it is there already: choose another folder, or remove it')
  metadata = {
      'levels': policy.levels, 'num_actions': policy.spec.num_actions, 'environment_frames': policy.environment_frames,
      'actions': policy.selection._asdict(),
      'observation': {name: {'shape': spec.shape.as_list(), 'dtype': spec.dtype.name}
                      for name, spec in policy.spec.observation.items()},
      'frame_stacks': dict(policy.spec.frame_stacks)}
  with contextlib.ExitStack() as on_error:
    on_error.callback(shutil.rmtree, folder, ignore_errors=True)
    try:
      tf.saved_model.save(Exported(policy), folder)
    except (OSError, tf.errors.OpError) as error:
      raise errors.UserError(f'--output={folder}: {checkpoint.explain(error)}') from error
    run_directory.write_json(os.path.join(folder, METADATA), metadata)
    on_error.pop_all()


def export_file(policy: python_api.Policy, logdir: str, path: str, precision: str) -> str:
  """Writes the file; see agent_file.write.

  Args:
    policy: from `python_api.load`.
    logdir: its run directory.
    path: the file. An existing file is replaced.
    precision: one of agent_file.PRECISIONS.
  Returns:
    The SHA-256 of the file.
  Raises:
    errors.UserError: the weights are not finite in float16.
    run_directory.RunDirectoryError: a file of the run is damaged, or the file cannot be written.
  """
  stored = run_directory.read_config(logdir)
  local = {field.name for part in (run_config.RunConfig, cluster_config.ClusterConfig,
                                   population_config.PopulationConfig) for field in dataclasses.fields(part)}
  flags = {name: value for name, value in stored['flags'].items() if name not in local} | policy.portable_settings
  # The command must not name a data set or a level cache of this machine, either.
  of_this_machine = [name for name in flags if flags[name] != stored['flags'].get(name)]
  manifest = agent_file.Manifest(
      stored.get('agent', ''), flags, stored.get('versions') or {},
      shlex.join(run_directory.command_of(stored, without=of_this_machine)), policy.environment_frames,
      policy.learner_steps, _evaluation(policy, logdir))
  return agent_file.write(path, manifest, policy.agent.acting_variables, precision)


def _evaluation(policy, logdir):
  """Returns the results of evaluation.json, or None if there are none of this checkpoint."""
  def parse(summary):
    protocol = json_text.field(summary, 'protocol', dict)
    if json_text.field(protocol, 'environment_frames', int) != policy.environment_frames:
      return None
    actions = json_text.field(protocol, 'actions', str)
    return {level: json_text.numbers(result, ('mean', 'median')) | {
                'episodes': len(json_text.field(result, 'episode_returns', list)), 'actions': actions}
            for level, result in json_text.field(summary, 'levels', dict).items()}

  return run_directory.read_json(run_directory.path(logdir, run_directory.EVALUATION), parse)


def main():
  """Exports the agent, and prints where it is."""
  config = run_flags.config_from_flags(ExportConfig, validate)
  policy = python_api.load(config.logdir, config.test_policy, config.test_epsilon, agent=config.agent)
  output = run_flags.user_path(config.output)
  size = ''
  if output.endswith(agent_file.ENDING):
    sha256 = export_file(policy, run_flags.user_path(config.logdir), output, config.precision)
    size = f', {os.path.getsize(output):,} bytes, SHA-256 {sha256}'
  else:
    export(policy, output)
  print(f'wrote {output}: the agent of {config.logdir} after {policy.environment_frames:,} frames{size}')


if __name__ == '__main__':
  run_flags.define(ExportConfig())
  run_flags.run_main(main)
