"""A toy agent for tests of the runtime. It differs from IMPALA in everything that the runtime leaves to agents.

It does Q-learning with a uniform replay of unrolls, an epsilon per actor, a target network that is saved but not
published, and greedy evaluation. Priorities are fed back to the replay, which checks that they belong to its items.

  python -m scalable_agents.agents.train --agent=scalable_agents.tests.agents.toy_q:TOY_Q --logdir=runs/toy
"""

import collections
import dataclasses
import os
import threading
from typing import NamedTuple

import numpy as np
import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import experience
from scalable_agents.learner import learner_step
from scalable_agents.learner import optimizers
from scalable_agents.learner import q_learning
from scalable_agents.networks import networks
from scalable_agents.networks import torsos
from scalable_agents.records import runtime_config
from scalable_agents.records.settings import setting
from scalable_agents.training import definition
from scalable_agents.training import sweep


@dataclasses.dataclass(frozen=True)
class ToyConfig(runtime_config.RuntimeConfig):
  """The hyper-parameters."""
  level_name: str = setting('catch', 'What to play.')
  total_environment_frames: int = setting(30_000, 'Environment frames to train for.', at_least=1)
  unroll_length: int = setting(8, 'Agent steps per unroll.', at_least=1)
  batch_size: int = setting(16, 'Unrolls per update.', at_least=1)
  new_unrolls: int = setting(4, 'New unrolls that come into the replay before each update.', at_least=1)
  replay_capacity: int = setting(500, 'Unrolls in the replay.', at_least=1)
  discount: float = setting(0.9, 'Discount per agent step.', at_least=0, at_most=1)
  target_update_interval: int = setting(20, 'Updates between two copies of the network to the target.', at_least=1)
  learning_rate: float = setting(1e-3, 'Learning rate.', at_least=0)
  clip_gradient_norm: float = setting(10., 'Largest norm of the gradient.', at_least=0)


class QNetwork(snt.Module):
  """Pixels [N, H, W, C] -> action values [N, A]."""

  def __init__(self, num_actions, seed, name):
    super().__init__(name)
    seeds = networks.Seeds(seed)
    self._torso, self._head = torsos.ShallowTorso(seeds), networks.Linear(num_actions, seeds, 'values')

  def __call__(self, pixels):
    return self._head(self._torso(pixels))


class Agent(snt.Module):
  """The online network, which learns and acts, and the target network, an older copy of it."""

  def __init__(self, spec, config):
    super().__init__('toy_q')
    if 'pixels' not in spec.observation:
      raise ValueError("observation_spec: want 'pixels'")
    self.online, self.target = (QNetwork(spec.num_actions, config.seed, name) for name in ('online', 'target'))
    for network in (self.online, self.target):
      network(tf.zeros([1, *spec.observation['pixels'].shape], tf.uint8))
    self.acting_variables = list(self.online.trainable_variables)

  @property
  def trainable_variables(self):
    return self.online.trainable_variables

  initial_state = lambda self, batch_size: ()
  prepare = lambda self, observation: observation

  def step(self, inputs, agent_state, seed, selection=acting.Selection()):
    values = self.online(inputs.observation['pixels'])
    epsilon = acting.ladder(inputs.actor_place, 0.4, 7)
    return acting.ActionOutput(acting.select_by_value(values, selection, epsilon, seed)), agent_state


class Feedback(NamedTuple):
  """The feedback on a batch. The replay checks with stream_id and index that it belongs to the same items."""
  priority: tf.Tensor  # [B] float32, the mean absolute TD error.
  stream_id: tf.Tensor   # [B] int64.
  index: tf.Tensor     # [B].


