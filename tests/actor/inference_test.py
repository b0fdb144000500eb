"""Inference loops: which parameters act for which batch, and what the agent is given."""

from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_frames
from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training import stacked_environment

_ACTORS = inference.Actors(np.arange(6, dtype=np.int32) + 20, np.array([0, 0.25, 0.5, 0.5, 0.75, 1], np.float32))
_SHAPES = ([128, 64], [5], [])


class _Output(NamedTuple):
  action: tf.Tensor    # [n] int32, always 1.
  extremes: tf.Tensor  # [n, 2] float32, the least and the greatest parameter.
  seed: tf.Tensor      # [n, 2] int64, as it was given.
  actor: tf.Tensor     # [n] int32, the actor's id, place and epsilon: id + 100 place + 1000 epsilon.


class _Agent:
  """Its output is its parameters."""

  def __init__(self):
    self.acting_variables = [tf.Variable(tf.fill(shape, -1.)) for shape in _SHAPES]

  def step(self, inputs, agent_state, seed, selection):
    elements = tf.concat([tf.reshape(variable, [-1]) for variable in self.acting_variables], 0)
    of_each = lambda row: tf.tile(row[tf.newaxis], [tf.shape(agent_state)[0], 1])
    return _Output(tf.ones_like(agent_state), of_each(tf.stack([tf.reduce_min(elements), tf.reduce_max(elements)])),
                   of_each(seed), inputs.actor_id + tf.cast(100 * inputs.actor_place, tf.int32)
                   + int(1000 * selection.epsilon)), agent_state + 1


def _snapshot():
  return parameters_lib.ParameterSnapshot([tf.TensorSpec(shape, tf.float32) for shape in _SHAPES])


def _publish(snapshot, version):
  """Publishes parameters that all have the value of the version."""
  snapshot.publish(version, [tf.fill(shape, float(version)) for shape in _SHAPES])


class _PoolInTurns:
  """A pool of one actor that the test moves: it has a batch when the test says so."""

  def __init__(self):
    self._asked = tf.queue.FIFOQueue(10, [tf.int64], [[]])
    self._answers = tf.queue.FIFOQueue(10, [tf.int64, tf.int64, tf.float32, tf.int64, tf.int32],
                                       [[], [], [1, 2], [1, 2], [1]])

  def next_batch(self, newest_frames):
    assert not newest_frames
    batch_id = self._asked.dequeue()
    nothing = tf.zeros([1])
    return actor_pool.InferenceBatch(
        batch_id, actor_id=tf.zeros([1], tf.int32), last_action=tf.zeros([1], tf.int32), agent_state=tf.constant([40]),
        environment_output=unroll_lib.EnvironmentOutput(
            reward=nothing, discount=nothing, done=tf.zeros([1], tf.bool), episode_return=nothing,
            episode_length=tf.zeros([1], tf.int32), observation={'vector': tf.zeros([1, 3])}))

  def complete_batch(self, batch_id, version, agent_output, agent_state):
    self._answers.enqueue([batch_id, version, agent_output.extremes, agent_output.seed, agent_state])

  def ask(self, batch_id):
    """Has inference act for a batch; its id, the version, the extreme parameters, seed and state that come back."""
    self._asked.enqueue(batch_id)
    return [value.numpy().tolist() for value in waiting.start(self._answers.dequeue)()]

  def close(self):
    self._asked.close()


class PadTest(absltest.TestCase):

  @settings(deadline=None, derandomize=True)
  @given(st.integers(1, 300))
  def test_batches_have_few_sizes(self, size):
    tensors = {'pixels': tf.fill([size, 2, 1], tf.constant(7, tf.uint8)), 'done': tf.fill([size], True), 'state': ()}
    padded, n = inference.pad(tensors)
    self.assertEqual(n, size)
    wanted = min(power for power in (8, 16, 32, 64, 128, 256, 512) if power >= size)
    for name in ('pixels', 'done'):
      self.assertEqual(padded[name].shape, [wanted, *tensors[name].shape[1:]])
      np.testing.assert_array_equal(padded[name][:size], tensors[name])
      self.assertFalse(np.any(padded[name][size:]))


