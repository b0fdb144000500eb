"""Lives of actors for tests of replays: every row says from which life it is and which row of it."""

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import impala
from scalable_agents.tests.training import stacked_environment

NUM_ROWS = 400
FRAME_STACKS = {'pixels': stacked_environment.STACK}


class Life:
  """All rows of a life. Its episodes have 1 to 9 steps.

  Attributes:
    id: the life's id.
    rows: the components of an Unroll that have a time dimension, [NUM_ROWS, ...]. 'record' is the life's id and the
      number of the row. 'pixels' are stacked frames, see stacked_environment.frame. The version is the row's number.
  """

  def __init__(self, life_id: int, longest: int = 9):
    """Makes the rows. `longest` is the largest number of steps of an episode."""
    random = np.random.RandomState(life_id)
    self.id = life_id
    starts = np.cumsum([0, *random.randint(1, longest + 1, size=NUM_ROWS)])
    number = np.arange(NUM_ROWS)
    done = np.isin(number, starts)
    episode = np.cumsum(done) - 1
    step = number - starts[episode]
    frames = [[stacked_environment.frame(life_id, e, s - age) if age <= s else np.zeros([2, 2], np.uint8)
               for age in reversed(range(stacked_environment.STACK))] for e, s in zip(episode, step)]
    observation = {'pixels': np.stack(frames).transpose(0, 2, 3, 1), 'record': np.stack([np.full_like(
        number, life_id), number], axis=1), 'vector': np.float32(random.randn(NUM_ROWS, 4))}
    self.rows = dict(
        environment_output=unroll_lib.EnvironmentOutput(
            np.float32(life_id + number / 1024), np.float32(~done & (random.uniform(size=NUM_ROWS) > 0.1)), done,
            np.float32(number), np.int32(number), observation),
        agent_output=impala.BehaviourOutput(np.int32(number % 5), np.float32(random.randn(NUM_ROWS, 5))),
        parameter_version=number)

  def unroll(self, index: int, length: int, state=()) -> unroll_lib.Unroll:
    """Returns an unroll of the life, without a batch dimension."""
    part = slice(index * length, (index + 1) * length + 1)
    return unroll_lib.Unroll(
        level_id=np.int32(self.id % 2), actor_id=np.int32(self.id % 7), life_id=np.int64(self.id),
        index=np.int64(index), agent_state=state, **tf.nest.map_structure(lambda values: values[part], self.rows))

  def spec(self, length: int, state=()) -> unroll_lib.Unroll:
    """Returns the tf.TensorSpec of its unrolls."""
    return tf.nest.map_structure(
        lambda x: tf.TensorSpec(np.shape(x), np.asarray(x).dtype), self.unroll(0, length, state))


def batch(unrolls) -> unroll_lib.Unroll:
  """Returns unrolls as one batch, time-major."""
  return tf.nest.map_structure(lambda has_time, *values: tf.constant(np.stack(values, axis=1 if has_time else 0)),
                               unroll_lib.has_time(unrolls[0]), *unrolls)


def check(unroll, b: int, life: Life, first_row: int, num_rows: int):
  """Asserts that unroll b of a batch is a part of a life: `num_rows` rows, and then rows of zeros.

  The versions of the last rows are not checked; stored_unrolls_test.py does.
  """
  part = slice(first_row, first_row + num_rows)
  for name, rows in life.rows.items():
    for got, want in zip(tf.nest.flatten(getattr(unroll, name)), tf.nest.flatten(rows), strict=True):
      np.testing.assert_array_equal(got[:num_rows, b], want[part], name)
      if name != 'parameter_version':
        np.testing.assert_array_equal(got[num_rows:, b], np.zeros_like(got[num_rows:, b]), name)
  np.testing.assert_array_equal([unroll.level_id[b], unroll.actor_id[b], unroll.life_id[b]],
                                [life.id % 2, life.id % 7, life.id])


def first_row(unroll, b: int) -> int:
  """Returns the number of row 0 of unroll b of a batch, as its observation says."""
  return int(unroll.environment_output.observation['record'][0, b, 1])
