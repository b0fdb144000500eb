"""Tests which runs form a sweep, and which sweeps are repetitions."""

from absl.testing import absltest

from scalable_agents.tables.papers import laser_sweeps
from scalable_agents.tests.tables import run_directories


class LaserSweepsTest(run_directories.TestCase):

  def _make(self, name, rate=6e-4, **settings):
    return run_directories.laser(self.folder, name, learning_rate=rate, **settings)

  def _name(self, run):
    return run.logdir.removeprefix(f'{self.folder}/')

  def _sweeps(self):
    return [{self._name(run) for run in sweep.values()} for sweep in laser_sweeps.sweeps(self.read())]

  def test_agents_with_own_replays_are_repeated_for_each_combination(self):
    for seed, name in enumerate(('a', 'b', 'c')):
      self._make(name, 3e-4, seed=seed)
      self._make(f'{name}_other', 6e-4, seed=seed)
    self._make('more', 6e-4, entropy_cost=0.02)
    self.assertEqual(self._sweeps(), [{'a', 'a_other', 'more'}, {'b', 'b_other'}, {'c', 'c_other'}])

  def test_agents_that_share_a_replay_are_a_sweep_whatever_their_seeds_are(self):
    for repetition in ('x', 'y'):
      for index in range(3):  # The last two have the same hyper-parameters.
        self._make(f'{repetition}/agent_{index}', 1e-4 * min(index, 1), seed=index, shared_replay='here:1')
    self.assertEqual(self._sweeps(), [{f'{repetition}/agent_{index}' for index in range(3)}
                                      for repetition in ('x', 'y')])

  def test_a_sweep_may_be_started_again_with_another_address(self):
    for index in range(4):
      self._make(f'sweep/{index}', 1e-4 * (index + 1), shared_replay=f'here:{index // 3}')
    self.assertEqual(self._sweeps(), [{f'sweep/{index}' for index in range(4)}])

  def test_members_of_a_population_are_a_sweep(self):
    for index in range(2):
      self._make(f'population/member_0{index}', population_size=2)
    self.assertEqual(self._sweeps(), [{'population/member_00', 'population/member_01'}])

  def _repetitions(self):
    return [[{self._name(run) for run in agent.values()} for agent in agents]
            for agents in laser_sweeps.repetitions(self.read())]

  def test_an_agent_has_the_same_hyper_parameters_on_all_levels(self):
    for level in ('pong', 'qbert'):
      for index in range(2):
        self._make(f'{level}_{index}', 1e-4 * (index + 1), level_name=level)
    self._make('pong_2', 3e-4)
    self._make('pong_again', 1e-4, seed=2)
    self.assertEqual(self._repetitions(), [[{'pong_0', 'qbert_0'}, {'pong_1', 'qbert_1'}], [{'pong_again'}]])

  def test_the_only_run_on_a_level_belongs_to_every_agent(self):
    self._make('pong', 1e-4)
    self._make('qbert', 2e-4, level_name='qbert')
    self.assertEqual(self._repetitions(), [[{'pong', 'qbert'}]])
    self._make('qbert_more', 3e-4, level_name='qbert')
    (first, second), = self._repetitions()
    self.assertCountEqual([first, second], [{'pong', 'qbert'}, {'pong', 'qbert_more'}])

  def test_settings_leave_out_what_is_swept(self):
    self._make('a', 1e-4, seed=1, sweep_index=0, shared_replay='here:1')
    self._make('b', 2e-4, seed=2, sweep_index=1, shared_replay='there:1', entropy_cost=0.02, level_name='qbert',
               total_environment_frames=100)
    self._make('c', trust_region_threshold=0.2, shared_replay='here:1')
    self._make('d')
    a, b, c, d = map(laser_sweeps.settings, self.read())
    self.assertEqual(a, b)
    self.assertEqual({name for name in a if a[name] != c[name]}, {'trust_region_threshold'})
    self.assertEqual({name for name in a if a[name] != d[name]}, {'shares'})

  def test_levels_trained_together_are_a_setting(self):
    self._make('a', level_name='pong,qbert')
    self._make('b', level_name='atari57')
    self.assertEqual([laser_sweeps.settings(run)['level_name'] for run in self.read()], ['pong,qbert', 'atari57'])


if __name__ == '__main__':
  absltest.main()
