"""Tests of tables/papers/budget.py: frames of the papers' results, costs as sums by hand, and docs/budget.md."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import registry
from scalable_agents.tables.papers import budget
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tests import source_tree

_BILLION = 1_000_000_000


class BudgetTest(parameterized.TestCase):

  def _cost(self, paper, agent, suite):
    found, = (cost for cost in budget.costs()
              if (cost.paper, cost.agent.name, cost.agent.suite) == (paper, agent, suite))
    return found

  @parameterized.parameters(
      ('IMPALA', 'IMPALA, shallow, experts', 'atari57', 57, 57 * 0.2),  # Table C.1: 200 million frames per game.
      ('IMPALA', 'IMPALA, deep, multi-task', 'atari57', 24, 24 * 11.4),  # A population of 24.
      ('IMPALA', 'IMPALA, deep', 'dmlab30', 24, 24 * 10),  # The best of 24 samples.
      ('PopArt', 'PopArt-IMPALA, DMLab-30', 'dmlab30', 24, 3 * 8 * 10),  # Three populations.
      ('R2D2', 'R2D2', 'atari57', 171, 3 * 57 * 10),  # 3 seeds, 10 billion frames per game.
      ('R2D2', 'R2D2, feed-forward', 'atari57', 57, 57 * 10),
      ('R2D2', 'R2D2+', 'dmlab30', 90, 3 * 30 * 10),
      ('LASER', 'LASER, no sweep, 200M', 'atari57', 57, 57 * 0.2),
      ('LASER', 'LASER, shared replay, 50M', 'atari57', 2 * 9 * 57, 2 * 9 * 57 * 0.05),  # Figure 1.
      ('LASER', 'LASER, shared replay, 200M', 'atari57', 9 * 57, 9 * 57 * 0.2),
      ('LASER', 'LASER, shared replay', 'dmlab30', 30, 300))  # Section A.3: three times.
  def test_frames(self, paper, agent, suite, runs, billions):
    cost = self._cost(paper, agent, suite)
    self.assertEqual(cost.runs, runs)
    self.assertEqual(cost.frames, round(billions * _BILLION))

  def test_days_are_frames_times_the_rates_of_the_file(self):
    rates = {(row['family'], row['suite'], row['torso']): row for row in published.rows('rates.csv')}
    cost, row = self._cost('IMPALA', 'IMPALA, deep, experts', 'atari57'), rates['impala', 'atari57', 'deep']
    steps = 57 * 200_000_000 / 4
    self.assertAlmostEqual(cost.core_days, steps * float(row['step_ms']) / 1000 / 60 / 60 / 24)
    self.assertAlmostEqual(cost.environment_core_days, steps * float(row['environment_ms']) / 1000 / 60 / 60 / 24)
    self.assertIsNone(cost.gpu_days)
    # 30,000 frames per second with one GPU, section 5.3.1: 10 billion frames take 92.6 hours.
    self.assertAlmostEqual(self._cost('IMPALA', 'IMPALA, deep, PBT', 'dmlab30').gpu_days, 24 * 92.5926 / 24, places=3)
    # 210,000 frames per second with eight, section 5.3.1.
    self.assertAlmostEqual(self._cost('IMPALA', 'IMPALA, deep, PBT, 8 learners', 'dmlab30').gpu_days,
                           24 * 10e9 / 210_000 * 8 / 86_400)
    # 256 actors at 260 frames per second.
    self.assertAlmostEqual(self._cost('R2D2', 'R2D2', 'atari57').gpu_days, 171e10 / (256 * 260) / 86_400)

  def test_every_number_has_a_source_and_every_rate_a_use(self):
    used = {(cost.agent.family, cost.agent.suite, cost.agent.torso, 'yes' if cost.agent.use_lstm else 'no',
             str(budget.learned_per_step(cost.agent)), str(cost.agent.learners)) for cost in budget.costs()}
    lines = list(published.rows('rates.csv'))
    names = 'family', 'suite', 'torso', 'lstm', 'learned', 'learners'
    self.assertCountEqual(used, [tuple(row[name] for name in names) for row in lines])
    for row in lines:
      self.assertEqual(bool(row['step_ms'] or row['environment_ms']), bool(row['measured']), row)
      self.assertEqual(bool(row['reported_frames_per_second']), bool(row['reported']), row)
      if row['step_ms']:
        self.assertLess(float(row['environment_ms']), float(row['step_ms']))

  def test_tables_that_have_the_agent(self):
    tables = {(row[0], row[2], row[3]): row[1] for row in budget.table().rows}
    self.assertEqual(tables['IMPALA', 'IMPALA, deep, PBT', 'dmlab30'], '3, B.1')
    self.assertEqual(tables['IMPALA', 'IMPALA, shallow', 'dmlab30'], '3')
    self.assertEqual(tables['IMPALA', 'A3C, deep, experts', 'atari57'], '4')
    self.assertEqual(tables['R2D2', 'R2D2, feed-forward', 'atari57'], '1')
    self.assertEqual(tables['LASER', 'LASER, own replays, 50M', 'atari57'], '1')

  def test_transitions_that_laser_learns_from_per_new_step(self):
    for agent, preset in ((laser_published.AGENTS[laser_published.SHARED_50M], 'laser_atari57'),
                          (laser_published.AGENTS[laser_published.SHARED_DMLAB], 'laser_dmlab30')):
      config = registry.PRESETS[preset].config
      self.assertEqual(budget.learned_per_step(agent), config.batch_size / config.split_batch()[0])
    single = laser_published.AGENTS[laser_published.SINGLE_200M]
    settings = dict(single.settings)
    self.assertEqual(budget.learned_per_step(single), 1 / (1 - settings['replay_share']))

  def test_rates_that_popart_lacks_are_said_to_be_impalas(self):
    popart, impala = (self._cost(*names, 'dmlab30') for names in (
        ('LASER', laser_published.PIXEL_POPART), ('IMPALA', 'IMPALA, deep')))
    self.assertEqual(popart.rate, impala.rate)
    self.assertIn("PopArt and pixel control: IMPALA's rates.", budget.table().notes)

  def test_the_page_has_the_table(self):
    page = (source_tree.ROOT / 'docs' / 'budget.md').read_text(encoding='utf-8')
    self.assertIn(layout.markdown(budget.table()), page)
    column = self._cost('IMPALA', 'IMPALA, shallow, experts', 'atari57')
    self.assertIn(f'about {column.core_days * 24 / 57 / 2:.1f} hours a game', page)
    lab = self._cost('IMPALA', 'IMPALA, deep', 'dmlab30').environment_core_days / 24  # Of 10 billion frames.
    self.assertIn(f'takes {lab / 16:.1f} days of 16 cores', page)
    of_experts = self._cost('IMPALA', 'IMPALA-Experts, deep', 'dmlab30').environment_core_days / 24
    self.assertIn(f'{96 * of_experts:,.0f}\n  core-days', page)  # Table 2: 960 billion.

  def test_regression_slow_levels_of_experts_have_as_many_steps_as_fast_ones(self):
    # The rates with resets of docs/suites.md, in steps per second of one core.
    seconds = np.mean([1 / rate for rate in (1_477, 944, 617, 580, 469, 266, 66)])
    steps = 240e9 / 4
    experts, multi_task = (self._cost('IMPALA', name, 'dmlab30') for name in ('IMPALA-Experts, deep', 'IMPALA, deep'))
    self.assertAlmostEqual(experts.environment_core_days / (steps * seconds / 86_400), 1, places=3)
    self.assertAlmostEqual(experts.core_days - experts.environment_core_days,
                           multi_task.core_days - multi_task.environment_core_days, places=3)


if __name__ == '__main__':
  absltest.main()
