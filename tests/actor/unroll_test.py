"""Tests which components of an unroll have a time dimension."""

from absl.testing import absltest

from scalable_agents.actor import unroll


class HasTimeTest(absltest.TestCase):

  def test_everything_has_time_except_what_describes_the_unroll(self):
    environment_output = unroll.EnvironmentOutput(0., 1., False, 0., 0, {'pixels': 0, 'instruction': 0})
    got = unroll.has_time(unroll.Unroll(
        3, 4, 5, 6, (0., [1.]), {'pixels': 0}, environment_output, (2, 3.), 7))
    self.assertEqual(got, unroll.Unroll(
        False, False, False, False, (False, [False]), {'pixels': False},
        unroll.EnvironmentOutput(True, True, True, True, True, {'pixels': True, 'instruction': True}),
        (True, True), True))


if __name__ == '__main__':
  absltest.main()
