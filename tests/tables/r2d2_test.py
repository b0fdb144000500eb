"""Tests of the binary: golden files, the files that it writes, and one-line messages for invalid input.

The golden files have the paper's numbers and no runs. They were made with
  python -m scalable_agents.tables.r2d2 --table=TABLE --output=tests/tables/golden
"""

import functools
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.population import population_directory
from scalable_agents.tables import r2d2
from scalable_agents.tables import runs as runs_lib
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_GOLDEN = pathlib.Path(__file__).parent / 'golden'
_start = functools.partial(programs.start, r2d2.__name__)


class R2d2Test(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.runs = self.create_tempdir().full_path
    self.output = os.path.join(self.create_tempdir().full_path, 'new', 'results')

  @parameterized.parameters('1', '3', '4')
  def test_golden(self, table):
    done = _start(f'--table={table}', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    names = [f'r2d2_table_{table}.{ending}' for ending in ('md', 'csv')]
    for name in names:
      self.assertMultiLineEqual(pathlib.Path(self.output, name).read_text(encoding='utf-8'),
                                (_GOLDEN / name).read_text(encoding='utf-8'))
    self.assertCountEqual(os.listdir(self.output), names)

  def test_a_table_and_all_figures(self):
    measured = {'measure_delta_q': True, 'more': {'delta_q/first': [1., 2.], 'delta_q/last': [1., 2.]}}
    for game, more in (('pong', measured), ('breakout', {'histories': {'inf': (1., 1., 0.)}})):
      run_directories.r2d2(self.runs, game, 1., level_name=game, frames=1000, curves={game: [1., 2.]}, **more)
    run_directories.r2d2(self.runs, 'clipped', 1., frames=1000, curves={'pong': [1., 2.]}, reward_transform='abs_one',
                         value_rescaling=False)
    run_directories.single_game(self.runs, 'impala', 1., agent='impala', curves={'pong': [1., 2.]})
    done = _start('--table=4', '--figures', f'--runs={self.runs}/*', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'\| pong .* scaled down: 1K of 10B frames')
    self.assertCountEqual(os.listdir(self.output), [
        'r2d2_table_4.md', 'r2d2_table_4.csv', 'r2d2_delta_q.png', 'r2d2_ablations.png', 'r2d2_memory.png',
        'r2d2_atari_median.png'])

  def test_of_a_population_the_fittest_member_is_drawn(self):
    for index in range(2):
      logdir = run_directories.r2d2(self.runs, f'population/member_0{index}', population_size=2,
                                    histories={'inf': (float(index), 1., 0.)})
      population_directory.write_fitness(logdir, population_directory.Fitness(1000, index, {'learning_rate': 1e-4}))
    runs, _ = runs_lib.read([f'{self.runs}/population/*'], False, (runs_lib.R2D2,))
    drawn = []
    with absltest.mock.patch.dict(r2d2._FIGURES, {name: lambda runs, _: drawn.extend(runs) or True
                                                  for name in ('delta_q', 'ablations', 'memory', 'atari_median')}):
      r2d2.draw(runs, self.output)
    self.assertEqual({os.path.basename(run.logdir) for run in drawn}, {'member_01'})

  def test_bad_input_is_one_line(self):
    run_directories.single_game(self.runs, 'impala', agent='impala')
    run_directories.r2d2(self.runs, 'no_rows')
    run_directories.r2d2(self.runs, 'no_torso', torso=None)
    run_directories.r2d2(self.runs, 'wrong_type', use_lstm='yes')
    for flags, message in (
        ((), '--table=: want one of 1, 3, 4, or --figures'),
        (('--table=2',), '--table=2: want one of 1, 3, 4'),
        (('--figures',), '--runs: want the runs to draw'),
        (('--table=1', '--output='), '--output: want a folder'),
        (('--figures', '--runs=impala'), 'impala: a run of another agent, impala: want runs of R2D2'),
        (('--table=1', '--runs=no_torso'), 'no_torso: a run of another agent, its config.json has no torso: want runs '
                                           'of R2D2 or IMPALA'),
        (('--table=1', '--runs=wrong_type'), 'wrong_type/config.json: --use_lstm=yes: want true or false'),
        (('--table=4', '--runs=no_rows'), 'no_rows: not evaluated (it has no evaluation.json): run the agent'),
        (('--figures', '--runs=no_rows'), '--figures: these runs have nothing to draw: want runs with')):
      done = _start(*flags, folder=self.runs)
      self.assertEqual((done.returncode, done.stdout), (1, ''), flags)
      self.assertStartsWith(done.stderr.replace(f'{self.runs}/', ''), f'error: {message}')
      self.assertEqual(done.stderr.count('\n'), 1)

  def test_it_starts_without_tensorflow(self):
    self.assertFalse(programs.imports_tensorflow(r2d2.__name__))


if __name__ == '__main__':
  absltest.main()
