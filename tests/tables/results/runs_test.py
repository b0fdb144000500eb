"""Tests which agent a run is, and the messages for directories that cannot be read."""

import json
import os
import pathlib
import shutil

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.population import population_directory
from scalable_agents.tables.papers import laser_variants
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs
from scalable_agents.tests.tables import run_directories

_DMLAB = {'level_name': 'dmlab30', 'use_lstm': True}
_DMLAB_LEVEL = {'level_name': 'rooms_collect_good_objects_train', 'use_lstm': True}
_ATARI = {'level_name': 'atari57', 'use_lstm': False}
_GAME = {'level_name': 'pong', 'use_lstm': False}


class RunsTest(run_directories.TestCase):

  def _read_one(self, logdir, evaluated=True, agents=('impala',)):
    (run,), faults = runs.read([logdir], evaluated, agents)
    self.assertEmpty(faults)
    return run

  def _fault(self, logdir):
    found, faults = runs.read([logdir], evaluated=True)
    self.assertEmpty(found)
    self.assertLen(faults, 1)
    self.assertNotIn('\n', faults[0])
    return faults[0]

  @parameterized.parameters(
      ({'level_name': ['pong']}, r"--level_name=\['pong'\]: want text"),
      ({'use_lstm': 'yes'}, '--use_lstm=yes: want true or false'),
      ({'seed': 1.5}, '--seed=1.5: want a whole number'),
      ({'total_environment_frames': '1e9'}, '--total_environment_frames=1e9: want a whole number'),
      ({'population_size': '24'}, '--population_size=24: want a whole number'),
      ({'learner_addresses': 7}, '--learner_addresses=7: want text'),
      ({'task': True}, '--task=True: want a whole number'),
      ({'learning_rate': {}}, '--learning_rate={}: want a number'))
  def test_a_setting_of_another_type_is_one_line(self, settings, wanted):
    logdir = run_directories.make(self.folder, 'run', {'pong': 20.0}, **settings)
    self.assertRegex(self._fault(logdir), f'^{logdir}/config.json: {wanted}: put the file back, or leave the run out$')

  def test_of_a_population_only_the_fittest_member_counts(self):
    for index, fitness in enumerate((1., 3., 2.)):
      logdir = run_directories.make(self.folder, f'population/member_0{index}', population_size=3)
      population_directory.write_fitness(logdir, population_directory.Fitness(1, fitness, {'learning_rate': 6e-4}))
    run_directories.make(self.folder, 'alone')
    found, _ = runs.read([f'{self.folder}/population/*', f'{self.folder}/alone'], False)
    self.assertEqual([os.path.basename(run.logdir) for run in runs.fittest(found)], ['member_01', 'alone'])

  def test_a_setting_that_is_null_has_its_default(self):
    file = pathlib.Path(run_directories.make(self.folder, 'run', {'pong': 20.0}, **_GAME), 'config.json')
    config = json.loads(file.read_text(encoding='utf-8'))
    config['flags'] |= dict.fromkeys(runs._OTHER_FLAGS) | {
        'job_name': 'learner', 'replay_share': 0.75, 'replay_sampling': 'prioritised'}
    file.write_text(json.dumps(config), encoding='utf-8')
    run = self._read_one(str(file.parent))
    self.assertEqual((run.task, run.population, run.learners, run.actors), (0, 1, 1, None))
    self.assertEqual(laser_variants.ablations(run), ['Prioritised (beta 1)'])

  @parameterized.parameters(
      (_DMLAB | {'torso': 'shallow'}, 'IMPALA, shallow'),
      (_DMLAB, 'IMPALA, deep'),
      (_DMLAB | {'population_size': 1, 'num_learners': 1}, 'IMPALA, deep'),
      (_DMLAB | {'population_size': 0, 'num_learners': 0}, 'IMPALA, deep'),
      (_DMLAB | {'population_size': 4}, 'IMPALA, deep, PBT'),
      (_DMLAB | {'population_size': 24}, 'IMPALA, deep, PBT'),
      (_DMLAB | {'population_size': 24, 'num_learners': 8}, 'IMPALA, deep, PBT, 8 learners'),
      (_DMLAB | {'num_learners': 2}, 'IMPALA, deep, PBT, 8 learners'),
      (_DMLAB | {'learner_addresses': 'a:1,b:1', 'num_learners': 4}, 'IMPALA, deep, PBT, 8 learners'),
      (_DMLAB | {'learner_addresses': ','.join(['a:1'] * 9)}, None),
      (_DMLAB | {'learner_addresses': 'a:1'}, 'IMPALA, deep'),
      (_DMLAB_LEVEL, 'IMPALA-Experts, deep'),
      (_DMLAB_LEVEL | {'level_name': 'rooms_collect_good_objects_test'}, 'IMPALA-Experts, deep'),
      (_GAME, 'IMPALA, deep, experts'),
      (_GAME | {'torso': 'shallow'}, 'IMPALA, shallow, experts'),
      (_ATARI, 'IMPALA, deep, multi-task'),
      (_ATARI | {'population_size': 24}, 'IMPALA, deep, multi-task'),
      (_DMLAB | {'use_lstm': False}, None),
      (_DMLAB | {'torso': 'shallow', 'population_size': 2}, None),
      (_DMLAB | {'population_size': 25}, None),
      (_DMLAB | {'off_policy_correction': 'none'}, None),
      (_DMLAB_LEVEL | {'torso': 'shallow'}, None),
      (_DMLAB_LEVEL | {'population_size': 24}, None),
      (_GAME | {'use_lstm': True}, None),
      (_ATARI | {'torso': 'shallow'}, None),
      (_ATARI | {'num_learners': 8}, None),
      ({'level_name': 'catch'}, None),
      (_DMLAB | {'agent': 'a3c', 'off_policy_correction': None}, 'A3C, deep'),
      (_GAME | {'agent': 'a3c', 'off_policy_correction': None}, 'A3C, deep, experts'),
      (_GAME | {'agent': 'a2c', 'off_policy_correction': None}, None),
  )
  def test_the_settings_decide_which_agent_a_run_is(self, flags, expected):
    run = self._read_one(run_directories.make(self.folder, 'run', **flags), evaluated=False, agents=())
    agent = runs.agent_of(run, published.AGENTS.values())
    self.assertEqual(agent and agent.name, expected)

  def test_a_table_without_the_agent_itself_has_it_scaled_down(self):
    run = self._read_one(run_directories.make(self.folder, 'run'), evaluated=False)
    agents = [published.AGENTS[name] for name in ('IMPALA-Experts, deep', 'IMPALA, deep, PBT')]
    self.assertEqual(runs.agent_of(run, agents).name, 'IMPALA, deep, PBT')

  def test_an_evaluation_is_read_under_the_names_for_testing(self):
    for name in ('train', 'test'):
      logdir = run_directories.make(self.folder, name, {f'rooms_collect_good_objects_{name}': 5.5}, episodes=10,
                                    frames=700, level_name='rooms_collect_good_objects_train')
      self.assertEqual(self._read_one(logdir).evaluation,
                       runs.Evaluation({'rooms_collect_good_objects_test': 5.5}, 10, 700))

  def test_patterns_find_each_directory_once(self):
    for name in ('b', 'a', 'c[1]'):
      run_directories.single_game(self.folder, name, 1.0)
    os.symlink(os.path.join(self.folder, 'a'), os.path.join(self.folder, 'link'))
    patterns = [os.path.join(self.folder, pattern) for pattern in ('c[1]', '[ab]', 'a', 'link')]
    found, faults = runs.read(patterns, evaluated=True)
    self.assertEmpty(faults)
    self.assertEqual([os.path.basename(run.logdir) for run in found], ['c[1]', 'a', 'b'])

  def test_a_copy_of_a_run_is_no_further_seed(self):
    """A copy may have been made before the run's end, and may have been evaluated again."""
    for name, seed in (('a', 1), ('c', 2), ('d', 1)):
      run_directories.single_game(self.folder, name, 1.0, seed=seed, curves={'pong': [1., 2.]})
    copy = pathlib.Path(self.folder, 'a_too')
    shutil.copytree(os.path.join(self.folder, 'a'), copy)
    (copy / 'metrics.jsonl').write_text((copy / 'metrics.jsonl').read_text().splitlines(keepends=True)[0])
    (copy / 'evaluation.json').write_text((copy / 'evaluation.json').read_text().replace('1.0', '1.5'))
    skipped = []
    found, faults = runs.read([os.path.join(self.folder, '*')], evaluated=True, skip=skipped.append)
    self.assertEqual(([os.path.basename(run.logdir) for run in found], faults), (['a', 'c', 'd'], []))
    self.assertEqual(skipped, [f'{self.folder}/a_too: a copy of {self.folder}/a'])
    (copy / 'checkpoints').mkdir()  # An old copy with checkpoints is not better.
    found, _ = runs.read([os.path.join(self.folder, '*')], evaluated=True, skip=skipped.append)
    self.assertEqual([os.path.basename(run.logdir) for run in found], ['a', 'c', 'd'])
    shutil.copy(os.path.join(self.folder, 'a', 'metrics.jsonl'), copy)  # Now `a` may be its excerpt.
    found, _ = runs.read([os.path.join(self.folder, '*')], evaluated=True, skip=skipped.append)
    self.assertEqual([os.path.basename(run.logdir) for run in found], ['a_too', 'c', 'd'])

  def test_regression_members_found_with_a_slash_at_the_end_are_of_one_population(self):
    for index in range(2):
      run_directories.single_game(self.folder, f'member_0{index}', population_size=2)
    found, _ = runs.read([os.path.join(self.folder, 'member_*/')], evaluated=False)
    self.assertLen(runs.populations(found), 1)

  def test_every_bad_directory_has_a_line_and_the_good_ones_are_read(self):
    run_directories.single_game(self.folder, 'a', 1.0)
    run_directories.single_game(self.folder, 'b')
    os.mkdir(os.path.join(self.folder, 'c'))
    found, faults = runs.read([os.path.join(self.folder, '*'), os.path.join(self.folder, 'x*')], evaluated=True)
    self.assertLen(found, 1)
    self.assertLen(faults, 3)
    for fault, name in zip(faults, ('b: not evaluated', 'c: no run has been started there', r'x*: no such run')):
      self.assertStartsWith(fault, os.path.join(self.folder, name))

  def test_what_a_pattern_matches_and_nobody_wants_is_skipped_and_named(self):
    run_directories.single_game(self.folder, 'a', 1.0)
    run_directories.single_game(self.folder, 'b')
    os.mkdir(os.path.join(self.folder, 'c'))
    run_directories.r2d2(self.folder, 'd', 1.0)
    os.truncate(os.path.join(run_directories.single_game(self.folder, 'e', 1.0), 'config.json'), 20)
    pathlib.Path(self.folder, 'f.log').touch()
    skipped = []
    found, faults = runs.read([os.path.join(self.folder, '*')], True, skip=skipped.append)
    self.assertEqual([os.path.basename(run.logdir) for run in found], ['a'])
    for lines, wanted in ((skipped, ('b: not evaluated', 'c: no run has been', 'd: a run of another agent, r2d2',
                                     'f.log: no run has been')),
                          (faults, ('e/config.json, line 3 is damaged',))):
      self.assertLen(lines, len(wanted))
      for line, start in zip(lines, wanted):
        self.assertStartsWith(line, os.path.join(self.folder, start))
    _, faults = runs.read([os.path.join(self.folder, name) for name in 'bcd'], True, skip=self.fail)
    self.assertLen(faults, 3)  # They were named one by one.

  def test_a_run_of_several_learners_is_the_first_ones(self):
    common = {'learner_addresses': 'a:1,b:1', 'job_name': 'learner'}
    first = run_directories.single_game(self.folder, 'run', 1.0, task=0, **common)
    second = run_directories.single_game(self.folder, 'run_learner_1', task=1, **common)
    found, faults = runs.read([os.path.join(self.folder, '*')], evaluated=True)
    self.assertEqual([run.logdir for run in found], [first])
    self.assertEmpty(faults)
    self.assertEqual(self._fault(second), f'{second}: the directory of learner 1 of a run: want that of learner 0')

  def test_a_file_is_no_run_directory(self):
    file = os.path.join(self.folder, 'file')
    pathlib.Path(file).write_bytes(b'')
    self.assertStartsWith(self._fault(file), f'{file}: no run has been started there')

  def test_an_evaluation_is_only_missed_where_it_is_needed(self):
    logdir = run_directories.single_game(self.folder, 'run')
    self.assertIsNone(self._read_one(logdir, evaluated=False).evaluation)
    self.assertEqual(self._fault(logdir), f'{logdir}: not evaluated (it has no evaluation.json): run the agent on '
                                          'it with --mode=test')

  @parameterized.parameters('config.json', 'evaluation.json')
  def test_a_file_cut_in_half_is_named(self, name):
    logdir = run_directories.single_game(self.folder, 'run', 1.0)
    file = pathlib.Path(logdir, name)
    os.truncate(file, file.stat().st_size // 2)
    self.assertRegex(self._fault(logdir), rf'^{file}, line \d+ is damaged \(')

  @parameterized.parameters(
      ([],), ({},), ({'levels': {}, 'protocol': {'num_episodes': 1, 'environment_frames': 1}},),
      ({'levels': {'pong': {'mean': None}}, 'protocol': {'num_episodes': 1, 'environment_frames': 1}},),
      ({'levels': {'pong': {'mean': float('nan')}}, 'protocol': {'num_episodes': 1, 'environment_frames': 1}},),
      ({'levels': {'pong': 3}, 'protocol': {'num_episodes': 1, 'environment_frames': 1}},),
      ({'levels': {'pong': {'mean': 1.0}}, 'protocol': {'num_episodes': 1}},))
  def test_an_evaluation_with_anything_else_in_it_is_damaged(self, content):
    logdir = run_directories.single_game(self.folder, 'run', 1.0)
    file = pathlib.Path(logdir, 'evaluation.json')
    file.write_text(json.dumps(content), encoding='utf-8')
    self.assertRegex(self._fault(logdir),
                     r'evaluation.json(, line 1)? is damaged \(.+\): run the agent with --mode=test')

  @parameterized.parameters(('pong', 'breakout'), ('pong', 'hello'), ('atari57', 'rooms_watermaze'))
  def test_an_evaluation_of_levels_that_were_not_learned_is_refused(self, learned, evaluated):
    logdir = run_directories.make(self.folder, 'run', {evaluated: 1.0}, level_name=learned)
    self.assertIn(f'evaluation.json has the level {evaluated}, but the run has learned {learned}',
                  self._fault(logdir))

  @parameterized.parameters('r2d2_atari57', 'laser_atari57', 'popart_impala_dmlab30')
  def test_a_run_of_another_agents_binary_is_refused(self, binary):
    logdir = run_directories.make(self.folder, 'run', {'pong': 1.0}, level_name='pong', binary=binary)
    self.assertEqual(self._fault(logdir), f'{logdir}: a run of another agent, {binary.rpartition("_")[0]}: want runs '
                                          'of IMPALA')

  def test_a_run_of_r2d2_is_read_only_where_it_is_wanted(self):
    logdir = run_directories.r2d2(self.folder, 'run', 1.0)
    self.assertEqual(self._fault(logdir), f'{logdir}: a run of another agent, r2d2: want runs of IMPALA')
    (run,), faults = runs.read([logdir], True, (runs.R2D2,))
    self.assertEmpty(faults)
    self.assertEqual((run.agent, run.family, run.evaluation.means), ('r2d2', 'r2d2', {'pong': 1.0}))
    self.assertEqual(runs.describe(run), 'a single level of atari57, dqn, LSTM, R2D2, population of 1, 1 learner')

  def test_a_run_without_impalas_settings_is_refused(self):
    logdir = run_directories.make(self.folder, 'run', {'pong': 1.0}, level_name='pong', off_policy_correction=None)
    self.assertEqual(self._fault(logdir), f'{logdir}: a run of another agent, its config.json has no '
                                          'off_policy_correction: want runs of IMPALA')

  @parameterized.parameters((['/usr/bin/python3', '/home/me/agents/impala_atari57.py', '--seed=2'],),
                            (['python3', '-m', 'pytest', 'tests'],), ([],))
  def test_a_run_of_impala_may_have_been_started_in_any_way(self, command_line):
    logdir = run_directories.single_game(self.folder, 'run', 1.0)
    config = pathlib.Path(logdir, 'config.json')
    content = json.loads(config.read_text(encoding='utf-8')) | {'command_line': command_line}
    config.write_text(json.dumps(content), encoding='utf-8')
    self.assertEqual(self._read_one(logdir).evaluation.means, {'pong': 1.0})

  def test_config_json_names_the_agent_whatever_the_command_line_was(self):
    logdir = run_directories.single_game(self.folder, 'run', 1.0)
    config = pathlib.Path(logdir, 'config.json')
    content = json.loads(config.read_text(encoding='utf-8'))
    config.write_text(json.dumps(content | {'agent': 'impala', 'command_line': ['laser_atari57.py']}), encoding='utf-8')
    self.assertEqual(self._read_one(logdir).evaluation.means, {'pong': 1.0})
    config.write_text(json.dumps(content | {'agent': 'laser'}), encoding='utf-8')
    self.assertEqual(self._fault(logdir), f'{logdir}: a run of another agent, laser: want runs of IMPALA')


if __name__ == '__main__':
  absltest.main()