def loss(agent, batch, config):
  """Half the squared error of one-step Q-learning, summed over time and batch."""
  unroll, environment = batch.unroll, batch.unroll.environment_output
  apply = lambda network: snt.BatchApply(network)(environment.observation['pixels'])  # [T+1, B, A].
  values = tf.gather(apply(agent.online)[:-1], unroll.agent_output.action[1:], batch_dims=2)
  best = tf.reduce_max(apply(agent.target)[1:], axis=-1)
  td_errors = tf.stop_gradient(environment.reward[1:] + config.discount * environment.discount[1:] * best) - values
  total = tf.nn.l2_loss(td_errors)
  priority = tf.reduce_mean(tf.abs(td_errors), axis=0)
  return learner_step.Loss(total, {'loss/values': total}, {'mean_priority': tf.reduce_mean(priority)},
                           Feedback(priority, unroll.stream_id, unroll.index), gathered=unroll.level_id)


class Replay(experience.Experience):
  """Keeps the most recent unrolls and samples them uniformly."""
  is_required = True

  def __init__(self, intake, unused_spec, config, seed, unused_parameters, unused_make_agent):
    super().__init__(intake, config.new_unrolls)
    self._capacity, self._batch_size = config.replay_capacity, config.batch_size
    self._random, self._lock = np.random.RandomState(seed), threading.Lock()
    self._items, self._priorities, self._next_key = collections.OrderedDict(), {}, 0  # By key: list of arrays, number.
    self._axes = [int(has_time) for has_time in tf.nest.flatten(unroll_lib.has_time(intake.unroll_spec))]

  def take_batch(self):
    new, arrived = self._intake.take_batch(self.unrolls_per_batch)
    components = tf.nest.flatten(new)
    *sampled, keys = tf.numpy_function(self._exchange, components, [c.dtype for c in components] + [tf.int64])
    for component, axis, was in zip(sampled, self._axes, components):
      component.set_shape([*was.shape[:axis], self._batch_size, *was.shape[axis + 1:]])
    keys.set_shape([self._batch_size])
    return learner_step.Batch(tf.nest.pack_sequence_as(new, sampled), keys), arrived

  def _exchange(self, *components):
    with self._lock:
      for slot in range(self.unrolls_per_batch):
        self._items[self._next_key] = [np.take(c, slot, axis) for c, axis in zip(components, self._axes)]
        self._next_key += 1
      while len(self._items) > self._capacity:
        self._priorities.pop(self._items.popitem(last=False)[0], None)
      keys = self._random.choice(list(self._items), self._batch_size)
      items = [self._items[key] for key in keys]
    return *(np.stack(those, axis) for *those, axis in zip(*items, self._axes)), keys

  def update(self, sample, feedback):
    with self._lock:
      for key, priority, stream_id, index in zip(sample.numpy(), *(values.numpy() for values in feedback)):
        if key in self._items:  # Otherwise a newer unroll has replaced it.
          level_id, actor_id, its_stream_id, its_index, *_ = self._items[key]
          assert (stream_id, index) == (its_stream_id, its_index), (key, level_id, actor_id)
          self._priorities[key] = priority

  def metrics(self):
    with self._lock:
      return self._intake.metrics() | {'replay_size': len(self._items), 'replay_priorities': len(self._priorities)}

  def save(self, folder):
    with self._lock:
      if not self._items:
        return
      columns = [np.stack(column) for column in zip(*self._items.values())]
      np.savez(os.path.join(folder, 'items.npz'), *columns, keys=list(self._items))

  def restore(self, folder):
    with np.load(os.path.join(folder, 'items.npz')) as stored:
      columns = [stored[f'arr_{number}'] for number in range(len(self._axes))]
      self._items.update(zip(stored['keys'].tolist(), map(list, zip(*columns))))
      self._next_key = max(self._items, default=-1) + 1


TOY_Q = definition.Definition(
    name='toy_q',
    config=ToyConfig,
    network=Agent,
    loss=loss,
    make_optimizer=lambda variables, config: optimizers.Adam(variables, 0.9, 0.999, 1e-5),
    after_update=q_learning.update_target,
    make_experience=Replay,
    sweep=sweep.Sweep({'learning_rate': sweep.LogUniform(1e-4, 1e-2)}, num_samples=4),
)
