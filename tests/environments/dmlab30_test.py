"""Tests of environments/dmlab30.py."""

from absl.testing import absltest

from scalable_agents.environments import dmlab30


class Dmlab30Test(absltest.TestCase):

  def test_has_30_levels_two_of_which_are_tested_on_another(self):
    self.assertLen(set(dmlab30.LEVELS), 30)
    self.assertLen(set(dmlab30.TEST_LEVELS), 30)
    changed = {level: test for level, test in zip(dmlab30.LEVELS, dmlab30.TEST_LEVELS) if level != test}
    self.assertEqual(changed, {
        'rooms_collect_good_objects_train': 'rooms_collect_good_objects_test',
        'rooms_exploit_deferred_effects_train': 'rooms_exploit_deferred_effects_test'})
    for level, test in changed.items():
      self.assertEqual(dmlab30.SCORES[level], dmlab30.SCORES[test])

  def test_laser_tag_is_labelled_as_in_the_paper(self):
    self.assertEqual(dmlab30.SCORES['lasertag_one_opponent_small'], (-0.083, 18.6))
    self.assertEqual(dmlab30.SCORES['lasertag_one_opponent_large'], (-0.224, 12.65))


if __name__ == '__main__':
  absltest.main()
