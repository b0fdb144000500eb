"""Random unrolls for the tests of agents."""

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import impala
from scalable_agents.experience import intake
from scalable_agents.learner import learner_step
from scalable_agents.training import learner_group

NUM_ACTIONS = 5
VECTOR = {'vector': tf.TensorSpec([4], tf.float32)}
INSTRUCTED = VECTOR | {'instruction': tf.TensorSpec([24], tf.uint8)}
PIXELS = {'pixels': tf.TensorSpec([36, 36, 2], tf.uint8)}
LEVELS = ('catch',)


def environment_spec(observation=None, num_actions=NUM_ACTIONS, levels=LEVELS):
  """Returns the specification of environments that fit these unrolls."""
  return agent_lib.EnvironmentSpec(num_actions, observation or VECTOR, levels)


def update(learner, unroll, frames_per_step=4):
  """Makes an update of a single learner as the trainer does. Returns the metrics by name."""
  arrived = intake.Arrived(tf.size(unroll.environment_output.reward[1:], tf.int64) * frames_per_step,
                           intake.Episodes(*[tf.constant([intake.NO_LEVEL])] * 3), unroll.actor_id,
                           unroll.parameter_version[1:])
  together = learner_group.LearnerGroup(None, '/CPU:0')
  batch = learner.prepare(learner_step.Batch(unroll))
  return learner.read(together.step(learner, [batch], [arrived], False).metrics)


def random_unroll(agent, spec=None, steps=6, batch=3, seed=0, level_ids=(0,)):
  """Returns a batch of random unrolls, with ends of episodes and lost lives.

  The level ids are repeated until there is one for each unroll.
  """
  random = np.random.RandomState(seed)
  shape = (steps + 1, batch)
  done = random.rand(*shape) < 0.2
  observation = {}
  for name, one in (spec or VECTOR).items():
    if name == 'pixels':
      drawn = random.randint(256, size=(*shape, *one.shape))
    elif name == 'instruction':
      texts = np.array([b'', b'cake', b'pick the red balloon'], f'S{one.shape[0]}')
      drawn = random.choice(texts, size=(*shape, 1)).view(np.uint8)
    else:
      drawn = random.randn(*shape, *one.shape)
    observation[name] = drawn.astype(one.dtype.as_numpy_dtype)
  unroll = unroll_lib.Unroll(
      level_id=np.resize(np.int32(level_ids), batch),
      actor_id=np.arange(batch, dtype=np.int32),
      stream_id=np.arange(batch, dtype=np.int64),
      index=np.zeros(batch, np.int64),
      agent_state=tf.nest.map_structure(
          lambda x: random.randn(*x.shape).astype(x.dtype.as_numpy_dtype), agent.initial_state(batch)),
      earlier_frames={},
      environment_output=unroll_lib.EnvironmentOutput(
          reward=2.0 * random.randn(*shape).astype(np.float32),
          discount=(~done & (random.rand(*shape) > 0.1)).astype(np.float32),
          done=done,
          episode_return=np.zeros(shape, np.float32),
          episode_length=np.zeros(shape, np.int32),
          observation=observation),
      agent_output=impala.BehaviourOutput(
          action=random.randint(NUM_ACTIONS, size=shape).astype(np.int32),
          policy_logits=random.randn(*shape, NUM_ACTIONS).astype(np.float32)),
      parameter_version=np.zeros(shape, np.int64))
  return tf.nest.map_structure(tf.convert_to_tensor, unroll)


def forward(agent, unroll):
  """Returns the outputs of impala.Agent for all rows of a batch of unrolls, and its state after them."""
  inputs = acting.inputs_of(unroll)
  return agent.unroll(inputs._replace(observation=agent.prepare(inputs.observation)), unroll.agent_state)


def part(unroll, index, batch):
  """Returns the unrolls of learner `index`, where each learner has `batch` of them."""
  rows = slice(index * batch, (index + 1) * batch)
  return tf.nest.map_structure(lambda x, has_time: x[:, rows] if has_time else x[rows], unroll,
                               unroll_lib.has_time(unroll))


def one(unroll, index):
  """Returns one unroll of a batch, without the batch dimension."""
  return tf.nest.map_structure(lambda x, has_time: x[:, index] if has_time else x[index], unroll,
                               unroll_lib.has_time(unroll))