class InferenceTest(parameterized.TestCase):

  def _start(self, pool, snapshot, seed=7, device='/CPU:0'):
    return waiting.start(inference.make_loop(
        pool, _Agent(), snapshot, seed, device, _ACTORS, acting.Selection(acting.EPSILON, 3.)))

  def test_a_batch_has_the_parameters_that_are_latest_when_it_is_there(self):
    pool, snapshot = _PoolInTurns(), _snapshot()
    self.addCleanup(pool.close)
    _publish(snapshot, 1)
    loop = self._start(pool, snapshot)
    self.assertEqual(pool.ask(100)[:3], [100, 1, [[1., 1.]]])
    for version in (2, 3, 7, 5):  # Back, too, as after a restored checkpoint.
      self.assertFalse(loop.ended.wait(0.01))  # It waits for the next batch.
      _publish(snapshot, version)
      for batch_id in (100 * version, 100 * version + 1):
        self.assertEqual(pool.ask(batch_id)[:3], [batch_id, version, [[version, version]]])

  @parameterized.parameters('/CPU:0', '/GPU:0')  # Without a GPU, TensorFlow places the padded batch on the CPU.
  def test_seeds_differ_and_states_go_on(self, device):
    pool, snapshot = _PoolInTurns(), _snapshot()
    self.addCleanup(pool.close)
    _publish(snapshot, 60)  # As when a run is resumed: seeds are apart from those since version 0.
    self._start(pool, snapshot, 123, device)
    answers = [pool.ask(number) for number in range(4)]
    self.assertEqual([seed for *_, seed, _ in answers], [[[123, (60 << 32) + number]] for number in range(4)])
    self.assertEqual([state for *_, state in answers], [[41]] * 4)

  def test_nothing_published_yet(self):
    pool = _PoolInTurns()
    self.addCleanup(pool.close)
    loop = self._start(pool, _snapshot())
    pool._asked.enqueue(1)
    with self.assertRaises(tf.errors.FailedPreconditionError):
      loop()

  def test_a_policy_whose_output_is_not_finite(self):
    pool, snapshot = _PoolInTurns(), _snapshot()
    self.addCleanup(pool.close)
    _publish(snapshot, 1)
    loop = self._start(pool, snapshot)
    pool.ask(100)
    snapshot.publish(1234, [tf.fill(shape, np.nan) for shape in _SHAPES])
    pool._asked.enqueue(101)
    with self.assertRaisesRegex(inference.PolicyError, "^the agent's outputs are not finite with .* update 1,234: "):
      loop()
    self.assertEqual(pool._answers.size(), 0)

  @parameterized.parameters(1, 2)
  def test_no_batch_mixes_versions(self, loops):
    workers = environment_workers.EnvironmentWorkers(
        'scalable_agents.tests.actor.test_environments:Constant', [{'seed': i, 'shape': [2]} for i in range(6)], 2)
    self.addCleanup(workers.close)
    pool = actor_pool.ActorPool(
        workers, 10, _Output(tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.float32), tf.TensorSpec([2], tf.int64),
                             tf.TensorSpec([], tf.int32)), tf.TensorSpec([], tf.int32), [0] * 6)
    self.addCleanup(pool.close)
    snapshot = _snapshot()
    _publish(snapshot, 1)
    loops_running = [self._start(pool, snapshot, seed) for seed in range(loops)]
    pool.start()
    take = tf.function(lambda: [pool.next_unroll() for _ in range(10)])
    unrolls, version = [], 1
    seeds = lambda: {int(seed) for unroll in unrolls for seed in unroll.agent_output.seed[1:, 0]}
    while len({int(v) for unroll in unrolls for v in unroll.parameter_version}) < 10 or len(seeds()) < loops:
      taken = waiting.start(take)
      while not taken.ended.wait(0.001):
        version += 1
        _publish(snapshot, version)
      unrolls += taken()
    last = {}
    for unroll in unrolls:
      rows = slice(0 if int(unroll.actor_id) in last else 1, None)  # Nobody decided the first row of a stream.
      versions = unroll.parameter_version.numpy()[rows]
      np.testing.assert_array_equal(unroll.agent_output.extremes[rows], np.stack([versions, versions], axis=1))
      self.assertTrue(np.all(np.diff(versions) >= 0))
      # What the agent was told of the actor and of the selection.
      number = int(unroll.actor_id)
      want = _ACTORS.ids[number] + int(100 * _ACTORS.places[number]) + 3000
      np.testing.assert_array_equal(unroll.agent_output.actor[rows], np.full_like(versions, want))
      last[int(unroll.actor_id)] = versions[-1]
    self.assertEqual(seeds(), set(range(loops)))
    pool.close()
    for loop in loops_running:
      with self.assertRaises(tf.errors.CancelledError):
        loop()


