"""Random unrolls for the tests of agents."""

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib

NUM_ACTIONS = 5
VECTOR = {'vector': tf.TensorSpec([4], tf.float32)}
INSTRUCTED = VECTOR | {'instruction': tf.TensorSpec([24], tf.uint8)}
PIXELS = {'pixels': tf.TensorSpec([36, 36, 2], tf.uint8)}
_ALONG_TIME = ('environment_output', 'agent_output', 'parameter_version')  # Their batch dimension is the second.


def random_unroll(agent, spec=None, steps=6, batch=3, seed=0):
  """A batch of random unrolls, episode ends and lost lives among them."""
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
      level_id=np.zeros(batch, np.int32),
      actor_id=np.arange(batch, dtype=np.int32),
      life_id=np.arange(batch, dtype=np.int64),
      index=np.zeros(batch, np.int64),
      agent_state=tf.nest.map_structure(
          lambda x: random.randn(*x.shape).astype(np.float32), agent.initial_state(batch)),
      environment_output=unroll_lib.EnvironmentOutput(
          reward=2.0 * random.randn(*shape).astype(np.float32),
          discount=(~done & (random.rand(*shape) > 0.1)).astype(np.float32),
          done=done,
          episode_return=np.zeros(shape, np.float32),
          episode_length=np.zeros(shape, np.int32),
          observation=observation),
      agent_output=unroll_lib.AgentOutput(
          action=random.randint(NUM_ACTIONS, size=shape).astype(np.int32),
          policy_logits=random.randn(*shape, NUM_ACTIONS).astype(np.float32),
          baseline=random.randn(*shape).astype(np.float32)),
      parameter_version=np.zeros(shape, np.int64))
  return tf.nest.map_structure(tf.convert_to_tensor, unroll)


def part(unroll, index, batch):
  """The unrolls of learner `index` of several, each of which has `batch` of them."""
  rows = slice(index * batch, (index + 1) * batch)
  parts = {name: tf.nest.map_structure(lambda x: x[:, rows] if name in _ALONG_TIME else x[rows], nest)
           for name, nest in unroll._asdict().items()}
  return type(unroll)(**parts)
