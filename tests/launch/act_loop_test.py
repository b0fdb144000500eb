"""Tests what an actor host reports to the learner."""

from unittest import mock

from absl.testing import absltest

from scalable_agents.cluster import remote_learner
from scalable_agents.launch import act_loop


class ActLoopTest(absltest.TestCase):

  def test_a_report_has_the_rates_since_the_one_before(self):
    statistics = mock.Mock()
    host = mock.Mock(**{'pool.statistics.return_value': statistics, 'pool.restarts': 3,
                        'specification.frames_per_step': 4})
    loop = act_loop.ActLoop.__new__(act_loop.ActLoop)  # Without the threads.
    loop._host, loop._number, loop._name = host, 5, 'task_4'
    loop._reported = 100., remote_learner.Totals(0, 0, 0, 0), 0
    for now, steps, sent, rates in ((110., 50, 1_000, (20., 100.)), (115., 150, 3_000, (80., 400.))):
      statistics.steps = steps
      totals = remote_learner.Totals(unrolls=9, bytes=sent, reconnects=2, lost_unrolls=7)
      with mock.patch.object(act_loop.time, 'monotonic', return_value=now):
        report = loop._report(totals)
      self.assertEqual((report.frames_per_second, report.bytes_per_second), rates)
    self.assertEqual((report.host, report.name, report.environment_restarts, report.reconnects, report.lost_unrolls),
                     (5, 'task_4', 3, 2, 7))


if __name__ == '__main__':
  absltest.main()
