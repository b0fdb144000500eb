"""Streams of actors for tests of replays: every row says from which stream it is and which row of it."""

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import impala
from scalable_agents.learner import frame_stacks
from scalable_agents.tests.training import stacked_environment

NUM_ROWS = 400
FRAME_STACKS = {'pixels': stacked_environment.STACK}


class Stream:
  """All rows of a stream. Its episodes have 1 to 9 steps.

  Attributes:
    id: the stream's id.
    rows: the components of an Unroll that have a time dimension, [NUM_ROWS, ...]. 'record' is the stream's id and the
      number of the row. 'pixels' are stacked frames, see stacked_environment.frame, of which unrolls have the newest
      one. The version is the row's number.
  """

  def __init__(self, stream_id: int, longest: int = 9):
    """Makes the rows. `longest` is the largest number of steps of an episode."""
    random = np.random.RandomState(stream_id)
    self.id = stream_id
    starts = np.cumsum([0, *random.randint(1, longest + 1, size=NUM_ROWS)])
    number = np.arange(NUM_ROWS)
    done = np.isin(number, starts)
    episode = np.cumsum(done) - 1
    step = number - starts[episode]
    frames = [[stacked_environment.frame(stream_id, e, s - age) if age <= s else np.zeros([2, 2], np.uint8)
               for age in reversed(range(stacked_environment.STACK))] for e, s in zip(episode, step)]
    observation = {'pixels': np.stack(frames).transpose(0, 2, 3, 1), 'record': np.stack([np.full_like(
        number, stream_id), number], axis=1), 'vector': np.float32(random.randn(NUM_ROWS, 4))}
    self.rows = dict(
        environment_output=unroll_lib.EnvironmentOutput(
            np.float32(stream_id + number / 1024), np.float32(~done & (random.uniform(size=NUM_ROWS) > 0.1)), done,
            np.float32(number), np.int32(number), observation),
        agent_output=impala.BehaviourOutput(np.int32(number % 5), np.float32(random.randn(NUM_ROWS, 5))),
        parameter_version=number)

  def unroll(self, index: int, length: int, state=()) -> unroll_lib.Unroll:
    """Returns an unroll of the stream, without a batch dimension."""
    part = slice(index * length, (index + 1) * length + 1)
    rows = tf.nest.map_structure(lambda values: values[part], self.rows)
    observation = rows['environment_output'].observation
    pixels = observation['pixels']
    observation['pixels'] = pixels[..., -1:]
    return unroll_lib.Unroll(
        level_id=np.int32(self.id % 2), actor_id=np.int32(self.id % 7), stream_id=np.int64(self.id),
        index=np.int64(index), agent_state=state,
        earlier_frames={'pixels': pixels[0, ..., :-1].transpose(2, 0, 1)[..., np.newaxis]}, **rows)

  def spec(self, length: int, state=()) -> unroll_lib.Unroll:
    """Returns the tf.TensorSpec of its unrolls."""
    return tf.nest.map_structure(
        lambda x: tf.TensorSpec(np.shape(x), np.asarray(x).dtype), self.unroll(0, length, state))


def batch(unrolls) -> unroll_lib.Unroll:
  """Returns unrolls as one batch, time-major."""
  return tf.nest.map_structure(lambda has_time, *values: tf.constant(np.stack(values, axis=1 if has_time else 0)),
                               unroll_lib.has_time(unrolls[0]), *unrolls)


def check(unroll, b: int, streams: dict[int, Stream], position: tuple[int, int] | None = None) -> tuple[int, int]:
  """Asserts that unroll b of a batch follows streams row by row. It may go on with an episode of another stream.

  Args:
    unroll: the batch, with level and actor of each row or of each unroll.
    b: the number of the unroll.
    streams: id -> Stream.
    position: the stream, and the row in it, with which the unroll must begin. None: any row.
  Returns:
    The stream and the row with which the next unroll must begin.
  """
  environment = frame_stacks.with_stacks(tf.nest.map_structure(tf.constant, unroll)).environment_output
  records = environment.observation['record'][:, b].numpy().tolist()
  np.testing.assert_array_equal(unroll.stream_id[b], records[0][0])
  of_row = lambda ids, t: ids[b] if np.ndim(ids) == 1 else ids[t, b]
  stream, row = streams[records[0][0]], records[0][1]
  assert position in (None, (stream.id, row)), (position, stream.id, row)
  for t, (seen_stream, seen_row) in enumerate(records):
    row += t > 0
    last, last_row = stream, row  # Of the action and what it earned.
    if t and stream.rows['environment_output'].done[row]:  # The episode ends, and any episode may begin.
      stream, row = streams[seen_stream], seen_row
      assert stream.rows['environment_output'].done[row], (stream.id, row)
    _assert_equal(unroll, t, b, last.rows, last_row)
    for name, frames in stream.rows['environment_output'].observation.items():
      np.testing.assert_array_equal(environment.observation[name][t, b], frames[row], f'{name}, row {t}')
    assert (of_row(unroll.level_id, t), of_row(unroll.actor_id, t)) == (stream.id % 2, last.id % 7)
  return stream.id, row


def _assert_equal(unroll, t, b, rows, number):
  """Asserts that row t of an unroll is this one of a stream, except for its observation."""
  for name, component in rows.items():
    others = lambda values: values._replace(observation=()) if hasattr(values, 'observation') else values
    there = tf.nest.flatten(others(getattr(unroll, name)))
    for got, want in zip(there, tf.nest.flatten(others(component)), strict=True):
      np.testing.assert_array_equal(got[t, b], want[number], f'{name}, row {t}')


def first_row(unroll, b: int) -> int:
  """Returns the number of row 0 of unroll b of a batch, as its observation says."""
  return int(unroll.environment_output.observation['record'][0, b, 1])
