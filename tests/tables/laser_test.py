"""Tests of the binary: golden files, the files that it writes, and one-line messages for invalid input.

The golden files have the paper's numbers and no runs. They were made with
  python -m scalable_agents.tables.laser --table=TABLE --output=tests/tables/golden
"""

import functools
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tables import laser
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_GOLDEN = pathlib.Path(__file__).parent / 'golden'
_start = functools.partial(programs.start, laser.__name__)


class LaserTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.runs = self.create_tempdir().full_path
    self.output = os.path.join(self.create_tempdir().full_path, 'new', 'results')

  @parameterized.parameters('1', '2')
  def test_golden(self, table):
    done = _start(f'--table={table}', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    names = [f'laser_table_{table}.{ending}' for ending in ('md', 'csv')]
    for name in names:
      self.assertMultiLineEqual(pathlib.Path(self.output, name).read_text(encoding='utf-8'),
                                (_GOLDEN / name).read_text(encoding='utf-8'))
    self.assertCountEqual(os.listdir(self.output), names)

  def test_a_table_and_all_figures(self):
    rejected = {'rejected/online': [0., 0.], 'rejected/replayed': [0.5, 0.25]}
    for index in range(2):
      run_directories.laser(self.runs, f'sweep/agent_{index}', [20. - index] * 200, shared_replay='here:1',
                            learning_rate=3e-4 * (index + 1), frames=10_000_000, curves={'pong': [1., 2.]},
                            more=rejected)
    run_directories.laser(self.runs, 'pure', [1.] * 200, learn_online=False)
    run_directories.laser(self.runs, 'impala', [1.] * 200, agent='impala', binary='impala_atari57', replay_share=0.)
    done = _start('--table=2', '--figures', f'--runs={self.runs}/sweep/*,{self.runs}/pure,{self.runs}/impala',
                  f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'\| pong .* 20.0 \| +-1.0 \| scaled down: 10M of 50M frames, 2 of 9 agents')
    self.assertCountEqual(os.listdir(self.output), [
        'laser_table_2.md', 'laser_table_2.csv', 'laser_data_efficiency.png', 'laser_ablations.png',
        'laser_rejected.png'])

  def test_bad_input_is_one_line(self):
    run_directories.r2d2(self.runs, 'r2d2')
    run_directories.laser(self.runs, 'no_episodes')
    run_directories.laser(self.runs, 'wrong_type', learn_online='yes')
    torn = run_directories.laser(self.runs, 'torn', [1., 2.])
    with open(os.path.join(torn, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.write('?\n')
    for flags, message in (
        ((), '--table=: want one of 1, 2, or --figures'),
        (('--table=3',), '--table=3: want one of 1, 2'),
        (('--figures',), '--runs: want the runs to draw'),
        (('--table=1', '--output='), '--output: want a folder'),
        (('--figures', '--runs=r2d2'), 'r2d2: a run of another agent, r2d2: want runs of LASER or IMPALA or '
                                       'PopArt-IMPALA'),
        (('--table=1', '--runs=wrong_type'), 'wrong_type/config.json: --learn_online=yes: want true or false'),
        (('--table=2', '--runs=torn'), 'torn/episodes.csv, line 4'),
        (('--figures', '--runs=no_episodes'), '--figures: these runs have nothing to draw: want runs of LASER that')):
      done = _start(*flags, folder=self.runs)
      self.assertEqual((done.returncode, done.stdout), (1, ''), flags)
      self.assertStartsWith(done.stderr.replace(f'{self.runs}/', ''), f'error: {message}')
      self.assertEqual(done.stderr.count('\n'), 1)

  def test_it_starts_without_tensorflow(self):
    self.assertFalse(programs.imports_tensorflow(laser.__name__))


if __name__ == '__main__':
  absltest.main()
