"""Tests of a small experiment: its table, its files, and that the same command continues."""

import contextlib
import csv
import io
import os
from unittest import mock

from absl.testing import absltest
from matplotlib import image
import numpy as np

from scalable_agents.records import errors
from scalable_agents.tools import reward_scales


class RewardScalesTest(absltest.TestCase):

  def _run(self, **settings):
    """Returns what the program prints."""
    config = reward_scales.RewardScalesConfig(**settings)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        reward_scales.run_flags, 'config_from_flags', return_value=config):
      reward_scales.main()
    return screen.getvalue()

  def test_a_small_one(self):
    folder = self.create_tempdir().full_path
    experiment = reward_scales.EXPERIMENTS['clipping']
    self.enter_context(mock.patch.dict(
        reward_scales.EXPERIMENTS, clipping=experiment._replace(lines=experiment.lines[:1])))
    settings = dict(experiment='clipping', seeds=1, frames=600, output=folder)
    screen = self._run(**settings)
    file = os.path.join(folder, 'clipping')
    name = experiment.lines[0].name
    self.assertRegex(screen, rf'(?m)^{name} +0\.\d\d \(0\.\d\d to 0\.\d\d\)')
    with open(f'{file}.csv', encoding='utf-8') as stream:
      rows = list(csv.DictReader(stream))
    for row in rows:
      self.assertEqual((row['agent'], row['seed']), (name, '1'))
      self.assertBetween(float(row['harvest']), 0., 1.)
    self.assertEqual(int(rows[-1]['environment_frames']), 768)  # Whole batches.
    self.assertGreater(np.ptp(image.imread(f'{file}.png')), 0.5)
    self.assertEqual(self._run(**settings), screen)  # The runs have finished, so nothing is trained again.

  def test_levels_have_factors(self):
    levels = [reward_scales._level(task, factor) for task, factor in (  # pylint: disable=protected-access
        ('catch', 0.1), ('catch', 1), ('catch_mirror', 10_000), ('catch_shift', 1_000_000))]
    self.assertEqual(levels, ['catch_x0.1', 'catch_x1', 'catch_mirror_x10000', 'catch_shift_x1000000'])

  def test_a_run_that_fails_is_one_line(self):
    folder = self.create_tempdir().full_path
    experiment = reward_scales.EXPERIMENTS['clipping']._replace(flags=('--torso=tall',))
    with mock.patch.dict(reward_scales.EXPERIMENTS, clipping=experiment), self.assertRaisesRegex(
        errors.UserError, 'clipping_0_seed_1: error: --torso=tall: want one of shallow, deep$'):
      self._run(experiment='clipping', seeds=1, parallel=1, output=folder)


if __name__ == '__main__':
  absltest.main()
