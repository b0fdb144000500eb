"""Tests of the replay's soak test: a short one passes, and what it must find is found."""

import contextlib
import io
import json
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.learner import replay as replay_lib
from scalable_agents.tools import replay_soak

_CONFIG = replay_soak.ReplaySoakConfig(minutes=0.05, capacity=200, seconds_between_saves=0.5)


class ReplaySoakTest(absltest.TestCase):

  def _soak(self):
    """Returns the soak test at its end, and its figures."""
    soak = replay_soak.Soak(_CONFIG)
    return soak, replay_soak.run(soak, _CONFIG)

  def _broken(self, method, change):
    """Returns the error of a replay one of whose results is changed."""
    whole = getattr(replay_lib.SequenceReplay, method)
    with mock.patch.object(replay_lib.SequenceReplay, method, lambda *args: change(whole(*args))):
      return self._soak()[0].error

  def test_a_short_one(self):
    with mock.patch.object(replay_soak, '_LOST_UNROLLS', 0.1):
      soak, figures = self._soak()
    self.assertIsNone(soak.error)
    self.assertEqual(figures['size'], 200)
    self.assertGreater(figures['inserted'], 200)
    self.assertGreater(figures['sampled'], 0)
    self.assertGreater(figures['gaps'], 0)

  def test_an_error_of_the_replay_ends_the_test(self):
    for method in ('insert', 'save'):
      failing = mock.Mock(side_effect=OSError('no space'))
      with mock.patch.object(replay_lib.SequenceReplay, method, failing):
        self.assertEqual(self._soak()[0].error, 'OSError: no space')

  def test_the_memory_must_not_grow(self):
    for first, second, code, said in ((100., 120., 1, '\nerror: the memory has grown from 100 to 120 MB\n'),
                                      (100., 101., 0, '\n')):
      figures = {'inserted': 7, 'megabytes': [first, second]}
      parts = mock.patch.multiple(
          replay_soak, run=lambda *_, figures=figures: figures, Soak=lambda _: mock.Mock(error=None))
      flags = mock.patch.object(replay_soak.run_flags, 'config_from_flags', lambda _: _CONFIG)
      with parts, flags, contextlib.redirect_stdout(io.StringIO()) as screen:
        self.assertEqual(replay_soak.main(), code)
      self.assertEqual(screen.getvalue(), json.dumps(figures) + said)

  def test_keys_that_come_twice_are_found(self):
    self.assertRegex(self._broken('insert', lambda new: new._replace(key=new.key // 2)), r'^key \d+ has come twice$')

  def test_lost_keys_are_found(self):
    lose_last = lambda new: new._replace(key=new.key[:-1], signals=new.signals[:, :-1])
    self.assertRegex(self._broken('insert', lose_last), r'^\d+ keys were given, but \d+ have come$')

  def test_mixed_samples_are_found(self):
    def change(sample):
      pixels = sample.rows['pixels'].numpy().copy()
      pixels[80, 0, 5, 5, -1] += np.uint8(1)
      return sample._replace(rows=sample.rows | {'pixels': tf.constant(pixels)})
    self.assertRegex(self._broken('sample', change), '^a sample is not what was inserted under its key$')

  def test_sequences_that_cannot_be_drawn_are_found(self):
    whole = replay_lib.SequenceReplay.restore

    def restore(replay, path):  # One sequence has a tiny priority, and all others keep theirs.
      whole(replay, path)
      replay.update([replay.statistics().inserted - 1], np.zeros(1, np.float32))
      replay.update = lambda key, priority: None

    with mock.patch.object(replay_lib.SequenceReplay, 'restore', restore):
      soak, _ = self._soak()
    self.assertRegex(soak.error, '^[0-9]+ of 200 sequences in the replay cannot be drawn$')


if __name__ == '__main__':
  absltest.main()
