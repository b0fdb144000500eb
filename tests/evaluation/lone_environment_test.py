"""Tests of one environment in a worker process."""

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.actor import environment_workers
from scalable_agents.evaluation import lone_environment

_ENVIRONMENTS = 'scalable_agents.tests.actor.test_environments'


class LoneEnvironmentTest(parameterized.TestCase):

  def test_rows(self):
    with lone_environment.LoneEnvironment(f'{_ENVIRONMENTS}:Lives', {'seed': 0}, 60.) as environment:
      self.assertEqual(environment.specification.frames_per_step, 4)
      rows = [environment.advance() for _ in range(5)]
    self.assertEqual([row[:4] for row in rows], [
        (0., True, 0., 0), (1., False, 1., 4), (2., False, 3., 8), (4., True, 7., 12), (1., False, 1., 4)])
    self.assertEqual(rows[0].observation['pixels'].shape, (2,))
    self.assertEmpty(psutil.Process().children())

  @parameterized.parameters(
      ('raise', 60., '^environment 0 failed: RuntimeError: the emulator has crashed\n'),
      ('exit', 60., '^environment 0 failed: its process ended with exit code 3$'),
      ('hang in C', 1., r'^environment 0 failed: no answer for 1 s \(--environment_timeout_seconds\)$'))
  def test_faults(self, fault, timeout_seconds, message):
    arguments = {'seed': 0, 'fault': fault, 'fault_step': 1, 'faulty_below': 1}
    with lone_environment.LoneEnvironment(f'{_ENVIRONMENTS}:Diary', arguments, 60.) as environment:
      environment.advance()
      environment._timeout_seconds = timeout_seconds  # Not for its start.
      with self.assertRaisesRegex(environment_workers.WorkerError, message):
        for _ in range(3):
          environment.advance(0)
    self.assertEmpty(psutil.Process().children())

  def test_an_environment_that_cannot_be_made(self):
    with self.assertRaisesRegex(environment_workers.WorkerError, 'could not be made'):
      lone_environment.LoneEnvironment(f'{_ENVIRONMENTS}:Nothing', {'seed': 0}, 60.)
    self.assertEmpty(psutil.Process().children())


if __name__ == '__main__':
  absltest.main()
