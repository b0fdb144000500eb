"""Tests the figures of an interval against values computed by hand, with a fake pool and a fake clock."""

import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.actor import actor_pool
from scalable_agents.records import metrics
from scalable_agents.training import metrics_row

_SECOND = 10**9  # In nanoseconds.


class MetricsRowTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.seconds = 1000.
    clock = mock.Mock(monotonic=lambda: self.seconds)
    self.enter_context(mock.patch.object(metrics_row, 'time', clock))
    # What the pool has counted before the first interval must have no effect.
    self.counted = np.array([7, 5, 6, 11, 22, 33]) * _SECOND
    self.pool = types.SimpleNamespace(statistics=lambda: actor_pool.PoolStatistics(*self.counted.tolist()), restarts=0)
    self.host = types.SimpleNamespace(pool=self.pool, num_loops=2, num_workers=4, is_idle=False, is_starved=False)
    self.row = metrics_row.MetricsRow(self.host)
    self.row.begin(500)

  def _pass(self, seconds=0., batches=0, items=0, inference_waiting=0., stepping=0., blocked=0.):
    """Lets time pass and the pool count. Times are in seconds."""
    self.seconds += seconds
    self.counted += np.int64(
        [0, batches, items, inference_waiting * _SECOND, stepping * _SECOND, blocked * _SECOND])

  def _wait(self, seconds):
    with self.row.waiting():
      self.seconds += seconds

  def test_figures_of_updates_are_means_and_of_the_pool_differences(self):
    self.row.add({'loss/total': np.float32(1), 'culprit': np.int32(-1), 'update_skipped': np.float32(0)})
    self._wait(1.)
    self.row.add({'loss/total': np.float32(4), 'culprit': np.int32(2), 'update_skipped': np.float32(1)})
    self._wait(2.)
    self._pass(seconds=7., batches=20, items=50, inference_waiting=4., stepping=6., blocked=9.)
    self.pool.restarts = 3
    self.assertEqual(self.row.updates, 2)
    self.assertEqual(self.row.age(), 10.)
    self.assertEqual(self.row.finish(2500), {
        'environment_frames': 2500, 'frames_per_second': 200., 'loss/total': 2.5, 'inference_batch_size': 2.5,
        'environment_restarts': 3, 'time/learner_waits': 0.3, 'time/queue_full': 0.9,
        'time/inference_idle': 4 / 10 / 2, 'time/environments_stepping': 6 / 10 / 4, 'bottleneck': 'inference'})

  def test_an_interval_knows_nothing_of_the_one_before(self):
    self.row.add({'loss/total': 1.})
    self._wait(5.)
    self._pass(batches=1, items=4, inference_waiting=1., stepping=1., blocked=1.)
    self.row.finish(1000)
    self.assertEqual((self.row.updates, self.row.age()), (0, 0.))
    self.row.add({'loss/total': 3.})
    self._pass(seconds=2.)
    self.assertEqual(self.row.finish(1100), {
        'environment_frames': 1100, 'frames_per_second': 50., 'loss/total': 3., 'inference_batch_size': None,
        'environment_restarts': 0, 'time/learner_waits': 0., 'time/queue_full': 0., 'time/inference_idle': 0.,
        'time/environments_stepping': 0., 'bottleneck': 'learner'})

  def test_a_figure_per_level_is_a_mean_of_those_that_are_known(self):
    row = metrics_row.MetricsRow(self.host, ['catch', 'pong'])
    row.begin(500)
    row.add({'mu': np.float32([1., np.nan]), 'loss/total': 1.})
    row.add({'mu': np.float32([3., np.nan]), 'loss/total': 2.})
    self._pass(seconds=1.)
    figures = row.finish(600)
    self.assertEqual((figures['mu/catch'], figures['mu/pong'], figures['loss/total']), (2., None, 1.5))
    self.assertNotIn('mu', figures)
    with self.assertRaisesRegex(ValueError, r'^shares: want a number, or one per level \[2\], got shape \(3,\)$'):
      row.add({'shares': np.ones(3)})

  def test_a_second_beginning_forgets_the_time_and_keeps_the_updates(self):
    self.row.add({'loss/total': 1.})
    self._wait(100.)
    self._pass(batches=1, items=1, inference_waiting=9., stepping=9., blocked=9.)
    self.row.begin(900)
    self.row.add({'loss/total': 3.})
    self._pass(seconds=1.)
    row = self.row.finish(1000)
    self.assertEqual((row['loss/total'], row['frames_per_second']), (2., 100.))
    self.assertEqual([row[name] for name in row if name.startswith('time/')], [0.] * 4)

  @parameterized.parameters(
      dict(waited=1., inference_waiting=4., stepping=0., want='learner'),        # Busy shares: 0.9, 0.8, 0.
      dict(waited=9., inference_waiting=4., stepping=20., want='inference'),     # 0.1, 0.8, 0.5.
      dict(waited=9., inference_waiting=16., stepping=36., want='environments'))  # 0.1, 0.2, 0.9.
  def test_the_bottleneck_is_what_is_busy_most(self, waited, want, **times):
    self._wait(waited)
    self._pass(seconds=10. - waited, **times)
    self.assertEqual(self.row.finish(600)['bottleneck'], want)

  @parameterized.parameters((36., 'other jobs'), (4., 'learner'))
  def test_the_bottleneck_where_workers_wait_for_a_core(self, stepping, want):
    self.host.is_starved = True
    self._wait(5.)
    self._pass(seconds=5., inference_waiting=20., stepping=stepping)
    self.assertEqual(self.row.finish(600)['bottleneck'], want)

  @parameterized.parameters((4., 'learner'), (6., 'actors'))
  def test_the_bottleneck_where_all_actors_are_elsewhere(self, waited, want):
    self.host.is_idle = True
    self._wait(waited)
    self._pass(seconds=10. - waited)
    self.assertEqual(self.row.finish(600)['bottleneck'], want)

  def test_what_the_experience_waits_for_is_the_bottleneck(self):
    for is_idle in (False, True):
      self.host.is_idle = is_idle
      self._pass(seconds=10.)
      self.assertEqual(self.row.finish(600, 'other agents')['bottleneck'], 'other agents')

  def test_a_metric_has_one_owner(self):
    self.assertEqual(metrics.merge({'a': 1}, {}, {'b': None}), {'a': 1, 'b': None})
    with self.assertRaisesRegex(ValueError, '^metrics that two parts of the program give: bottleneck, c$'):
      metrics.merge({'a': 1, 'bottleneck': 'learner', 'c': 1}, {'b': 2}, {'c': 1, 'bottleneck': 'replay'})

  def test_steps_that_began_before_the_interval_make_no_share_above_one(self):
    self._pass(seconds=1., stepping=9.)  # Four workers report steps of 2.25 s each.
    self.assertEqual(self.row.finish(600)['time/environments_stepping'], 1.)

  def test_updates_that_are_not_finite_do_not_count(self):
    for loss in (1., np.nan, 3., np.inf):
      self.row.add({'loss/total': np.float32(loss), 'policy_lag': 2.})
    row = self.row.finish(600)
    self.assertEqual((row['loss/total'], row['policy_lag']), (2., 2.))
    self.row.add({'loss/total': np.float32(np.nan), 'policy_lag': 2.})
    row = self.row.finish(700)
    self.assertEqual((row['loss/total'], row['policy_lag']), (None, 2.))

  def test_an_interval_without_updates_has_the_same_columns(self):
    self.row.add({'loss/total': 1.})
    before = self.row.finish(600)
    self._wait(10.)
    self._pass(inference_waiting=20.)  # Two loops.
    row = self.row.finish(600)
    self.assertEqual(list(row), list(before))
    self.assertIsNone(row['loss/total'])
    self.assertEqual((row['time/learner_waits'], row['bottleneck']), (1., 'environments'))

  def test_restarts_of_earlier_processes_count(self):
    row = metrics_row.MetricsRow(self.host, earlier_restarts=4)
    row.begin(500)
    self.pool.restarts = 3
    self.assertEqual(row.finish(600)['environment_restarts'], 7)

  def test_an_interval_without_time(self):
    self.assertEqual(self.row.finish(500)['frames_per_second'], 0.)

  def test_the_wait_counts_that_ended_in_an_error(self):
    with self.assertRaises(ZeroDivisionError):
      with self.row.waiting():
        self.seconds += 5.
        raise ZeroDivisionError
    self._pass(seconds=5.)
    self.assertEqual(self.row.finish(600)['time/learner_waits'], 0.5)


if __name__ == '__main__':
  absltest.main()
