"""Helpers for tests of shared replays: streams whose rows say where they are from, agents, and replay jobs."""

import contextlib
import os
import re
import tempfile
from typing import Any, NamedTuple
from unittest import mock

from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import laser_replay
from scalable_agents.experience import shared_replay
from scalable_agents.learner import frame_stacks
from scalable_agents.replay import episode_replay
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.experience import forgetful_replay
from scalable_agents.tests.training import training

LENGTH = 4      # Agent steps of an unroll.
CAPACITY = 400  # Agent steps of the replay.
SETTINGS = {'levels': ['catch'], 'num_actions': 3}
_STACK, _STREAM_ROWS = 4, 60_000


class Row(NamedTuple):
  """A row that says where it is from."""
  frame: Any   # [2, 1] uint8, stacked from 4 frames.
  done: Any    # [] bool.
  record: Any  # [2] int64, the stream's id and the number of the row in the stream. Observed, like the frame.


SPEC = Row(tf.TensorSpec([2, 1], tf.uint8), tf.TensorSpec([], tf.bool), tf.TensorSpec([2], tf.int64))
STACKS = Row(_STACK, 1, 1)


class Stream:
  """All rows of a stream, as its environment gave them."""

  def __init__(self, stream_id: int, episode_steps: int):
    """Every episode has so many steps."""
    self.id, self.steps = stream_id, episode_steps
    number = np.arange(_STREAM_ROWS)
    self._stacks = np.zeros([_STREAM_ROWS, 2, _STACK], np.uint8)
    for age in range(_STACK):
      frames = np.random.RandomState(stream_id).randint(1, 256, size=[_STREAM_ROWS, 2])
      has_frame = number % episode_steps >= age
      self._stacks[has_frame, :, _STACK - 1 - age] = frames[number[has_frame] - age]
    self._rows = Row(self._stacks[..., -1:], number % episode_steps == 0,
                     np.stack([np.full_like(number, stream_id), number], axis=1))

  def unroll(self, index: int) -> Row:
    """Returns the rows of an unroll, [T+1, 1, ...]."""
    return tf.nest.map_structure(
        lambda values: values[index * LENGTH:(index + 1) * LENGTH + 1, np.newaxis], self._rows)

  def stack(self, row: int) -> np.ndarray:
    """Returns the stacked frame of a row, [2, 4]."""
    return self._stacks[row]


def check(replayed: episode_replay.Replayed, i: int, streams: dict[int, Stream]):
  """Asserts that unroll i goes through episodes of these streams, row by row, with all stacks."""
  records = replayed.rows.record[:, i].tolist()
  stacks = frame_stacks.stack(replayed.rows.frame, replayed.earlier[0], replayed.rows.done).numpy()
  stream, row = streams[records[0][0]], records[0][1]
  assert (replayed.stream_id[i], replayed.stream_row[i]) == (stream.id, row)
  for t, record in enumerate(records):
    row += t > 0
    ends = row % stream.steps == 0
    assert replayed.rows.done[t, i] == ends
    if t and ends:  # Another episode begins.
      stream, row = streams[record[0]], record[1]
      assert row % stream.steps == 0, (row, stream.steps)
    assert record == [stream.id, row], (record, stream.id, row)
    np.testing.assert_array_equal(stacks[t, i], stream.stack(row))
  assert replayed.next_step[i] == row % stream.steps


def _are_possible(index, rows):
  """A check of unrolls: the ids of streams are not negative."""
  return (index >= 0) & tf.reduce_all(rows.record >= 0, axis=[0, 2])


class Agent:
  """What an agent does with a shared replay: it inserts streams, and has replayers."""

  def __init__(self, address: str, num_replayers: int = 8, capacity: int = CAPACITY, settings=None,
               tolerance: int = 1 << 30):
    """Joins the replay at HOST:PORT."""
    self.replay = shared_replay.SharedReplay(
        address, SPEC, LENGTH, capacity, done=lambda rows: rows.done, observation=_observation, frame_stacks=STACKS,
        settings=settings or SETTINGS, tolerance=tolerance, check=_are_possible)
    self._next = tf.function(self.replay.next, autograph=False)
    self.key, self.step = np.full([num_replayers], -1), np.zeros([num_replayers], np.int64)
    self.inserted = 0  # Unrolls.

  def insert(self, stream: Stream, index: int):
    """Inserts an unroll of a stream."""
    self._insert(*tf.nest.map_structure(tf.constant, (np.array([stream.id]), np.array([index]), stream.unroll(index))))
    self.inserted += 1

  @tf.function(autograph=False)
  def _insert(self, stream_id, index, rows):
    self.replay.insert(stream_id, index, rows)  # Returns an operation.

  def next(self, seed: int) -> episode_replay.Replayed:
    """Returns the next unroll of each replayer, as NumPy arrays."""
    replayed = self._next(*map(tf.constant, (self.key, self.step, np.int64(seed))))
    replayed = tf.nest.map_structure(lambda values: values.numpy(), replayed)
    self.key, self.step = replayed.key, replayed.next_step
    return replayed


def own_replay() -> episode_replay.EpisodeReplay:
  """Makes a replay in this process, of the same kind."""
  return episode_replay.EpisodeReplay(
      SPEC, LENGTH, CAPACITY, done=lambda rows: rows.done, observation=_observation, frame_stacks=STACKS)


def restored(path: str) -> episode_replay.EpisodeReplay:
  """Makes a replay in this process with what a replay job saved. The rows of a job have no names."""
  replay = episode_replay.EpisodeReplay(
      list(SPEC), LENGTH, CAPACITY, done=lambda rows: rows[1], observation=lambda rows: (rows[0], rows[2]),
      frame_stacks=list(STACKS))
  replay.restore(path)
  return replay


def _observation(rows):
  return rows.frame, rows.record


@contextlib.contextmanager
def folder():
  """Yields the path of a folder for a replay job. The folder is not made yet."""
  with tempfile.TemporaryDirectory() as parent:
    yield os.path.join(parent, 'replay')


def job(port: int, logdir: str, *flags: str, program: str = laser_replay.__name__) -> training.Training:
  """Starts a replay job."""
  return training.Training(logdir, f'--shared_replay=localhost:{port}', *flags, program=program)


def job_that_forgets(port: int, logdir: str) -> training.Training:
  """Starts a replay job that forgets agents after half a second without a report."""
  with mock.patch.dict(os.environ, {forgetful_replay.FORGOTTEN_SECONDS: '0.5'}):
    return job(port, logdir, program=forgetful_replay.__name__)


class TestCase(parameterized.TestCase):
  """Makes agents that are quick to reconnect and to complain, and closes them."""

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.multiple(
        shared_replay, _ANSWER_SECONDS=60., _RETRY_SECONDS=0.1, _FAREWELL_SECONDS=0.1, _FIRST_MESSAGE_SECONDS=0.5,
        _LATER_MESSAGES_SECONDS=0.5))

  def agent(self, port: int, **kwargs) -> Agent:
    """Returns an agent. The end of the test closes it."""
    agent = Agent(f'localhost:{port}', **kwargs)
    self.addCleanup(agent.replay.close)
    return agent

  def wait_until_said(self, agent: Agent, pattern: str):
    """Waits until the agent has a message for the user."""
    waiting.wait_until(lambda: any(re.fullmatch(pattern, line) for line in agent.replay.warnings()))


def keep_inserting(agent: Agent, stream: Stream, indices) -> Any:
  """Inserts unrolls of these indices in another thread. Returns what waiting.start does."""
  def run():
    for index in indices:
      agent.insert(stream, index)

  return waiting.start(run)
