"""Tests of the binary: golden files, the files that it writes, and one-line messages for invalid input.

The golden files have the paper's numbers and no runs. They were made with
  python -m scalable_agents.tables.impala --table=TABLE --output=tests/tables/golden
"""

import functools
import os
import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.tables import impala
from scalable_agents.tables import published
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_GOLDEN = pathlib.Path(__file__).parent / 'golden'
_start = functools.partial(programs.start, impala.__name__)


class ImpalaTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.runs = self.create_tempdir().full_path
    self.output = os.path.join(self.create_tempdir().full_path, 'new', 'results')

  @parameterized.parameters('2', '3', '4', 'B.1', 'C.1')
  def test_golden(self, table):
    done = _start(f'--table={table}', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    for ending in ('md', 'csv'):
      name = f'table_{table}.{ending}'
      self.assertMultiLineEqual(pathlib.Path(self.output, name).read_text(encoding='utf-8'),
                                (_GOLDEN / name).read_text(encoding='utf-8'))
    self.assertStartsWith(done.stdout, (_GOLDEN / f'table_{table}.md').read_text(encoding='utf-8'))
    self.assertCountEqual(os.listdir(self.output), [f'table_{table}.md', f'table_{table}.csv'])

  def test_the_golden_files_hold_the_papers_aggregates_twice(self):
    text = ''.join(file.read_text(encoding='utf-8') for file in _GOLDEN.glob('table_[34].md'))
    for printed, again in (('44.5', '44.45'), ('49.4', '49.36'), ('957.6', '957.28'), ('466.4', '466.06'),
                           ('176.9', '176.61'), ('191.8', '191.82'), ('93.2', '93.23'), ('59.7', '59.71')):
      self.assertRegex(text, rf'\| +{printed} \| +{again} \|')

  def test_runs_and_pictures(self):
    means = published.LEVEL_SCORES['dmlab30']['IMPALA, deep, PBT']
    for seed in (1, 2):
      run_directories.make(self.runs, f'dmlab_{seed}', means, seed=seed, frames=2_000_000,
                           curves={'rooms_watermaze': [1.0, 2.0]})
    # As with `bazel run`, paths are relative to the folder of the command.
    done = _start('--table=3', '--runs=dmlab_1, dmlab_[23]', '--output=out/new', '--figures', folder='/',
                  BUILD_WORKING_DIRECTORY=self.runs)
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'IMPALA, deep +\| +46.5 \| +– \| +49.4 ± 0.0 \(2 seeds\) \| +\+2.9 \| '
                                  'scaled down: 1 of 24 hyper-parameters, 2M of 10B frames')
    self.assertCountEqual(os.listdir(os.path.join(self.runs, 'out/new')), [
        'table_3.md', 'table_3.csv', 'dmlab30_scores.png', 'dmlab30_learning_curves.png'])

  def test_a_sweep(self):
    for index in range(3):
      run_directories.single_game(self.runs, str(index), curves={'pong': [index]}, sweep_index=index)
    done = _start('--table=sweep', f'--runs={self.runs}/*', f'--output={self.output}', '--figures')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertCountEqual(os.listdir(self.output), ['sweep.md', 'sweep.csv', 'stability.png', 'best_three_curves.png'])

  def test_table_2_of_a_small_task_and_its_figures(self):
    for correction in ('vtrace', 'none'):
      for share in (0., 0.5):
        for values in ('bootstrapped', 'one_step'):
          run_directories.single_game(self.runs, f'{correction}_{share}_{values}', level_name='catch', frames=1000,
                                      off_policy_correction=correction, replay_share=share, action_values=values,
                                      curves={'catch': [-1., share]})
    done = _start('--table=2', f'--runs={self.runs}/*', f'--output={self.output}', '--figures')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout, r'\| catch +\| with +\| V-trace +\| +– \| +0.50 \| +– \| best 1 of 1, 1 run, 1K')
    self.assertCountEqual(os.listdir(self.output), ['table_2.md', 'table_2.csv', 'stability.png',
                                                    'best_three_curves.png', 'action_values.png'])

  @parameterized.parameters(
      ((), '--table=: want one of 2, 3, 4, B.1, C.1, sweep'),
      (('--table=5',), '--table=5: want one of 2, 3, 4, B.1, C.1, sweep'),
      (('--table=2', '--figures'), '--runs: want the runs of a sweep'),
      (('--table=sweep',), '--runs: want the runs of a sweep'),
      (('--table=3', '--output='), '--output: want a folder'),
      (('--table=3', '--output=/proc/here'), '--output: /proc/here: No such file or directory: choose another folder'),
      (('--table=3', '3'), '3: no such argument'),
      (('--tabel=3',), "Unknown command line flag 'tabel'"))
  def test_bad_flags_are_one_line(self, flags, message):
    done = _start(*flags, folder=self.runs)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertStartsWith(done.stderr, f'error: {message}')
    self.assertEqual(done.stderr.count('\n'), 1)
    self.assertEmpty(os.listdir(self.runs))

  def test_every_bad_run_is_one_line_and_nothing_is_written(self):
    run_directories.single_game(self.runs, 'a_good', 20.0)
    run_directories.single_game(self.runs, 'b_not_evaluated')
    torn = run_directories.single_game(self.runs, 'c_torn', 20.0)
    os.truncate(os.path.join(torn, 'evaluation.json'), 20)
    os.mkdir(os.path.join(self.runs, 'd_empty'))
    run_directories.single_game(self.runs, 'e_other', 20.0, binary='r2d2_atari57')
    done = _start('--table=4', f'--runs={self.runs}/*,{self.runs}/f_missing', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    lines = done.stderr.splitlines()
    self.assertLen(lines, 5)
    for line, (kind, name) in zip(lines, (
        ('skipped', 'b_not_evaluated: not evaluated'), ('skipped', 'd_empty: no run has been started there'),
        ('skipped', 'e_other: a run of another agent, r2d2'), ('error', 'c_torn/evaluation.json, line 3 is damaged'),
        ('error', 'f_missing: no such run directory'))):
      self.assertStartsWith(line, f'{kind}: {self.runs}/{name}')
    self.assertFalse(os.path.exists(self.output))

  def test_what_a_pattern_matches_beside_the_runs_is_skipped_and_named(self):
    run_directories.single_game(self.runs, 'game', 20.0)
    run_directories.r2d2(self.runs, 'r2d2', 20.0)
    done = _start('--table=C.1', f'--runs={self.runs}/*', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stderr), (0, f'skipped: {self.runs}/r2d2: a run of another agent, r2d2: '
                                                         'want runs of IMPALA\n'))
    self.assertRegex(done.stdout, r'\| pong .*\| +20.00 \|')
    done = _start('--table=C.1', f'--runs={self.runs}/r*', f'--output={self.output}')
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertEqual(done.stderr, f'error: {self.runs}/r2d2: a run of another agent, r2d2: want runs of IMPALA\n')

  def test_it_starts_without_tensorflow(self):
    self.assertFalse(programs.imports_tensorflow(impala.__name__))

  def test_the_defaults_need_no_runs(self):
    configs.validate_impala(impala.TablesConfig(table='3'))
    self.assertEqual(impala.read_runs(impala.TablesConfig(table='3')), [])


if __name__ == '__main__':
  absltest.main()
