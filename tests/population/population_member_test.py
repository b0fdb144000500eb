"""A member's steps, with learners that do not learn: when it evolves, what it copies, and what it survives."""

import glob
import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.cluster import learner_port
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30
from scalable_agents.population import pbt
from scalable_agents.population import population_config
from scalable_agents.population import population_directory
from scalable_agents.population import population_member
from scalable_agents.records import checkpoint
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.tests.training import unrolls

_PATIENCE = 10  # Episodes.


def setUpModule():
  learner_port.configure_devices(2)


def _hyper_parameters(learner):
  return {name: float(value.numpy()) for name, value in learner.hyper_parameters.items()}


def _twice(values, unused_random=None):
  """Takes the place of pbt.explore."""
  return {name: 2 * value for name, value in values.items()}


def _variables(learner):
  """All of a learner that others may copy."""
  return *learner.agent.variables, *learner.optimizer.variables, *learner.hyper_parameters.values()


def _copies(variable):
  """The variable of each of several learners; of one learner the variable itself."""
  return getattr(variable, 'values', (variable,))


def _values(learner):
  """The values of `_variables`. Where several learners have copies of a variable, they must be equal."""
  values = []
  for variable in _variables(learner):
    first, *others = [copy.numpy() for copy in _copies(variable)]
    for other in others:
      np.testing.assert_array_equal(other, first, variable.name)
    values.append(first)
  return values


_POPART = dict(agent=popart_impala.POPART_IMPALA)
_LEVELS = ('catch', 'chain', 'recall')  # PopArt has a value head and statistics for each of them.


class MemberTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.reports = []

  def _logdir(self, index):
    return os.path.join(self.folder, population_directory.member_name(index))

  def _member(self, index, levels=('catch',), initial_frames=0, size=3, num_learners=1, agent=impala.IMPALA,
              members_seed=None, **settings):
    """Returns a member and its learner. All its variables differ from those of other members."""
    os.makedirs(self._logdir(index), exist_ok=True)
    settings = {'learning_rate': 0.1 * (index + 1), 'entropy_cost': 0.01 * (index + 1), 'seed': index} | settings
    config = agent.config(learning_rate_decay=False, **settings)
    with learner_port.make_strategy(num_learners, port=None).scope():
      learner = agent.make_learner(agent.network(unrolls.environment_spec(levels=_LEVELS), config), config)
    trainable = {id(variable) for variable in learner.agent.trainable_variables}
    of_agent = (variable for variable in learner.agent.variables if id(variable) not in trainable)
    for variable in (*learner.optimizer.mean_squares, *learner.optimizer.momenta, *of_agent):
      variable.assign(variable + 10. * index)
    population = population_config.PopulationConfig(size, _PATIENCE, initial_frames)
    directory = self.enterContext(run_directory.Run(self._logdir(index)))
    member = population_member.Member(learner, self.reports.append, population, levels,
                                      index if members_seed is None else members_seed, directory)
    return member, learner

  def _play(self, member, frames, mean_return, episodes=_PATIENCE):
    member.learned(frames, np.zeros(episodes, np.int32), np.full(episodes, mean_return, np.float32))

  def _evolutions(self, index):
    return population_directory.read_evolutions(self._logdir(index))

  def _unexplored(self):
    """Inside, hyper-parameters are not perturbed."""
    return absltest.mock.patch.object(pbt, 'explore', lambda values, random: values)

  def test_fitness_is_of_so_many_episodes_and_all_levels(self):
    member, _ = self._member(0, levels=('catch', 'chain'))
    play = lambda level, *returns: member.learned(
        1000, np.full(len(returns), level, np.int32), np.array(returns, np.float32))
    play(0, *[0.5] * (_PATIENCE - 1))
    play(0)
    self.assertIsNone(population_directory.read_fitness(self._logdir(0)))
    play(0, -0.5)
    self.assertIsNone(population_directory.read_fitness(self._logdir(0)))  # There is a level without episodes.
    play(1, 0.25)
    fitness = population_directory.read_fitness(self._logdir(0))
    self.assertAlmostEqual(fitness.fitness, 100 * (0.4 + 0.25) / 2)
    self.assertEqual(fitness.environment_frames, 1000)
    self.assertEqual(member.metrics()['fitness'], fitness.fitness)
    play(1, *[1.0] * _PATIENCE)
    self.assertEqual(population_directory.read_fitness(self._logdir(0)), fitness)  # The count has begun anew.
    play(0, 1.0)
    self.assertAlmostEqual(population_directory.read_fitness(self._logdir(0)).fitness, 100)

  def test_regression_episodes_count_until_the_fitness_is_written(self):
    member, _ = self._member(0)
    with absltest.mock.patch.object(population_directory, 'write_fitness', side_effect=OSError('full')), \
         self.assertRaises(OSError):
      self._play(member, 100, 0.25)
    member.learned(200, np.zeros(0, np.int32), np.zeros(0, np.float32))
    fitness = population_directory.read_fitness(self._logdir(0))
    self.assertAlmostEqual(fitness.fitness, 25.)
    self.assertEqual(fitness.environment_frames, 200)

  def test_nothing_evolves_in_the_first_frames(self):
    better, _ = self._member(0)
    self._play(better, 100, 1.0)
    member, learner = self._member(1, initial_frames=1000)
    before = _values(learner)
    for frames in range(100, 1000, 100):
      self._play(member, frames, 0.0)
    for old, new in zip(before, _values(learner), strict=True):
      np.testing.assert_array_equal(old, new)
    self.assertEmpty(self._evolutions(1))
    self.assertEqual(population_directory.read_fitness(self._logdir(1)).environment_frames, 900)
    self._play(member, 1000, 0.0)
    self.assertLen(self._evolutions(1), 1)

  def test_members_and_seeds_explore_differently(self):
    drawn = []
    with absltest.mock.patch.object(pbt, 'explore', lambda values, random: drawn.append(random.rand()) or values):
      for index, seed in ((0, 7), (1, 7), (2, 7), (0, 8)):
        self.folder = self.create_tempdir().full_path  # With others there, it would also draw a partner.
        self._play(self._member(index, members_seed=seed)[0], 100, 1.0)
    self.assertLen(set(drawn), 4)

  @parameterized.parameters((1, {}), (2, {}), (1, _POPART), (2, _POPART))
  def test_one_that_is_better_by_more_than_5_points_is_copied_and_then_the_copy_explores(self, num_learners, agent):
    """For PopArt, what is copied includes the statistics."""
    better, better_learner = self._member(2, num_learners=num_learners, **agent)
    self._play(better, 700, 0.3)
    hyper_parameters = population_directory.read_fitness(self._logdir(2)).hyper_parameters
    for name, variable in better_learner.hyper_parameters.items():
      variable.assign(hyper_parameters[name])  # As in the snapshot: since then it has explored.
    snapshot = _values(better_learner)
    for variable in better_learner.agent.trainable_variables:
      variable.assign(variable + 1)  # And has learned.
    member, learner = self._member(0, num_learners=num_learners, **agent)
    for variable in _variables(learner):
      self.assertLen(_copies(variable), num_learners)
    with absltest.mock.patch.object(pbt, 'explore', _twice):
      self._play(member, 500, 0.24)
    are_tuned = {id(variable) for variable in learner.hyper_parameters.values()}  # Some are of the optimiser.
    for variable, value, copied in zip(_variables(learner), _values(learner), snapshot, strict=True):
      np.testing.assert_array_equal(value, 2 * copied if id(variable) in are_tuned else copied, variable.name)
    evolution, = self._evolutions(0)
    self.assertAlmostEqual(evolution.fitness, 24, places=5)
    self.assertEqual(evolution, population_directory.Evolution(
        500, evolution.fitness, 2, 700, _twice(hyper_parameters)))
    self.assertEmpty(self.reports)
    self.assertEqual(int(learner.environment_frames.numpy()), 0)  # The frames are its own.

  @parameterized.parameters(0.26, 0.31, 1.0)
  def test_others_are_not(self, mean_return):
    other, _ = self._member(1)
    self._play(other, 700, 0.3)
    member, learner = self._member(0)
    before = _values(learner)
    with self._unexplored():
      self._play(member, 500, mean_return)
    for old, new in zip(before, _values(learner), strict=True):
      np.testing.assert_array_equal(old, new)
    self.assertEqual([evolution.parent for evolution in self._evolutions(0)], [None])

  def test_a_member_is_not_its_own_partner(self):
    for index in (0, 1):
      member, _ = self._member(index, size=2)
      self._play(member, 100, 0.5)
    with absltest.mock.patch.object(pbt, 'partner', return_value=None) as partner:
      self._play(member, 200, 0.5)
    partner.assert_called_once_with([0], absltest.mock.ANY)

  @parameterized.parameters(1, 2)
  def test_alone_it_explores(self, num_learners):
    member, learner = self._member(0, clip_gradient_norm=20., num_learners=num_learners, members_seed=4)
    start = _hyper_parameters(learner)
    self.assertEqual(set(start), {'learning_rate', 'entropy_cost', 'rmsprop_epsilon', 'clip_gradient_norm'})
    for evolution in range(20):
      before = _hyper_parameters(learner)
      self._play(member, 100 * evolution, 0.0)
      for name, value in _hyper_parameters(learner).items():
        self.assertTrue(any(abs(value / before[name] / step - 1) < 1e-6 for step in (1, 1.2, 1 / 1.2)), name)
    self.assertEqual(self._evolutions(0)[-1].hyper_parameters, _hyper_parameters(learner))
    self.assertEqual(member.metrics(), _hyper_parameters(learner) | {'fitness': 0.0})
    self.assertFalse(set(start.values()) & set(_hyper_parameters(learner).values()))

  def test_without_a_threshold_none_is_tuned(self):
    member, _ = self._member(0, clip_gradient_norm=0.)
    self._play(member, 100, 0.0)
    self.assertEqual(list(self._evolutions(0)[0].hyper_parameters),
                     ['learning_rate', 'entropy_cost', 'rmsprop_epsilon'])

  def _damage(self, what):
    folder = os.path.join(self._logdir(1), population_directory.SNAPSHOTS)
    if what == 'other network':
      config = configs.ImpalaConfig()
      agent = impala.Agent(unrolls.environment_spec(num_actions=unrolls.NUM_ACTIONS + 1), config)
      learner = impala.IMPALA.make_learner(agent, config)
      checkpoint.Checkpointer(folder, agent=learner.agent, optimizer=learner.optimizer,
                              **learner.hyper_parameters).save()
    for file in glob.glob(os.path.join(folder, '*')):
      if what == 'vanished' or what in file:
        os.remove(file)
      elif what == 'half-written' and '.data' in file:
        os.truncate(file, os.path.getsize(file) // 2)
      elif what == 'flipped' and '.data' in file:
        with open(file, 'r+b') as stream:
          stream.seek(-3, os.SEEK_END)
          last = stream.read(1)
          stream.seek(-3, os.SEEK_END)
          stream.write(bytes([last[0] ^ 1]))

  @parameterized.parameters('vanished', '.data', '.index', 'half-written', 'flipped', 'other network',
                            ('half-written', 2))
  def test_what_cannot_be_copied_is_not_and_training_goes_on(self, what, num_learners=1):
    better, _ = self._member(1, num_learners=num_learners)
    self._play(better, 700, 1.0)
    self._damage(what)
    member, learner = self._member(0, num_learners=num_learners)
    before = _values(learner)
    with self._unexplored():
      self._play(member, 500, 0.0)
    for old, new in zip(before, _values(learner), strict=True):
      np.testing.assert_array_equal(old, new)
    self.assertEqual([evolution.parent for evolution in self._evolutions(0)], [None])
    self.assertEqual(self.reports, ['member_01 is not copied: its snapshot is gone or cannot be read'])

  @parameterized.parameters(
      '{', '{"environment_frames": 1, "fitness": 1e999, "hyper_parameters": {}}', 10_000 * '[', '[Infinity]',
      '{"environment_frames": 1, "fitness": 1' + 400 * '0' + ', "hyper_parameters": {}}')
  def test_a_damaged_fitness_is_left_aside(self, text):
    for index, points in ((1, 0.9), (2, 1.0)):
      other, _ = self._member(index)
      self._play(other, 700, points)
    with open(os.path.join(self._logdir(2), population_directory.FITNESS), 'w', encoding='utf-8') as stream:
      stream.write(text)
    member, _ = self._member(0)
    self._play(member, 500, 0.0)
    self.assertEqual([evolution.parent for evolution in self._evolutions(0)], [1])
    self.assertEqual(self.reports, ['member_02 is skipped: its fitness cannot be read'])

  def test_two_snapshots_are_kept(self):
    member, _ = self._member(0)
    for frames in (100, 300, 200, 250):  # As after a resume from an earlier checkpoint, too.
      self._play(member, frames, 0.0)
    indexes = glob.glob(os.path.join(self._logdir(0), population_directory.SNAPSHOTS, '*.index'))
    self.assertCountEqual(map(os.path.basename, indexes), ['ckpt-200.index', 'ckpt-250.index'])

  def test_all_comes_back_from_a_checkpoint(self):
    checkpoints = os.path.join(self.folder, 'checkpoints')
    member, learner = self._member(0)
    self._play(member, 500, 0.5)
    self._play(member, 600, 1.0, episodes=_PATIENCE - 1)
    checkpoint.Checkpointer(checkpoints, learner=learner, member=member).save()
    self._play(member, 700, 0.0, episodes=1)
    wanted = self._evolutions(0)
    again, learner_again = self._member(0)
    self.assertTrue(checkpoint.Checkpointer(checkpoints, learner=learner_again, member=again).restore())
    again.resume(600)
    self.assertEqual(self._evolutions(0), wanted[:1])
    self.assertEqual(again.metrics()['fitness'], 50)
    self._play(again, 700, 0.0, episodes=1)
    self.assertEqual(self._evolutions(0), wanted)  # Lived through again, with the same random numbers.
    for one, other in zip(_values(learner), _values(learner_again), strict=True):
      np.testing.assert_array_equal(one, other)

  def test_the_state_of_other_levels_is_refused(self):
    member, _ = self._member(0)
    other, _ = self._member(1, levels=('chain',))
    with self.assertRaisesRegex(ValueError, r"want levels \('chain',\), got \('catch',\)"):
      other.deserialize(member.serialize())


class FitnessTest(absltest.TestCase):

  def test_suites_have_the_mean_capped_score(self):
    for suite in (atari57.SUITE, dmlab30.SUITE):
      means = {level: suite.scores[level].human for level in suite.levels}
      self.assertAlmostEqual(population_member.fitness_of(means), 100)
      means[suite.levels[0]] = suite.scores[suite.levels[0]].random
      means[suite.levels[1]] *= 10
      self.assertAlmostEqual(population_member.fitness_of(means), 100 * (1 - 1 / len(suite.levels)))

  def test_a_single_level_of_a_suite(self):
    random, human = atari57.SUITE.scores['pong']
    self.assertAlmostEqual(population_member.fitness_of({'pong': random + 0.3 * (human - random)}), 30)
    self.assertAlmostEqual(population_member.fitness_of({'pong': random + 1.1 * (human - random)}), 110)

  def test_other_levels_have_a_hundred_times_their_return(self):
    self.assertAlmostEqual(population_member.fitness_of({'catch': 0.5, 'chain': -0.2}), 15)
    self.assertAlmostEqual(population_member.fitness_of({'catch': 0.5, 'pong': 20.5}), 1050)


class ConfigTest(parameterized.TestCase):

  def test_defaults_are_appendix_f_without_a_population(self):
    config = population_config.PopulationConfig()
    settings.check(config)
    self.assertEqual(config, population_config.PopulationConfig(1, 5000, 20_000_000))

  @parameterized.parameters(
      ('population_size', 0, 1), ('population_episodes', 0, 1), ('population_initial_frames', -1, 0))
  def test_bad_values_are_named(self, name, value, least):
    with self.assertRaisesRegex(ValueError, f'^--{name}={value}: want a whole number from {least} to [0-9]+$'):
      settings.check(population_config.PopulationConfig(**{name: value}))

  def test_who_may_be_a_member(self):
    alone, population = (population_config.PopulationConfig(population_size=size) for size in (1, 12))
    population_config.validate_member(alone, True, '/runs/pong')
    population_config.validate_member(population, False, '/runs/member_11')
    with self.assertRaisesRegex(ValueError, '^--learning_rate_decay: '):
      population_config.validate_member(population, True, '/runs/member_11')
    for name in ('pong', 'member_12', 'member_1'):
      with self.assertRaisesRegex(ValueError, f'^--logdir=/runs/{name}: want member_00 to member_11 in '):
        population_config.validate_member(population, False, f'/runs/{name}')


if __name__ == '__main__':
  absltest.main()