class _Seen(NamedTuple):
  action: tf.Tensor  # [n] int32, always 1.
  pixels: tf.Tensor  # [n, 2, 2, 3] uint8, as the agent observed them.
  told: tf.Tensor    # [n, 4] float32, what else it was given: last action, reward, discount and done.


class _Observer:
  """It tells what it observed."""

  def __init__(self):
    self.acting_variables = [tf.Variable(0.)]

  def step(self, inputs, agent_state, unused_seed, unused_selection):
    told = inputs.last_action, inputs.reward, inputs.discount, inputs.done
    return _Seen(tf.ones_like(inputs.last_action), inputs.observation['pixels'],
                 tf.stack([tf.cast(values, tf.float32) for values in told], axis=1)), agent_state


class FramesTest(absltest.TestCase):

  def test_the_agent_is_given_the_rows_of_the_environments_with_whole_stacks(self):
    workers = environment_workers.EnvironmentWorkers(
        f'{stacked_environment.__name__}:Stacked',
        [{'seed': i, 'fault': 'exit', 'fault_step': 40, 'faulty_below': 3} for i in range(6)], 3)
    self.addCleanup(workers.close)
    stacks = {'pixels': tf.TensorSpec([2, 2, 3], tf.uint8)}
    pool = actor_pool.ActorPool(
        workers, 10, _Seen(tf.TensorSpec([], tf.int32), stacks['pixels'], tf.TensorSpec([4])), (), [0] * 6,
        report=lambda fault: None)
    self.addCleanup(pool.close)
    snapshot = parameters_lib.ParameterSnapshot([tf.TensorSpec([])])
    snapshot.publish(0, [tf.constant(0.)])
    device = '/GPU:0'  # Without a GPU, all is on the CPU, in padded batches as for a GPU.
    frames = actor_frames.ActorFrames(stacks, 6, device)
    for seed in range(2):
      waiting.start(inference.make_loop(pool, _Observer(), snapshot, seed, device, _ACTORS, frames=frames))
    pool.start()
    take, streams = tf.function(lambda: [pool.next_unroll() for _ in range(10)]), set()
    while len(streams) < 8 or pool.restarts < 3:  # The first three environments end, and are made again.
      for unroll in waiting.start(take)():
        streams.add(int(unroll.stream_id))
        environment, output = unroll.environment_output, unroll.agent_output
        rows = np.stack([output.action, environment.reward, environment.discount, environment.done], axis=1)
        np.testing.assert_array_equal(output.told[1:], rows[:-1])  # Row t is decided from row t - 1.
        records = environment.observation['record'].numpy()
        for (seed, episode, step, _), seen in zip(records[:-1], output.pixels.numpy()[1:]):
          want = [stacked_environment.frame(seed, episode, step - age) if age <= step else np.zeros([2, 2])
                  for age in (2, 1, 0)]
          np.testing.assert_array_equal(seen, np.stack(want, axis=-1))


if __name__ == '__main__':
  absltest.main()
