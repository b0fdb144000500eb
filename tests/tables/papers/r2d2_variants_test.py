"""Tests the names of R2D2's variants and training strategies, and which runs they group."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tests.tables import run_directories

_CLIPPED = {'reward_transform': 'abs_one', 'value_rescaling': False}
_PLUS = {'torso': 'deep', 'reward_transform': 'soft_asymmetric', 'batch_size': 32, 'target_update_interval': 400}


class R2d2VariantsTest(run_directories.TestCase):

  def _runs(self, *settings):
    for number, flags in enumerate(settings):
      run_directories.r2d2(self.folder, f'run_{number}', **flags)
    return self.read()

  def _groups(self, group, *settings):
    return {name: [run.logdir[-1] for run in runs] for name, runs in group(self._runs(*settings)).items()}

  @parameterized.parameters(
      ({}, 'R2D2'),
      (_CLIPPED, 'Clipped'),
      ({'reward_transform': 'abs_one'}, 'R2D2'),
      ({'discount': 0.99}, 'Discount'),
      ({'use_lstm': False}, 'Feed-Forward'),
      ({'episode_end_on_life_loss': True}, 'Life-Loss (roll)'),
      ({'episode_end_on_life_loss': True, 'reset_on_life_loss': True}, 'Life-Loss (reset)'),
      ({'reset_on_life_loss': True}, 'R2D2'),
      ({'episode_end_on_life_loss': None, 'level_name': 'rooms_watermaze'}, 'R2D2'),  # On DMLab-30 there are no lives.
      (_CLIPPED | {'discount': 0.99}, 'Clipped, Discount'),
      (_PLUS, 'R2D2+'),
      (_PLUS | {'reward_transform': 'optimistic_asymmetric', 'batch_size': 64}, 'R2D2+'),
      (_PLUS | {'use_lstm': False}, 'R2D2+, Feed-Forward'),
      ({'torso': 'deep'}, 'R2D2'))
  def test_variants(self, flags, name):
    run, = self._runs(flags)
    self.assertEqual(r2d2_variants.variant(run), name)

  @parameterized.parameters(
      ({}, 'stored state, burn-in 40'), ({'recurrent_state': 'zero', 'burn_in': 0}, 'zero state, burn-in 0'),
      ({'discount': 0.99}, 'stored state, burn-in 40, Discount'))
  def test_strategies(self, flags, name):
    run, = self._runs(flags)
    self.assertEqual(r2d2_variants.strategy(run), name)

  def test_variants_are_grouped_over_seeds_and_levels_with_r2d2_first(self):
    self.assertEqual(
        self._groups(r2d2_variants.by_variant, _CLIPPED, {}, {'seed': 2}, {'level_name': 'breakout'},
                     {'total_environment_frames': 100}, {'measure_delta_q': True}, _PLUS, {'use_lstm': False}),
        {'R2D2': ['1', '2', '3', '4', '5'], 'Feed-Forward': ['7'], 'Clipped': ['0'], 'R2D2+': ['6']})

  def test_other_differences_on_a_level_are_named(self):
    self.assertEqual(
        self._groups(r2d2_variants.by_variant, {'burn_in': 0}, {}, _CLIPPED | {'learning_rate': 3e-4},
                     {'level_name': 'breakout', 'burn_in': 20}),
        {'R2D2, burn_in=0, learning_rate=0.0001': ['0'], 'R2D2, burn_in=40, learning_rate=0.0001': ['1'],
         'R2D2': ['3'], 'Clipped, burn_in=40, learning_rate=0.0003': ['2']})

  def test_strategies_are_grouped_with_zero_states_and_short_burn_ins_first(self):
    zero = {'recurrent_state': 'zero'}
    self.assertEqual(
        list(self._groups(r2d2_variants.by_strategy, {}, zero, {'burn_in': 0}, zero | {'burn_in': 20}).items()),
        [('zero state, burn-in 20', ['3']), ('zero state, burn-in 40', ['1']), ('stored state, burn-in 0', ['2']),
         ('stored state, burn-in 40', ['0'])])


if __name__ == '__main__':
  absltest.main()
