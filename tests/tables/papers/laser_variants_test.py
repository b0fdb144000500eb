"""Tests the names of LASER's variants, and which runs they group."""

import math

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tables.papers import laser_variants
from scalable_agents.tests.tables import run_directories

_SHARED = {'shared_replay': 'here:1'}
_NAIVE = {'trust_region_threshold': math.inf}
_IMPALA = {'agent': 'impala', 'replay_share': 0.}


class LaserVariantsTest(run_directories.TestCase):

  def _runs(self, *settings):
    for number, flags in enumerate(settings):
      run_directories.laser(self.folder, f'run_{number}', **flags)
    return self.read()

  def _groups(self, *settings):
    return [(name, [run.logdir[-1] for run in runs])
            for name, runs in laser_variants.by_variant(self._runs(*settings)).items()]

  @parameterized.parameters(
      ({}, []),
      (_SHARED, []),
      ({'replay_share': 0.5, 'replay_capacity': 3_000_000}, []),
      ({'replay_share': 0.}, ['No replay']),
      (_NAIVE, ['No trust region']),
      (_NAIVE | _SHARED, ['Naive sharing']),
      (_NAIVE | _SHARED | {'clip_rho_threshold': 4.}, ['Naive sharing', 'rho-bar 4']),
      ({'relevance': 'kl_mu'}, ['KL(pi || mu)']),
      (_NAIVE | {'relevance': 'kl_mu'}, ['No trust region']),
      ({'learn_online': False}, ['Pure replay']),
      ({'replay_sampling': 'unrolls'}, ['Unrolls']),
      ({'replay_sampling': 'prioritised', 'importance_exponent': 0.5}, ['Prioritised (beta 0.5)']))
  def test_ablations(self, flags, names):
    run, = self._runs(flags)
    self.assertEqual(laser_variants.ablations(run), names)

  def test_seeds_levels_and_sweeps_are_grouped_with_laser_first(self):
    self.assertEqual(
        self._groups(_IMPALA, _NAIVE, {}, {'seed': 2}, {'level_name': 'qbert'}, {'learning_rate': 3e-4}, _IMPALA | {
            'learning_rate': 3e-4, 'rmsprop_epsilon': 0.1}, _IMPALA | {'replay_share': 0.5}),
        [('LASER', ['2', '3', '4', '5']), ('No trust region', ['1']), ('IMPALA', ['0', '6']),
         ('IMPALA, replay share 1/2', ['7'])])

  def test_runs_of_several_lengths_on_one_level_set_those_on_the_other_levels_apart(self):
    long = {'total_environment_frames': 200_000_000}
    self.assertEqual(self._groups({}, long, {'level_name': 'qbert'}, _NAIVE), [
        ('LASER, total_environment_frames=50_000_000', ['0', '2']),
        ('LASER, total_environment_frames=200_000_000', ['1']),
        ('No trust region', ['3'])])

  def test_levels_with_other_lengths_are_one_group(self):
    self.assertEqual(self._groups({}, {'level_name': 'qbert', 'total_environment_frames': 200_000_000}),
                     [('LASER', ['0', '1'])])

  def test_the_most_common_values_are_named_once(self):
    self.assertEqual(
        self._groups({}, {'seed': 2}, {'trust_region_threshold': 0.2}, {'replay_share': 0.875}, {'replay_share': 0.5},
                     {'replay_capacity': 3_000_000}, {'learn_online': False}, _SHARED | {'replay_share': 0.5},
                     _NAIVE | _SHARED | {'replay_capacity': 3_000_000}),
        [('LASER, own replay, b = 0.1, replay share 4/5, capacity 10M', ['0', '1']),
         ('LASER, shared replay, replay share 1/2', ['7']),
         ('LASER, b = 0.2', ['2']), ('LASER, replay share 1/2', ['4']), ('LASER, replay share 7/8', ['3']),
         ('LASER, capacity 3M', ['5']), ('Naive sharing, capacity 3M', ['8']), ('Pure replay', ['6'])])

  def test_own_and_shared_replays_are_named(self):
    self.assertEqual(self._groups({}, _SHARED), [('LASER, shared replay', ['1']), ('LASER, own replay', ['0'])])

  def test_other_differences_are_named(self):
    self.assertEqual(
        self._groups({}, {'discount': 0.9}, {'learn_online': False, 'discount': 0.9},
                     {'level_name': 'qbert', 'discount': 0.5}),
        [('LASER, discount=0.995', ['0']), ('LASER, discount=0.9', ['1']), ('LASER', ['3']), ('Pure replay', ['2'])])


if __name__ == '__main__':
  absltest.main()
