"""Exports the agent of a run as a TensorFlow SavedModel, which acts without this project.

  bazel run //agents:export -- --logdir=runs/pong --output=exported/pong

The SavedModel has two functions for B environments at once; metadata.json beside it says what they take:

  initial_state(batch_size)                                            -> state
  step(observation, last_action, reward, done, seed, state)            -> {'action': [B] int32, 'state': state}
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses
import os
from typing import Any

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import python_api
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

METADATA = 'metadata.json'


@dataclasses.dataclass(frozen=True)
class ExportConfig:
  """The flags."""

  logdir: str = setting('', 'The run directory. Its newest checkpoint is exported.')
  output: str = setting('', 'The folder to make.')
  test_policy: str = setting('', 'How actions are selected: sampled, greedy or epsilon. Default: as in evaluations.',
                             choices=('', 'sampled', 'greedy', 'epsilon'))
  test_epsilon: float = setting(0.001, 'With epsilon: the probability of a random action.', at_least=0, at_most=1)
  agent: str = setting('', "module:NAME of the run's agent, if it is not one of this project's.")


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
      batch = tf.shape(done)
      inputs = acting.ActorInput(
          actor_id=tf.range(batch[0]), actor_place=tf.zeros(batch), last_action=last_action, reward=reward,
          discount=1. - tf.cast(done, tf.float32), done=done, observation=observation)
      output, state = self._agent.step(inputs, state, seed, selection)
      return {'action': output.action, 'state': state}
    return step


def export(policy: python_api.Policy, folder: str) -> None:
  """Writes the SavedModel and metadata.json.

  Args:
    policy: from `python_api.load`.
    folder: the folder to make.
  Raises:
    errors.UserError: it is there already, or cannot be written.
  """
  if os.path.exists(folder):
    raise errors.UserError(f'--output={folder}: it is there already: choose another folder, or remove it')
  metadata = {
      'levels': policy.levels, 'num_actions': policy.spec.num_actions, 'environment_frames': policy.environment_frames,
      'actions': policy.selection._asdict(),
      'observation': {name: {'shape': spec.shape.as_list(), 'dtype': spec.dtype.name}
                      for name, spec in policy.spec.observation.items()},
      'frame_stacks': dict(policy.spec.frame_stacks)}
  try:
    tf.saved_model.save(Exported(policy), folder)
  except (OSError, tf.errors.OpError) as error:
    raise errors.UserError(f'--output={folder}: {settings.shown(error)}') from error
  run_directory.write_json(os.path.join(folder, METADATA), metadata)


def _validate(config):
  settings.check(config)
  for name in ('logdir', 'output'):
    if not getattr(config, name):
      raise ValueError(f'--{name}=: want a folder')


def main():
  """Exports and says where to."""
  config = run_flags.config_from_flags(ExportConfig, _validate)
  policy = python_api.load(config.logdir, config.test_policy, config.test_epsilon, agent=config.agent)
  folder = run_flags.user_path(config.output)
  export(policy, folder)
  print(f'wrote {folder}: the agent of {config.logdir} after {policy.environment_frames:,} frames')


if __name__ == '__main__':
  run_flags.define(ExportConfig())
  run_flags.run_main(main)
