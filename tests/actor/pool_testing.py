"""A pool that plays Diary through real worker processes, and the unrolls that must come out of it.

Whatever happens in a stream of Diary follows from its seed, the policy from the rows that it is given; so every value
of every row can be computed again from the seed, the episode and the step that its observation names.
"""

import contextlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.tests.actor import test_environments
from scalable_agents.tests.actor import waiting

DIARY = 'scalable_agents.tests.actor.test_environments:Diary'


class Output(NamedTuple):
  """What the policy decides, and what it was given to do so: last action, reward, done, state's count, version."""
  action: tf.Tensor  # [n] int32.
  given: tf.Tensor   # [n, 5] float32.


class State(NamedTuple):
  """The policy's recurrent state."""
  count: tf.Tensor  # [n] int64, rows since the last done one, that one included.
  last: dict        # 'row': [n, 2] float32, episode and step of the row before.


def policy(batch, version):
  """Decides for a batch from all that it is given."""
  environment_output, state = batch.environment_output, batch.agent_state
  episode, step = environment_output.observation['record'][:, 1], environment_output.observation['record'][:, 2]
  count = tf.where(environment_output.done, tf.zeros_like(state.count), state.count) + 1
  action = tf.cast((3 * step + episode + count) % test_environments.NUM_ACTIONS, tf.int32)
  given = [batch.last_action, environment_output.reward, environment_output.done, state.count,
           tf.fill(tf.shape(action), version)]
  return (Output(action, tf.stack([tf.cast(x, tf.float32) for x in given], axis=1)),
          State(count, {'row': tf.cast(tf.stack([episode, step], axis=1), tf.float32)}))


class PlayedPool:
  """Workers, their pool and, once started, the policy that acts in it. A context manager."""

  def __init__(self, environments, num_workers, unroll_length=4, timeout_seconds=60., **options):
    """`environments`: for each, arguments of Diary besides its seed, which is its number."""
    self.workers = environment_workers.EnvironmentWorkers(
        DIARY, [dict(arguments, seed=i) for i, arguments in enumerate(environments)], num_workers)
    self.level_ids = [i % 3 for i in range(len(environments))]
    self.reports = []
    self.pool = actor_pool.ActorPool(
        self.workers, unroll_length,
        Output(tf.TensorSpec([], tf.int32), tf.TensorSpec([5], tf.float32)),
        State(tf.TensorSpec([], tf.int64), {'row': tf.TensorSpec([2], tf.float32)}),
        self.level_ids, environment_timeout_seconds=timeout_seconds, report=self.reports.append, **options)
    self._takers = {}
    self._acting = []

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    self.close()

  def start(self, inference_loops=1):
    """Lets the pool play; every third batch is decided by another version of the policy."""
    self.pool.start()

    batches = tf.Variable(3, dtype=tf.int64)

    def act():
      batch = self.pool.next_batch()
      with tf.control_dependencies([batch.id]):
        version = batches.assign_add(1) // 3
      self.pool.complete_batch(batch.id, version, *policy(batch, version))

    for _ in range(inference_loops):
      self._acting.append(waiting.start(actor_pool.endless(act)))
    return self

  def take(self, number):
    """Waits for unrolls. Returns their nest, as NumPy arrays [number, ...]."""
    if number not in self._takers:
      @tf.function
      def take():
        unrolls = [self.pool.next_unroll() for _ in range(number)]
        return tf.nest.map_structure(lambda *components: tf.stack(components), *unrolls)
      self._takers[number] = take
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), waiting.start(self._takers[number])())

  def close(self):
    """Ends pool, policy and workers; raises what ended the policy if the pool's end did not."""
    self.pool.close()
    for loop in self._acting:
      with contextlib.suppress(tf.errors.CancelledError):
        loop()
    self.workers.close()


class Row(NamedTuple):
  """Where a row belongs, and the version that decided its action."""
  seed: int
  episode: int
  step: int
  version: int


