"""Tests of the binary: a golden file, the files that it writes, and one-line messages for invalid input.

The golden files have the paper's numbers and no runs. They were made with
  python -m scalable_agents.tables.popart_impala --table=1 --output=tests/tables/golden
"""

import functools
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.population import population_directory
from scalable_agents.tables import popart_impala
from scalable_agents.tables import runs as runs_lib
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_GOLDEN = pathlib.Path(__file__).parent / 'golden'
_start = functools.partial(programs.start, popart_impala.__name__)


class PopArtImpalaTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.runs = self.create_tempdir().full_path
    self.output = os.path.join(self.create_tempdir().full_path, 'new', 'results')

  def test_golden(self):
    done = _start('--table=1', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    for name in ('popart_table_1.md', 'popart_table_1.csv'):
      self.assertMultiLineEqual(pathlib.Path(self.output, name).read_text(encoding='utf-8'),
                                (_GOLDEN / name).read_text(encoding='utf-8'))

  def test_figures_of_runs_that_were_not_evaluated(self):
    for name, flags in (('popart', {'binary': 'popart_impala_atari57', 'value_normalization': 'popart'}),
                        ('impala', {'binary': 'impala_atari57'})):
      run_directories.make(self.runs, name, level_name='pong,breakout', curves={'pong': [-20., 20.]},
                           more={'popart/mean/pong': [0., 1.], 'popart/scale/pong': [1., 1.],
                                 'suite_score/median': [1., 2.]}, **flags)
    done = _start('--figures', f'--runs={self.runs}/*', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertCountEqual(os.listdir(self.output), [
        'popart_scores.png', 'popart_returns.png', 'popart_levels.png', 'popart_statistics_popart.png'])

  def test_of_a_population_the_fittest_members_statistics_are_drawn(self):
    for index in range(2):
      logdir = run_directories.make(
          self.runs, f'population/member_0{index}', binary='popart_impala_atari57', value_normalization='popart',
          level_name='pong', population_size=2, curves={'pong': [1., 2.]},
          more={'popart/mean/pong': [0., 1.], 'popart/scale/pong': [1., 1.]})
      population_directory.write_fitness(logdir, population_directory.Fitness(1000, index, {'learning_rate': 6e-4}))
    folder = self.create_tempdir().full_path
    runs, _ = runs_lib.read([f'{self.runs}/population/*'], False, runs_lib.AGENTS)
    drawn = [os.path.basename(file) for file in popart_impala.draw(runs, folder)]
    self.assertEqual(drawn, ['popart_returns.png', 'popart_levels.png', 'popart_statistics_population_member_01.png'])

  def test_bad_input_is_one_line(self):
    run_directories.make(self.runs, 'laser', binary='laser_atari57')
    run_directories.make(self.runs, 'no_rows', binary='popart_impala_atari57')
    for flags, message in (
        ((), '--table=: want 1, or --figures'),
        (('--table=2',), '--table=2: want one of 1'),
        (('--figures',), '--runs: want the runs to draw'),
        (('--table=1', '--output='), '--output: want a folder'),
        (('--figures', '--runs=laser'),
         'laser: a run of another agent, laser: want runs of IMPALA or PopArt-IMPALA'),
        (('--table=1', '--runs=no_rows'), 'no_rows: not evaluated (it has no evaluation.json): run the agent'),
        (('--figures', '--runs=no_rows'), '--figures: these runs have no metrics to draw')):
      done = _start(*flags, folder=self.runs)
      self.assertEqual((done.returncode, done.stdout), (1, ''), flags)
      self.assertStartsWith(done.stderr.replace(f'{self.runs}/', ''), f'error: {message}')
      self.assertEqual(done.stderr.count('\n'), 1)


if __name__ == '__main__':
  absltest.main()
