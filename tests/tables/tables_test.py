"""Tests of the program: the papers' numbers, the files that it writes, and one-line messages for invalid input."""

import collections
import contextlib
import csv
import io
import json
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.population import population_directory
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.tables import tables
from scalable_agents.tables.figures import r2d2
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_DATA = pathlib.Path(tables.__file__).parent / 'data'
_PAPERS = ('impala', 'popart_impala', 'r2d2', 'laser')
_AGENT = {'impala': 'IMPALA or A3C', 'popart_impala': 'IMPALA or PopArt-IMPALA', 'r2d2': 'R2D2 or IMPALA',
          'laser': 'LASER or IMPALA or PopArt-IMPALA'}
_LASER_COLUMNS = {'LASER, shared replay, 50M': 'laser_shared_50M', 'LASER, shared replay, 200M': 'laser_shared_200M',
                  'LASER, no sweep, 200M': 'laser_no_sweep_200M', 'Rainbow, 200M': 'rainbow_200M'}


def _rows(file):
  with open(file, encoding='utf-8', newline='') as stream:
    return list(csv.DictReader(stream))


class TablesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.runs = self.create_tempdir().full_path
    self.output = os.path.join(self.create_tempdir().full_path, 'new', 'results')

  def _run(self, paper, table='', runs='', **others):
    """Runs the program. Returns what it prints, and the names of the files that it writes."""
    config = tables.TablesConfig(paper, table, runs, **{'output': self.output} | others)
    tables.validate(config)
    screen = io.StringIO()
    with mock.patch.object(run_flags, 'config_from_flags', return_value=config), contextlib.redirect_stdout(screen):
      tables.main()
    return screen.getvalue(), os.listdir(self.output)

  def _written(self, paper, table, name):
    """Makes a table without runs. Returns its rows in CSV."""
    screen, written = self._run(paper, table)
    self.assertCountEqual(written, [f'{name}.md', f'{name}.csv'])
    text = pathlib.Path(self.output, f'{name}.md').read_text(encoding='utf-8')
    self.assertEqual(screen, f'{text}\nwrote {self.output}/{name}.md\nwrote {self.output}/{name}.csv\n')
    rows = _rows(os.path.join(self.output, f'{name}.csv'))
    lines = [line for line in text.splitlines() if line.startswith('|')]
    self.assertLen(lines, len(rows) + 2)
    for line, row in zip(lines[2:], rows):
      self.assertStartsWith(line, f'| {next(iter(row.values()))} ')
    for row in rows:
      for column, value in row.items():
        if column.endswith(('this run', '±', 'runs', 'difference')):
          self.assertEqual(value, '', column)
    return rows

  @parameterized.parameters(
      ('impala', 'B.1', 'table_B.1', 'impala_table_B1.csv', 'level', 'dmlab30',
       {'IMPALA-Experts, deep': 'experts', 'IMPALA, deep, PBT': 'impala'}),
      ('impala', 'C.1', 'table_C.1', 'impala_table_C1.csv', 'game', 'atari57',
       {'ACKTR': 'acktr', 'Reactor, experts': 'reactor', 'IMPALA, deep, multi-task': 'impala_deep_multitask',
        'IMPALA, shallow, experts': 'impala_shallow', 'IMPALA, deep, experts': 'impala_deep'}),
      ('r2d2', '3', 'r2d2_table_3', 'r2d2_table_3.csv', 'level', 'dmlab30',
       {'IMPALA, shallow (re-run)': 'impala_shallow_rerun', 'IMPALA, deep (re-run)': 'impala_deep_rerun',
        'R2D2': 'r2d2', 'R2D2+': 'r2d2_plus'}),
      ('r2d2', '4', 'r2d2_table_4', 'r2d2_table_4.csv', 'game', 'atari57',
       {'Reactor': 'reactor', 'IMPALA, shallow (original)': 'impala_shallow', 'IMPALA, deep (original)': 'impala_deep',
        'Ape-X': 'apex', 'R2D2': 'r2d2'}),
      ('laser', '2', 'laser_table_2', 'laser_table_2.csv', 'game', 'atari57', _LASER_COLUMNS))
  def test_a_table_of_levels_has_every_number_of_the_paper(self, paper, table, name, file, level, suite, columns):
    rows = {row['level']: row for row in self._written(paper, table, name)}
    printed = {row[level]: row for row in _rows(_DATA / file)}
    self.assertEqual(list(rows)[:len(printed)], list(printed))
    reference = scores.SUITES[suite].scores
    human, random = (np.array([getattr(reference[each], field) for each in printed]) for field in ('human', 'random'))
    np.testing.assert_array_equal([float(rows[each]['human']) for each in printed], human)
    np.testing.assert_array_equal([float(rows[each]['random']) for each in printed], random)
    for agent, column in columns.items():
      numbers = [each[column] for each in printed.values()]
      self.assertEqual([rows[each][f'{agent}: paper'] for each in printed],
                       [number and str(float(number)) for number in numbers])
      if '' not in numbers:
        normalised = 100 * (np.array(numbers, float) - random) / (human - random)
        for measure, value in (('mean capped', np.minimum(normalised, 100).mean()), ('mean', normalised.mean()),
                               ('median', np.median(normalised))):
          if row := rows.get(f'{measure} (%), from these rows'):
            self.assertAlmostEqual(float(row[f'{agent}: paper']), value)
    self.assertEqual({value for row in rows.values() for column, value in row.items() if column.endswith(': run')},
                     {'not run'})

  @parameterized.parameters(
      ('impala', '2', 'table_2', 'impala_table_2.csv', 40), ('impala', '3', 'table_3', 'impala_table_3.csv', 6),
      ('impala', '4', 'table_4', 'impala_table_4.csv', 6),
      ('popart_impala', '1', 'popart_table_1', 'popart_table_1.csv', 12),
      ('r2d2', '1', 'r2d2_table_1', 'r2d2_table_1.csv', 21), ('laser', '1', 'laser_table_1', 'laser_table_1.csv', 12))
  def test_a_table_of_agents_has_every_number_of_the_paper(self, paper, table, name, file, lines):
    rows = self._written(paper, table, name)
    self.assertLen(rows, lines)
    found = collections.Counter(float(value) for row in rows for column, value in row.items()
                                if column.endswith('paper') and value)
    printed = collections.Counter(float(value) for row in _rows(_DATA / file)
                                  for column, value in row.items() if value.replace('.', '').isdigit()
                                  and 'frames' not in column)
    self.assertEqual(found, printed)

  def test_table_1_of_impala_has_speeds(self):
    file = os.path.join(self.runs, 'throughput.json')
    measured = {'task': 'pong', 'architecture': ['single_machine', 'Batched A2C (sync step)', 0], 'level': 'pong',
                'frames_per_second': [4., 6.], 'environments': 8, 'batch_size': 8, 'unroll_length': 20}
    pathlib.Path(file).write_text(json.dumps({'measured': [measured]}), encoding='utf-8')
    for flags, lines in (({}, 22), ({'throughput': file}, 33)):
      screen, written = self._run('impala', '1', **flags)
      self.assertCountEqual(written, ['table_1.md', 'table_1.csv'])
      rows = _rows(os.path.join(self.output, 'table_1.csv'))
      self.assertLen(rows, lines)
      self.assertRegex(screen, r'A3C 32 workers +\| 0 +\| +6500 \|')
    self.assertEqual([float(row['here: frames/s']) for row in rows if row['here: frames/s']], [5.])

  def test_runs_and_pictures_of_the_program_as_a_user_starts_it(self):
    for seed in (1, 2):
      means = {level: 10. * seed for level in scores.SUITES['dmlab30'].test_levels}
      run_directories.make(self.runs, f'dmlab_{seed}', means, seed=seed, frames=2_000_000,
                           curves={'rooms_watermaze': [1.0, 2.0]})
    # As with `bazel run`, paths are relative to the folder of the command.
    for module, flags in (('tables.impala', ()), ('tables', ('--paper=impala',))):
      done = programs.start(f'scalable_agents.{module}', *flags, '--table=3', '--runs=dmlab_1, dmlab_[23]',
                            f'--output=out/{module}', '--figures', folder='/', BUILD_WORKING_DIRECTORY=self.runs)
      self.assertEqual((done.returncode, done.stderr), (0, ''))
      self.assertRegex(done.stdout, r'IMPALA, deep +\| +46.5 \| +– \| +[\d.]+ ± [\d.]+ \(2 runs\) \| +[-+][\d.]+ \| '
                                    'scaled down: 1 of 24 hyper-parameters, 2M of 10B frames')
      self.assertCountEqual(os.listdir(os.path.join(self.runs, 'out', module)), [
          'table_3.md', 'table_3.csv', 'dmlab30_scores.png', 'dmlab30_learning_curves.png'])

  def test_a_sweep_and_an_agent_that_is_not_in_the_registry(self):
    for index in range(3):
      run_directories.single_game(self.runs, str(index), curves={'pong': [index]}, sweep_index=index)
    run_directories.single_game(self.runs, 'toy', curves={'pong': [7.]}, agent='toy')
    screen, written = self._run('impala', 'sweep', f'{self.runs}/*', figures=True)
    self.assertCountEqual(written, ['sweep.md', 'sweep.csv', 'stability.png', 'best_three_curves.png'])
    self.assertRegex(screen, r'deep, agent=toy, vtrace +\| 1 .* 7.00 ')

  def test_regression_a_sweep_has_no_runs_without_its_settings(self):
    run_directories.single_game(self.runs, 'a', curves={'pong': [1.]})
    run_directories.r2d2(self.runs, 'b', curves={'pong': [2.]}, learning_rate=1e-4)
    run_directories.single_game(self.runs, 'c', curves={'pong': [3.]}, agent='toy', entropy_cost=None)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
      self._run('impala', 'sweep', f'{self.runs}/*')
    message = ': a run of another agent, its config.json has no entropy_cost: want runs of agents with the settings of '
    self.assertEqual(stderr.getvalue(), ''.join(f'skipped: {self.runs}/{name}{message}IMPALA\n' for name in 'bc'))
    self.assertLen(_rows(os.path.join(self.output, 'sweep.csv')), 1)
    with self.assertRaisesRegex(errors.UserError, f'/b{message}IMPALA$'):
      self._run('impala', 'sweep', f'{self.runs}/b')

  def test_figures_without_a_table_take_runs_of_any_agents(self):
    for level in ('pong', 'breakout'):
      run_directories.r2d2(self.runs, level, level_name=level, curves={level: [1., 2.]})
    _, written = self._run('impala', runs=f'{self.runs}/*', figures=True)
    self.assertCountEqual(written, ['impala_atari57.png', 'impala_atari57_bars.png'])

  def test_table_2_of_a_small_task_and_its_figures(self):
    for correction in ('vtrace', 'none'):
      for share in (0., 0.5):
        for values in ('bootstrapped', 'one_step'):
          run_directories.single_game(self.runs, f'{correction}_{share}_{values}', level_name='catch', frames=1000,
                                      off_policy_correction=correction, replay_share=share, action_values=values,
                                      curves={'catch': [-1., share]})
    screen, written = self._run('impala', '2', f'{self.runs}/*', figures=True)
    self.assertRegex(screen, r'\| catch +\| with +\| V-trace +\| +– \| +0.50 \| +– \| best 1 of 1, 1 run, 1K')
    self.assertCountEqual(written, ['table_2.md', 'table_2.csv', 'stability.png', 'best_three_curves.png',
                                    'action_values.png'])

  def test_returns_of_runs_of_any_agents(self):
    run_directories.laser(self.runs, 'laser', [1.] * 4, frames=1_000)
    run_directories.r2d2(self.runs, 'r2d2', frames=1_000, curves={'pong': [1.]})
    screen, written = self._run('impala', runs=f'{self.runs}/*', returns_every=500, figures=True)
    self.assertRegex(screen, r'\| pong +\| LASER +\| +1 \| +1\.00 \| +1\.00 \|')
    self.assertCountEqual(written, ['returns.md', 'returns.csv', 'returns.png'])

  def test_figures_of_popart_of_runs_that_were_not_evaluated(self):
    for name, flags in (('popart', {'binary': 'popart_impala_atari57', 'value_normalization': 'popart'}),
                        ('impala', {'binary': 'impala_atari57'})):
      run_directories.make(self.runs, name, level_name='pong,breakout', curves={'pong': [-20., 20.]},
                           more={'popart/mean/pong': [0., 1.], 'popart/scale/pong': [1., 1.],
                                 'suite_score/median': [1., 2.]}, **flags)
    _, written = self._run('popart_impala', runs=f'{self.runs}/*', figures=True)
    self.assertCountEqual(written, ['popart_scores.png', 'popart_returns.png', 'popart_levels.png',
                                    'popart_statistics_popart.png'])

  def test_of_a_population_the_fittest_members_statistics_are_drawn(self):
    for index in range(2):
      logdir = run_directories.make(
          self.runs, f'population/member_0{index}', binary='popart_impala_atari57', value_normalization='popart',
          level_name='pong', population_size=2, curves={'pong': [1., 2. + index]},
          more={'popart/mean/pong': [0., 1.], 'popart/scale/pong': [1., 1.]})
      population_directory.write_fitness(logdir, population_directory.Fitness(1000, index, {'learning_rate': 6e-4}))
    _, written = self._run('popart_impala', runs=f'{self.runs}/population/*', figures=True)
    self.assertCountEqual(written, ['popart_returns.png', 'popart_levels.png',
                                    'popart_statistics_population_member_01.png'])

  def test_a_table_and_all_figures_of_r2d2(self):
    measured = {'measure_delta_q': True, 'more': {'delta_q/first': [1., 2.], 'delta_q/last': [1., 2.]}}
    for game, more in (('pong', measured), ('breakout', {'histories': {'inf': (1., 1., 0.)}})):
      run_directories.r2d2(self.runs, game, 1., level_name=game, frames=1000, curves={game: [1., 2.]}, **more)
    run_directories.r2d2(self.runs, 'clipped', 1., frames=1000, curves={'pong': [1., 2.]}, reward_transform='abs_one',
                         value_rescaling=False)
    run_directories.single_game(self.runs, 'impala', 1., agent='impala', curves={'pong': [1., 2.]})
    screen, written = self._run('r2d2', '4', f'{self.runs}/*', figures=True)
    self.assertRegex(screen, r'\| pong .* scaled down: 1K of 10B frames')
    self.assertCountEqual(written, ['r2d2_table_4.md', 'r2d2_table_4.csv', 'r2d2_delta_q.png', 'r2d2_ablations.png',
                                    'r2d2_memory.png', 'r2d2_levels.png', 'r2d2_atari57.png',
                                    'r2d2_atari57_bars.png'])

  def test_of_a_population_of_r2d2_the_fittest_member_is_drawn(self):
    for index in range(2):
      logdir = run_directories.r2d2(self.runs, f'population/member_0{index}', population_size=2, learning_rate=1e-4,
                                    histories={'inf': (float(index), 1., 0.)})
      population_directory.write_fitness(logdir, population_directory.Fitness(1000, index, {'learning_rate': 1e-4}))
    runs, _ = runs_lib.read([f'{self.runs}/population/*'], False, (runs_lib.R2D2,))
    line = r2d2.pictures(runs)['r2d2_memory'].axes[0].lines[0]
    self.assertEqual([*line.get_ydata()], [1.])

  def test_a_table_and_all_figures_of_laser(self):
    rejected = {'rejected/online': [0., 0.], 'rejected/replayed': [0.5, 0.25]}
    for index in range(2):
      run_directories.laser(self.runs, f'sweep/agent_{index}', [20. - index] * 200, shared_replay='here:1',
                            learning_rate=3e-4 * (index + 1), frames=10_000_000, curves={'pong': [1., 2.]},
                            more=rejected)
    run_directories.laser(self.runs, 'pure', [1.] * 200, learn_online=False)
    run_directories.laser(self.runs, 'impala', [1.] * 200, agent='impala', binary='impala_atari57', replay_share=0.)
    screen, written = self._run('laser', '2', f'{self.runs}/sweep/*,{self.runs}/pure,{self.runs}/impala', figures=True)
    self.assertRegex(screen, r'\| pong .* 20.0 \| +-1.0 \| scaled down: 10M of 50M frames, 2 of 9 agents')
    self.assertCountEqual(written, ['laser_table_2.md', 'laser_table_2.csv', 'laser_data_efficiency.png',
                                    'laser_ablations.png', 'laser_rejected.png'])

  @parameterized.parameters(
      ('impala', {}, '--table=: want one of 1, 2, 3, 4, B.1, C.1, sweep'),
      ('impala', {'table': '5'}, '--table=5: want one of 1, 2, 3, 4, B.1, C.1, sweep'),
      ('impala', {'table': '2', 'figures': True}, '--runs: want the runs of a sweep'),
      ('impala', {'table': 'sweep'}, '--runs: want the runs of a sweep'),
      ('impala', {'table': '1', 'figures': True}, '--table=1: want neither --runs nor --figures; '),
      ('impala', {'table': '3', 'throughput': 'file'}, '--throughput: only with --table=1 of impala'),
      ('r2d2', {'table': '1', 'throughput': 'file'}, '--throughput: only with --table=1 of impala'),
      ('impala', {'table': '1', 'throughput': '/none'}, '--throughput=/none: want throughput.json of '),
      ('popart_impala', {}, '--table=: want 1, or --figures'), ('r2d2', {}, '--table=: want one of 1, 3, 4, or --'),
      ('laser', {}, '--table=: want one of 1, 2, or --figures'),
      ('laser', {'table': '3'}, '--table=3: want one of 1, 2'),
      ('popart_impala', {'table': '2'}, '--table=2: want one of 1'), ('r2d2', {'table': '2'}, '--table=2: want one of'),
      ('impala', {'budget': True, 'table': '3'}, '--budget: want no other flag but --output'),
      ('impala', {'returns_every': 500}, '--returns_every: want --runs, and no other flags but --'),
      *((paper, {'figures': True}, '--runs: want the runs to draw') for paper in _PAPERS[1:]),
      *((paper, {'table': table, 'output': ''}, '--output=: want a folder') for paper, table in zip(_PAPERS, '3111')),
      ('impala', {'table': '3', 'output': '/proc/here'}, '--output: /proc/here: No such file or directory: choose'))
  def test_bad_flags(self, paper, flags, message):
    with self.assertRaises((ValueError, errors.UserError)) as raised:
      self._run(paper, **flags)
    self.assertStartsWith(str(raised.exception), message)
    self.assertNotIn('\n', str(raised.exception))

  @parameterized.parameters(*_PAPERS)
  def test_each_name_of_the_program_is_of_its_paper_and_has_one_line_for_an_error(self, paper):
    module = f'scalable_agents.tables.{paper}'
    run_directories.laser(self.runs, 'laser')
    run_directories.r2d2(self.runs, 'r2d2')
    other = 'r2d2' if paper == 'laser' else 'laser'
    flags = ('--table=3',) if paper == 'impala' else ('--figures',)
    done = programs.start(module, *flags, f'--runs={other}', folder=self.runs)
    self.assertEqual((done.returncode, done.stdout, done.stderr.replace(f'{self.runs}/', '')), (
        1, '', f'error: {other}: a run of another agent, {other}: want runs of {_AGENT[paper]}\n'))
    self.assertCountEqual(os.listdir(self.runs), ['laser', 'r2d2'])

  def test_the_budget_is_printed_and_written(self):
    screen, written = self._run('impala', budget=True)
    self.assertStartsWith(screen, '**What the results of the papers cost**\n')
    self.assertCountEqual(written, ['budget.md', 'budget.csv'])

  def test_unknown_flags_and_arguments_are_one_line(self):
    for flag, message in (('3', '3: no such argument'), ('--tabel=3', "Unknown command line flag 'tabel'")):
      done = programs.start('scalable_agents.tables.impala', '--table=3', flag, folder=self.runs)
      self.assertEqual((done.returncode, done.stdout, done.stderr.count('\n')), (1, '', 1))
      self.assertStartsWith(done.stderr, f'error: {message}')

  def test_bad_runs_are_named(self):
    run_directories.make(self.runs, 'popart', binary='popart_impala_dmlab30')
    run_directories.r2d2(self.runs, 'r2d2')
    run_directories.r2d2(self.runs, 'no_torso', torso=None)
    run_directories.r2d2(self.runs, 'wrong_type', use_lstm='yes')
    run_directories.laser(self.runs, 'laser')
    run_directories.laser(self.runs, 'wrong_online', learn_online='yes')
    torn = run_directories.laser(self.runs, 'torn', [1., 2.])
    with open(os.path.join(torn, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.write('?\n')
    for paper, table, run, message in (
        ('popart_impala', '1', 'popart', 'popart: not evaluated (it has no evaluation.json): run the agent'),
        ('popart_impala', '', 'popart', '--figures: these runs have no metrics to draw'),
        ('r2d2', '1', 'no_torso', 'no_torso: a run of another agent, its config.json has no torso: want runs of R2D2 '
                                  'or IMPALA'),
        ('r2d2', '1', 'wrong_type', 'wrong_type/config.json: --use_lstm=yes: want true or false'),
        ('r2d2', '4', 'r2d2', 'r2d2: not evaluated (it has no evaluation.json): run the agent'),
        ('r2d2', '', 'r2d2', '--figures: these runs have nothing to draw: want runs that'),
        ('laser', '1', 'wrong_online', 'wrong_online/config.json: --learn_online=yes: want true or false'),
        ('laser', '2', 'torn', 'torn/episodes.csv, line 4'),
        ('laser', '', 'laser', '--figures: these runs have nothing to draw: want runs of LASER that')):
      with self.assertRaises(errors.UserError) as raised:
        self._run(paper, table, os.path.join(self.runs, run), figures=not table)
      self.assertStartsWith(str(raised.exception).replace(f'{self.runs}/', ''), message)
      self.assertNotIn('\n', str(raised.exception))

  def test_every_bad_run_is_one_line_and_nothing_is_written(self):
    run_directories.single_game(self.runs, 'a_good', 20.0)
    run_directories.single_game(self.runs, 'b_not_evaluated')
    torn = run_directories.single_game(self.runs, 'c_torn', 20.0)
    os.truncate(os.path.join(torn, 'evaluation.json'), 20)
    os.mkdir(os.path.join(self.runs, 'd_empty'))
    run_directories.single_game(self.runs, 'e_other', 20.0, binary='r2d2_atari57')
    done = programs.start('scalable_agents.tables.impala', '--table=4', f'--runs={self.runs}/*,{self.runs}/f_missing',
                          f'--output={self.output}')
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
    other = f'{self.runs}/r2d2: a run of another agent, r2d2: want runs of IMPALA or A3C'
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
      screen, _ = self._run('impala', 'C.1', f'{self.runs}/*')
    self.assertEqual(stderr.getvalue(), f'skipped: {other}\n')
    self.assertRegex(screen, r'\| pong .*\| +20.00 \|')
    with self.assertRaises(errors.UserError) as raised:
      self._run('impala', 'C.1', f'{self.runs}/r*')
    self.assertEqual(str(raised.exception), other)
    run_directories.single_game(self.runs, 'two_learner_1', job_name='learner', task=1)
    with self.assertRaisesRegex(errors.UserError, '^--runs=.*: only directories of other learners than learner 0: '):
      self._run('impala', 'C.1', f'{self.runs}/two*')

  def test_it_starts_without_tensorflow(self):
    self.assertFalse(programs.imports_tensorflow(tables.__name__))


if __name__ == '__main__':
  absltest.main()
