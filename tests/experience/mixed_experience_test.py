"""Tests of batches of new and replayed unrolls: what is in them, each row with its stream and its number."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import replayers
from scalable_agents.experience import unroll_replay
from scalable_agents.tests.experience import streams as streams_lib

_LENGTH = 4
_FRAMES_PER_STEP = 3
_SETTINGS = mixed_experience.MixedSettings(num_new=3, num_replayed=5)
_KINDS = ('episodes', 'unrolls', 'prioritised')


class MixedExperienceTest(parameterized.TestCase):

  def _make(self, kind='episodes', settings=_SETTINGS, capacity=1000, num_unrolls=60, first_stream=1, minimum_size=1,
            must_fill=True):
    """Returns an experience and what it gets: the streams, and (stream, index) of each unroll as they arrive."""
    streams = {stream_id: streams_lib.Stream(stream_id) for stream_id in range(first_stream, first_stream + 5)}
    spec = streams[first_stream].spec(_LENGTH)
    intake = intake_lib.Intake(spec, num_unrolls, _FRAMES_PER_STEP)
    batch_size = settings.num_replayed + settings.num_new
    if kind == 'episodes':
      own = replayers.own_replay(spec, streams_lib.FRAME_STACKS, capacity, batch_size)
      replay = replayers.Replayers(spec, streams_lib.FRAME_STACKS, own, settings.num_replayed, None, None, minimum_size,
                                   must_fill)
    else:
      replay = unroll_replay.UnrollReplay(spec, streams_lib.FRAME_STACKS, capacity, batch_size, minimum_size,
                                          0.6 if kind == 'prioritised' else 0.)
    made = mixed_experience.MixedExperience(intake, replay, settings, seed=1)
    self.addCleanup(made.close)
    order, indices = [], dict.fromkeys(streams, 0)
    for stream_id in np.random.RandomState(1).choice(list(streams), size=num_unrolls):
      order.append((stream_id, indices[stream_id]))
      intake.put(tf.nest.map_structure(tf.constant, streams[stream_id].unroll(indices[stream_id], _LENGTH)))
      indices[stream_id] += 1
    return made, streams, order

  def _take(self, made, in_graph=False):
    """Returns a function that takes a batch, as NumPy arrays."""
    take = tf.function(made.take_batch, autograph=False) if in_graph else made.take_batch
    return lambda: tf.nest.map_structure(lambda x: x.numpy(), take())

  def _check_replayed(self, batch, streams, known):
    """Checks the replayed unrolls. `known` has the unrolls of each stream that the replay had."""
    unroll, sample = batch
    batch_size = unroll.parameter_version.shape[1]
    for b in range(batch_size - len(sample.key), batch_size):
      streams_lib.check(unroll, b, streams)
      for stream_id, row in unroll.environment_output.observation['record'][:, b].tolist():
        self.assertLessEqual(row, known[stream_id] * _LENGTH)

  def _count_episodes(self, arrived):
    """Returns (level, length) of the episodes that have arrived."""
    ended = arrived.episodes.level_ids != intake_lib.NO_LEVEL
    return list(zip(arrived.episodes.level_ids[ended].tolist(), arrived.episodes.lengths[ended].tolist()))

  @parameterized.product(kind=_KINDS, learns_new=(True, False))
  def test_every_unroll_is_learned_from_once_online_and_replayed_later(self, kind, learns_new):
    made, streams, order = self._make(kind, _SETTINGS._replace(learns_new=learns_new), minimum_size=20)
    known, episodes, num_filled = dict.fromkeys(streams, 0), [], 0
    while (arrived := made.fill()) is not None:
      self.assertEqual(arrived.environment_frames, 3 * _LENGTH * _FRAMES_PER_STEP)
      episodes += self._count_episodes(tf.nest.map_structure(lambda x: x.numpy(), arrived))
      num_filled += 3
    for stream_id, _ in order[:num_filled]:
      known[stream_id] += 1
    take, came = self._take(made, in_graph=True), order[num_filled:]
    num_online = 3 if learns_new else 0
    self.assertEqual(made.unrolls_per_batch, 3)
    for number in range(len(came) // 3):
      batch, arrived = take()
      new = came[3 * number:3 * number + 3]
      self.assertEqual(batch.unroll.parameter_version.shape[1], num_online + 5)
      self.assertEqual((batch.sample.key.shape, batch.sample.probability.shape), ((5,), (5,)))
      self.assertEqual(list(zip(batch.unroll.stream_id, batch.unroll.index))[:num_online], new[:num_online])
      for b, (stream_id, index) in enumerate(new[:num_online]):
        self.assertEqual(streams_lib.check(batch.unroll, b, streams, (stream_id, index * _LENGTH)),
                         (stream_id, (index + 1) * _LENGTH))
      self._check_replayed(batch, streams, known)  # Only from what came before: no unroll is in a batch twice.
      for stream_id, _ in new:
        known[stream_id] += 1
      self.assertEqual(arrived.environment_frames, 3 * _LENGTH * _FRAMES_PER_STEP)
      episodes += self._count_episodes(arrived)
    want = []
    for stream_id, index in order:
      done = streams[stream_id].rows['environment_output'].done[index * _LENGTH + 1:(index + 1) * _LENGTH + 1]
      want += [(stream_id % 2, index * _LENGTH + 1 + row) for row in np.flatnonzero(done)]
    self.assertCountEqual(episodes, want)

  @parameterized.parameters(*_KINDS)
  def test_fills_until_the_minimum_size(self, kind):
    made, streams, order = self._make(kind, minimum_size=50)
    known, size = dict.fromkeys(streams, 0), 0
    while size < 50:
      self.assertEqual(made.metrics()['replay_filled'], size / 50)
      self.assertIsNotNone(made.fill())
      for stream_id, _ in order[:3]:
        known[stream_id] += 1
      del order[:3]
      if kind == 'episodes':  # The steps before the last start of an episode that has come.
        size = sum(np.flatnonzero(streams[stream_id].rows['environment_output'].done[:number * _LENGTH + 1])[-1]
                   for stream_id, number in known.items())
      else:  # The newest unroll of each stream is not complete yet.
        size = sum(max(number - 1, 0) * _LENGTH for number in known.values())
      self.assertEqual(made.metrics()['replay_size'], size)
    self.assertIsNone(made.fill())
    self.assertEqual(made.metrics()['replay_filled'], 1.)

  def test_what_was_not_drawn_does_not_seem_to_be_old(self):
    made, *_ = self._make(must_fill=False)
    (unroll, sample), _ = self._take(made)()  # The replay is empty.
    np.testing.assert_array_equal(sample.key, [-1] * 5)
    np.testing.assert_array_equal(unroll.parameter_version[:, 3:], np.max(unroll.parameter_version[:, :3]))

  @parameterized.parameters(*_KINDS)
  def test_a_full_replay_has_the_newest_rows(self, kind):
    made, streams, order = self._make(kind, capacity=40)
    while made.fill() is not None:
      pass
    take = self._take(made)
    for _ in range(18):
      batch, _ = take()
      self._check_replayed(batch, streams, dict.fromkeys(streams, 60))
      self.assertLessEqual(made.metrics()['replay_size'], 40)
    self.assertGreaterEqual(made.metrics()['replay_size'], 40 - 9)
    # 15 unrolls come in five batches, and an episode of at most 9 steps may be as old as three unrolls.
    newest = order[:3 * 19][-15 - 3 * 5:]
    oldest = {stream_id: min(index for its, index in newest if its == stream_id) for stream_id, _ in newest}
    for b in range(3, 8):
      self.assertGreaterEqual(streams_lib.first_row(batch.unroll, b), _LENGTH * oldest[batch.unroll.stream_id[b]])

  @parameterized.parameters(*_KINDS)
  def test_saves_and_restores(self, kind):
    made, streams, order = self._make(kind, minimum_size=60)
    folder = self.create_tempdir().full_path
    made.save(folder)
    self.assertEmpty(os.listdir(folder))  # There is nothing to save yet.
    while made.fill() is not None:
      pass
    made.save(folder)
    self.assertNotEmpty(os.listdir(folder))
    restored, new_streams, _ = self._make(kind, minimum_size=60, first_stream=11)
    restored.restore(folder)
    self.assertIsNone(restored.fill())
    self.assertEqual(restored.metrics()['replay_size'], made.metrics()['replay_size'])
    take = self._take(restored)
    for number in range(3):
      batch, _ = take()
      self._check_replayed(batch, streams | new_streams, dict.fromkeys(streams | new_streams, 60))
      if not number:
        self.assertTrue(all(stream_id in streams for stream_id in batch.unroll.stream_id[3:]))
        self.assertTrue(all(stream_id in new_streams for stream_id in batch.unroll.stream_id[:3]))
    other, *_ = self._make(kind, capacity=999)
    with self.assertRaisesRegex(ValueError, 'other settings'):
      other.restore(folder)

  def test_saves_nothing_if_it_is_not_asked_to(self):
    made, *_ = self._make(settings=_SETTINGS._replace(is_saved=False))
    while made.fill() is not None:
      pass
    folder = self.create_tempdir().full_path
    made.save(folder)
    self.assertEmpty(os.listdir(folder))

  @parameterized.parameters(*_KINDS)
  def test_metrics(self, kind):
    made, *_ = self._make(kind)
    while made.fill() is not None:
      pass
    take = self._take(made)
    take()
    take()
    metrics = made.metrics()
    self.assertEqual((metrics['unrolls_replayed'], metrics['replay_gaps'], metrics['unrolls_missing']), (10, 0, 0))
    self.assertGreater(metrics['replay_megabytes'], 0)
    self.assertIn('queue_size', metrics)
    self.assertIn('replay_episodes' if kind == 'episodes' else 'replay_stale_updates', metrics)
    self.assertEmpty(made.warnings())

  def test_every_batch_has_a_seed_of_its_own(self):
    unroll = streams_lib.batch([streams_lib.Stream(1).unroll(0, _LENGTH)] * 3)
    of_rows = lambda ids: tf.broadcast_to(ids, unroll.parameter_version.shape)
    drawn = unroll_replay.Drawn(unroll._replace(level_id=of_rows(unroll.level_id), actor_id=of_rows(unroll.actor_id)),
                                tf.ones([3]), tf.ones([3], tf.int64))

    def seeds(seed):
      intake, replay = mock.Mock(), mock.Mock()
      intake.take_batch.return_value, replay.draw.return_value = (unroll, ()), drawn
      made = mixed_experience.MixedExperience(intake, replay, _SETTINGS, seed)
      for _ in range(3):
        made.take_batch()
      return [int(call.args[1]) for call in replay.draw.call_args_list]

    self.assertLen({*seeds(1), *seeds(2)}, 6)
    self.assertEqual(seeds(1), seeds(1))

  @parameterized.parameters(False, True)
  def test_fills_while_the_replay_is_not_ready(self, is_ready):
    intake, replay = mock.Mock(), mock.Mock()
    intake.take_batch.return_value, replay.is_ready.return_value = (tf.zeros([]), tf.ones([])), is_ready
    made = mixed_experience.MixedExperience(intake, replay, _SETTINGS, seed=1)
    self.assertEqual(made.fill() is None, is_ready)
    self.assertEqual(intake.take_batch.called, not is_ready)

  def test_new_unrolls_are_learned_from_while_the_first_episodes_go_on(self):
    made, streams, order = self._make(minimum_size=50, must_fill=False)
    take, known, was_drawn = self._take(made), dict.fromkeys(streams, 0), []
    for _ in range(15):
      self.assertIsNone(made.fill())
      size = made.metrics()['replay_size']
      batch, _ = take()
      self.assertEqual(list(zip(batch.unroll.stream_id, batch.unroll.index))[:3], order[:3])
      was_drawn += set((batch.sample.key >= 0).tolist())
      self.assertEqual(was_drawn[-1], size >= 50)
      if size >= 50:
        self._check_replayed(batch, streams, known)
      for stream_id, _ in order[:3]:
        known[stream_id] += 1
      del order[:3]
    self.assertEqual(was_drawn, sorted(was_drawn))  # All or none of each batch.
    self.assertLen(set(was_drawn), 2)

  def test_feedback_is_that_of_the_replayed_unrolls(self):
    intake, replay = mock.Mock(), mock.Mock()
    made = mixed_experience.MixedExperience(intake, replay, _SETTINGS, seed=1)
    sample = mixed_experience.MixedSample(*range(2))
    made.update(sample, 'priorities')
    replay.update.assert_called_once_with(sample.key, 'priorities')

  def test_warnings_and_close_are_those_of_both(self):
    intake, replay = mock.Mock(), mock.Mock()
    intake.warnings.return_value, replay.warnings.return_value = ['one'], ['other']
    made = mixed_experience.MixedExperience(intake, replay, _SETTINGS, seed=1)
    self.assertEqual(made.warnings(), ['one', 'other'])
    made.close()
    intake.close.assert_called_once_with()
    replay.close.assert_called_once_with()

  def test_close_ends_the_wait(self):
    made, *_ = self._make()
    while made.fill() is not None:
      pass
    made.close()
    take = self._take(made)
    with self.assertRaises((tf.errors.OutOfRangeError, tf.errors.CancelledError)):
      for _ in range(60):
        take()


class SplitTest(parameterized.TestCase):

  @parameterized.parameters((160, 0.8, 32, 128), (256, 0.875, 32, 224), (32, 0.5, 16, 16), (32, 0., 32, 0),
                            (2, 0.5, 1, 1), (10, 0.99, 0, 10))
  def test_split(self, batch_size, share, online, replayed):
    self.assertEqual(configs.ImpalaConfig(batch_size=batch_size, replay_share=share).split_batch(), (online, replayed))

  @parameterized.parameters((160, 0.8), (32, 0.), (2, 0.5), (2, 0.3))
  def test_shares_that_are_possible(self, batch_size, share):
    configs.validate_impala(configs.ImpalaConfig(batch_size=batch_size, replay_share=share))

  @parameterized.parameters((1, 0.5, 1, 0), (1, 0.9, 0, 1), (4, 0.1, 4, 0), (4, 0.95, 0, 4))
  def test_shares_that_are_not(self, batch_size, share, online, replayed):
    with self.assertRaises(ValueError) as caught:
      configs.validate_impala(configs.ImpalaConfig(batch_size=batch_size, replay_share=share))
    self.assertEqual(str(caught.exception),
                     f'--replay_share={share}: a batch of {batch_size} unrolls would have {online} new and {replayed} '
                     'replayed ones: want at least one of each, for example with a larger --batch_size')


if __name__ == '__main__':
  absltest.main()