class Checker:
  """Holds unrolls against what must have happened, and each against its actor's unroll before."""

  def __init__(self, played: PlayedPool):
    self._level_ids = played.level_ids
    self._stories = {}
    self._last = {}       # By actor, the last Row.
    self.unrolls = {}     # By actor, how many so far.
    self.streams = {}     # By actor, the seeds of its streams in their order.
    self._indices = {}    # By actor and seed, the stream's id and the index of its next unroll.
    self.episodes = 0     # That ended in the rows checked.
    self.lost_lives = 0

  def check(self, unrolls):
    """`unrolls`: what PlayedPool.take gives. Raises AssertionError."""
    expected = [self._expected(int(actor), record, version) for actor, record, version in zip(
        unrolls.actor_id, unrolls.environment_output.observation['record'], unrolls.parameter_version)]
    got = unrolls._asdict() | unrolls.environment_output._asdict() | unrolls.environment_output.observation
    got |= unrolls.agent_output._asdict() | unrolls.agent_state._asdict() | unrolls.agent_state.last
    got['earlier'] = unrolls.earlier_frames['pixels']
    for name in expected[0]:
      np.testing.assert_array_equal(got[name], [values[name] for values in expected], err_msg=name)
    seeds = unrolls.environment_output.observation['record'][:, 0, 0]
    for stream in zip(unrolls.actor_id.tolist(), seeds.tolist(), unrolls.stream_id.tolist(), unrolls.index.tolist()):
      self._check_stream(*stream)
    done = unrolls.environment_output.done[:, 1:]
    self.episodes += np.sum(done)
    self.lost_lives += np.sum((unrolls.environment_output.discount[:, 1:] == 0) & ~done)

  def _expected(self, actor, record, versions):
    """The values of one unroll, by name; only where it begins and its versions are believed, within limits."""
    seed, episode, step, _ = record[0].tolist()
    last = self._last.get(actor)
    if last is None or seed != last.seed:
      assert (episode, step, versions[0]) == (0, 0, 0), f'a stream begins with {record[0]} and version {versions[0]}'
      assert seed % len(self._level_ids) == actor, f'actor {actor} has seed {seed}'
      self.streams.setdefault(actor, []).append(seed)
    else:
      assert (episode, step, versions[0]) == last[1:], f'row 0 is {record[0]}, the last row was {last}'
    assert np.all(np.diff(versions) >= 0), versions
    self.unrolls[actor] = self.unrolls.get(actor, 0) + 1
    before = self._row_before(seed, episode, step)
    state = self._state_before(seed, episode, step)
    earlier = [[[episode % 256]] * 3]
    rows = []
    for t, version in enumerate(versions.tolist()):
      if t:
        episode, step = self._row_after(seed, episode, step)
      rows.append(self._row(seed, episode, step, version))
    self._last[actor] = Row(seed, episode, step, versions[-1])
    values = {name: [row[name] for row in rows] for name in rows[0]}
    return values | {'level_id': self._level_ids[actor], 'count': state, 'row': before or (0, 0), 'earlier': earlier}

  def _check_stream(self, actor, seed, stream_id, index):
    """Whether a stream has an id of its own, and its unrolls are numbered from 0 without a gap."""
    if (actor, seed) not in self._indices:
      assert stream_id not in [known for known, _ in self._indices.values()], f'another stream has id {stream_id}, too'
      self._indices[actor, seed] = stream_id, 0
    want = self._indices[actor, seed]
    assert (stream_id, index) == want, f'want {want}, got {stream_id}, {index}'
    self._indices[actor, seed] = stream_id, index + 1

  def _row(self, seed, episode, step, version):
    """All values of one row, by name."""
    before = self._row_before(seed, episode, step)
    rewards, lost = self._episode(seed, episode if step else episode - 1) if before else ((), ())
    steps = step or len(rewards)  # Of the episode that the row's statistics are about.
    reward = rewards[steps - 1] if before else 0.
    action = self._action_after(*before) if before else 0
    given = np.zeros(5)
    if before:
      before_that = self._row_before(seed, *before)
      given = np.array([self._action_after(*before_that) if before_that else 0, self._reward(seed, *before),
                        before[1] == 0, self._state_before(seed, *before), version])
    return {
        'record': np.array([seed, episode, step, action if before else -1]),
        'pixels': [[step]] * 3, 'action': action, 'given': given,
        'reward': reward, 'done': step == 0, 'discount': 0. if step == 0 or lost[step - 1] else 1.,
        'episode_return': np.sum(rewards[:steps]), 'episode_length': 4 * steps}

  def _episode(self, seed, number):
    if seed not in self._stories:
      self._stories[seed] = test_environments.Story(seed)
    return self._stories[seed].episode(number)

  def _row_before(self, seed, episode, step):
    """Episode and step; None at the beginning of a stream."""
    if step:
      return episode, step - 1
    return (episode - 1, len(self._episode(seed, episode - 1)[0]) - 1) if episode else None

  def _row_after(self, seed, episode, step):
    return (episode, step + 1) if step + 1 < len(self._episode(seed, episode)[0]) else (episode + 1, 0)

  def _reward(self, seed, episode, step):
    if step:
      return self._episode(seed, episode)[0][step - 1]
    return self._episode(seed, episode - 1)[0][-1] if episode else 0.

  def _state_before(self, seed, episode, step):
    """The count before this row is processed: of the rows since the last done one."""
    return step or (len(self._episode(seed, episode - 1)[0]) if episode else 0)

  def _action_after(self, episode, step):
    return (3 * step + episode + step + 1) % test_environments.NUM_ACTIONS
