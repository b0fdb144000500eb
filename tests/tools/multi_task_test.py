"""Tests of a small measurement of several games: the content of its last line, not the speeds."""

import contextlib
import io
import json
import statistics
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from scalable_agents.benchmark import training_rate
from scalable_agents.processes import python_path
from scalable_agents.tools import multi_task

_GAMES = ('pong', 'breakout')


class MultiTaskTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    """Only the games together are really trained: each alone is the same command with one of them."""
    config = multi_task.MultiTaskConfig(
        seconds=1., games=','.join(_GAMES), flags='--torso=shallow,--num_environments=4,--batch_size=2')
    commands, train = {}, training_rate.steady_rows

    def steady_rows(arguments, seconds):
      command = arguments({'logdir': 'there', 'log_interval_seconds': 1.})
      level, = (word.removeprefix('--level_name=') for word in command if word.startswith('--level_name='))
      commands[level] = command
      if level == config.games:
        return train(arguments, seconds)
      frames = 1_000 * (1 + _GAMES.index(level))
      return [{'environment_frames': 0, 'wall_seconds': 2.}, {'environment_frames': frames, 'wall_seconds': 4.}]

    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        multi_task.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            training_rate, 'steady_rows', steady_rows):
      multi_task.main()
    figures = json.loads(screen.getvalue().splitlines()[-1])
    self.assertEqual(figures['alone'], {'pong': 500., 'breakout': 1_000.})
    self.assertAlmostEqual(figures['harmonic_mean'], statistics.harmonic_mean(figures['alone'].values()))
    self.assertAlmostEqual(figures['share'], figures['together'] / figures['harmonic_mean'])
    self.assertGreater(figures['together'], 0)
    for game in _GAMES:
      self.assertEqual([word.replace(f'={game}', f'={config.games}') for word in commands[game]],
                       commands[config.games])

  def test_the_program_reads_its_flags(self):
    done = subprocess.run([sys.executable, '-m', multi_task.__name__, '--games='], env=python_path.environment(),
                          text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout, done.stderr),
                     (1, '', 'error: --games=: want games with commas between them\n'))


if __name__ == '__main__':
  absltest.main()
