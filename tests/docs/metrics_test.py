"""Tests that metrics are found by name, also with names of levels and hosts, and that the page is up to date."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.records import metric_table
from scalable_agents.tests import source_tree


class MetricTableTest(parameterized.TestCase):

  @parameterized.parameters(
      ('environment_frames', 'environment frames'), ('episode_return/pong', 'raw rewards'),
      ('episode_return/contributed/dmlab30/rooms_watermaze', 'raw rewards'), ('popart/scale/pong', 'rewards'),
      ('actor/task_3/policy_lag', 'updates'), ('actor/a.b-17/reconnects', 'connections'), ('bottleneck', 'text'))
  def test_finds_a_metric(self, name, unit):
    self.assertEqual(metric_table.find(name).unit, unit)

  @parameterized.parameters('', 'loss', 'loss/', 'loss/other', 'episode_return_2', 'actor/task_3/other', 'popart/mean')
  def test_does_not_know_other_names(self, name):
    self.assertIsNone(metric_table.find(name))

  def test_the_texts(self):
    self.assertEqual(metric_table.TEXTS, {'bottleneck', 'replay_waits_for'})

  def test_the_page_is_up_to_date(self):
    page = pathlib.Path(source_tree.ROOT, 'docs', 'metrics.md').read_text(encoding='utf-8')
    self.assertEqual(page, metric_table.page(), 'run: python -m scalable_agents.records.metric_table > docs/metrics.md')


if __name__ == '__main__':
  absltest.main()
