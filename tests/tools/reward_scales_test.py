"""Tests of a small experiment: its table, its files, and runs that fail."""

import contextlib
import csv
import io
import os
import subprocess
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib import image
import numpy as np

from scalable_agents.records import errors
from scalable_agents.tools import reward_scales


class RewardScalesTest(parameterized.TestCase):

  def _run(self, **settings):
    """Returns what the program prints."""
    config = reward_scales.RewardScalesConfig(**settings)
    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        reward_scales.run_flags, 'config_from_flags', return_value=config):
      reward_scales.main()
    return screen.getvalue()

  def test_a_small_experiment(self):
    folder = self.create_tempdir().full_path
    experiment = reward_scales.EXPERIMENTS['clipping']
    self.enter_context(mock.patch.dict(
        reward_scales.EXPERIMENTS, clipping=experiment._replace(lines=experiment.lines[:1])))
    screen = self._run(experiment='clipping', seeds=1, frames=600, output=folder)
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

  @parameterized.parameters(
      (0, 'stopped', 'clipping_0_seed_1: interrupted, or too short for an episode of each task'),
      (1, 'a warning\nerror: --torso=tall\n', 'clipping_0_seed_1: error: --torso=tall$'),
      (-9, '', 'clipping_0_seed_1: exit code -9$'))
  def test_a_failed_run_is_a_one_line_error(self, code, screen, message):
    done = subprocess.CompletedProcess([], code, screen)
    row = {'environment_frames': 5, 'episode_return/harvest': 1.}
    with mock.patch.object(subprocess, 'run', return_value=done), mock.patch.object(
        reward_scales.run_rows, 'read_metrics', return_value=[row]):
      with self.assertRaisesRegex(errors.UserError, message):
        self._run(experiment='clipping', seeds=1, output=self.create_tempdir().full_path)

  def test_levels_have_factors(self):
    levels = [reward_scales._level(task, factor) for task, factor in (  # pylint: disable=protected-access
        ('catch', 0.1), ('catch', 1), ('catch_mirror', 10_000), ('catch_shift', 1_000_000))]
    self.assertEqual(levels, ['catch_x0.1', 'catch_x1', 'catch_mirror_x10000', 'catch_shift_x1000000'])


if __name__ == '__main__':
  absltest.main()
