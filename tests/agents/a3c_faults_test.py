"""Tests that a run of A3C goes on after faults, on one machine and with workers in other processes."""

import pathlib
import signal

from absl.testing import absltest
import psutil

from scalable_agents.agents import a3c_atari57
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.training import training

_SMALL = ('--level_name=catch', '--torso=shallow', '--unroll_length=5', '--log_interval_seconds=0.2',
          '--checkpoint_interval_seconds=0.5', '--num_environment_workers=2')


class A3cFaultsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = str(pathlib.Path(self.create_tempdir().full_path) / 'run')

  def _start(self, *flags):
    return self.enterContext(training.Training(self.logdir, *_SMALL, *flags, program=a3c_atari57.__name__))

  def _last(self):
    return training.rows(self.logdir)[-1]

  def _check_ends_at_ctrl_c(self, run):
    """Also checks that it leaves no process."""
    processes = psutil.Process(run.process.pid).children(recursive=True)
    self.assertEqual(run.end(signal.SIGINT)[0], 0, run.screen())
    self.assertEmpty(training.still_alive(processes))

  def test_goes_on_from_the_last_checkpoint_after_kill_minus_nine(self):
    run = self._start('--num_environments=6')
    run.wait_for_rows(2)
    run.wait_for_checkpoint()
    self.assertEmpty(psutil.Process(run.process.pid).net_connections('inet'))  # On one machine there is no port.
    self.assertEmpty(run.kill())
    before = self._last()
    run = self._start('--num_environments=6')
    first = run.wait_for_rows(1)[-1]
    self.assertGreater(first['wall_seconds'], before['wall_seconds'] / 2)
    run.wait_until(lambda: self._last()['learner_steps'] > before['learner_steps'], 'more updates than before')
    self._check_ends_at_ctrl_c(run)

  def test_worker_processes_come_and_go(self):
    port = self.enterContext(cluster_testing.free_port())
    start = lambda job, *flags: self._start(f'--job_name={job}', f'--learner_addresses=localhost:{port}', *flags)
    learner = start('learner', '--num_environments=0')
    first, second = (start('actor', '--num_environments=2', f'--task={task}') for task in range(2))

    def wait_for(*tasks):
      """Waits until gradients of exactly these hosts are applied."""
      names = {f'actor/task_{task}/policy_lag' for task in tasks}
      learner.wait_for_rows(1)
      learner.wait_until(lambda: names == {name for name in self._last() if name.endswith('/policy_lag')}, str(names))

    wait_for(0, 1)
    self.assertEmpty(first.kill())
    wait_for(1)
    third = start('actor', '--num_environments=2', '--task=2')
    wait_for(1, 2)
    self.assertEqual((self._last()['unrolls_missing'], self._last()['skipped_updates']), (0, 0))
    self._check_ends_at_ctrl_c(learner)
    for host in (second, third):
      self.assertEqual(host.end()[0], 0, host.screen())

  def test_several_learners_are_refused(self):
    for flags in (('--num_learners=2',), ('--job_name=learner', '--learner_addresses=localhost:1,localhost:2',
                                          '--task=0')):
      run = self._start(*flags)
      self.assertEqual(run.end()[0], 1)
      name = flags[-2 if len(flags) > 1 else 0].partition('=')[0]
      self.assertEqual(run.screen(), f'error: {name}: a3c has one learner, which applies the gradient of one worker at '
                       'a time\n')


if __name__ == '__main__':
  absltest.main()
