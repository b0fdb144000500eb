"""Tests of schedules and ancestries with made-up populations."""

import functools
import math

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tables.figures import lineage
from scalable_agents.tests.tables import run_directories


class LineageTest(run_directories.TestCase):

  def setUp(self):
    super().setUp()
    self._make = functools.partial(run_directories.member, self.folder)

  def _segments(self, index):
    return [tuple(segment) for segment in lineage.ancestry(lineage.read(self.folder), index)]

  def test_members_are_those_with_a_fitness_and_the_best_is_the_fittest(self):
    for index, points in enumerate((3.0, None, 7.0, -1.0)):
      self._make(index, points, 100)
    members = lineage.read(self.folder)
    self.assertEqual(list(members), [0, 2, 3])
    self.assertEqual(lineage.fittest(members), 2)

  def test_a_member_that_copied_nobody_is_its_own_ancestry(self):
    self._make(0, 1.0, 500, [(100, 2.0), (200, 3.0)])
    self.assertEqual(self._segments(0), [(0, 0, 500)])

  def test_ancestry_goes_from_copy_to_copy(self):
    self._make(0, 9.0, 500, [(100, 2.0, 1, 80), (300, 3.0), (400, 3.0, 2, 350),
                             (500, 4.0, 1, 480)])  # The last one came after the fitness was measured.
    self._make(1, 8.0, 600, [(70, 2.0, 2, 40), (480, 2.0, 0, 300)])
    self._make(2, 7.0, 600, [(90, 2.0, 1, 200), (350, 2.0, 0, 400)])
    self.assertEqual(self._segments(0), [(0, 400, 500), (2, 90, 350), (1, 70, 200), (2, 0, 40)])

  def test_ancestry_of_the_agent_at_the_end(self):
    self._make(0, 9.0, 500, [(100, 2.0, 1, 80), (500, 4.0, 1, 480)])
    self._make(1, 8.0, 600)
    segments = lineage.ancestry(lineage.read(self.folder), 0, math.inf)
    self.assertEqual([tuple(segment) for segment in segments], [(0, 500, math.inf), (1, 0, 480)])

  def test_an_ancestor_that_is_gone_ends_it(self):
    self._make(0, 9.0, 500, [(100, 2.0, 7, 80)])
    self.assertEqual(self._segments(0), [(0, 100, 500)])

  def test_members_that_are_each_others_ancestors(self):
    """Member 1 died after its snapshot at 300. In its second life it copied a copy of this snapshot."""
    self._make(0, 9.0, 210, [(200, 2.0, 1, 300)])
    self._make(1, 8.0, 400, [(180, 2.0, 0, 210)])
    self.assertEqual(self._segments(0), [(0, 200, 210), (1, 180, 300)])

  @parameterized.parameters(
      (None, [(0, 1.0), (100, 2.0), (200, 3.0), (500, 3.0)]),
      ((0, 0, 150), [(0, 1.0), (100, 2.0), (150, 2.0)]),
      ((0, 100, 200), [(100, 2.0), (200, 2.0)]),
      ((0, 150, 300), [(150, 2.0), (200, 3.0), (300, 3.0)]),
      ((0, 300, 400), [(300, 3.0), (400, 3.0)]))
  def test_schedules(self, segment, wanted):
    self._make(0, 1.0, 500, [(100, 2.0), (200, 3.0), (500, 4.0)])
    member = lineage.read(self.folder)[0]
    segment = segment and lineage.Segment(*segment)
    self.assertEqual(lineage.schedule(member, 'learning_rate', segment), wanted)


if __name__ == '__main__':
  absltest.main()
