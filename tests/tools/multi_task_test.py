"""Tests of a measurement of several games, of which none is trained: its commands and the content of its last line."""

import contextlib
import io
import json
import statistics
import subprocess
import sys
from unittest import mock

from absl import flags
from absl.testing import absltest

from scalable_agents.agents import impala_atari57
from scalable_agents.agents import registry
from scalable_agents.benchmark import training_rate
from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.tools import multi_task
from scalable_agents.training import run_config

_GAMES = ('pong', 'breakout')


class MultiTaskTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    config = multi_task.MultiTaskConfig(
        seconds=1., games=', '.join(_GAMES), flags='--torso=shallow,--num_environments=4,--batch_size=2')
    levels = [*_GAMES, ','.join(_GAMES)]

    def steady_rows(arguments, unused_seconds):
      program, *words = arguments({'logdir': 'there', 'log_interval_seconds': 1.})
      self.assertEqual(program, impala_atari57.__name__)
      preset, values = registry.PRESETS['impala_atari57'], flags.FlagValues()
      for settings in (preset.config, preset.protocol, run_config.RunConfig()):
        run_flags.define(settings, values)
      self.assertLen(values(['program', *words]), 1)
      self.assertEqual((values.full_action_set, values.torso, values.batch_size, values.logdir),
                       (True, 'shallow', 2, 'there'))
      frames = 1_000 * (1 + levels.index(values.level_name))
      return [{'environment_frames': 0, 'wall_seconds': 2.}, {'environment_frames': frames, 'wall_seconds': 4.}]

    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        multi_task.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            training_rate, 'steady_rows', steady_rows), mock.patch.object(
                multi_task.device_report, 'read', return_value='learns and acts on a card'):
      multi_task.main()
    self.assertStartsWith(screen.getvalue(), 'each run learns and acts on a card\n')
    figures = json.loads(screen.getvalue().splitlines()[-1])
    self.assertEqual(figures['alone'], {'pong': 500., 'breakout': 1_000.})
    self.assertAlmostEqual(figures['harmonic_mean'], statistics.harmonic_mean(figures['alone'].values()))
    self.assertEqual(figures['together'], 1_500.)
    self.assertAlmostEqual(figures['share'], figures['together'] / figures['harmonic_mean'])

  def test_the_program_reads_its_flags(self):
    done = subprocess.run([sys.executable, '-m', multi_task.__name__, '--games='], env=python_path.environment(),
                          text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertStartsWith(done.stderr, "error: --games: '': want different levels with commas between them, ")
    self.assertEqual(done.stderr.count('\n'), 1)

  def test_a_game_that_does_not_exist_is_named_before_any_run(self):
    with self.assertRaisesRegex(ValueError, '^--games: .*pnog'):
      multi_task.validate(multi_task.MultiTaskConfig(games='breakout,pnog'))


if __name__ == '__main__':
  absltest.main()
