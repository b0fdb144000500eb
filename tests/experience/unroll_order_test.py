"""Tests which unrolls are admitted and what is counted, by examples and against a naive reference."""

import json

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np

from scalable_agents.experience import unroll_order


def _admit(order, unrolls):
  """Admits one batch of (stream, index) pairs. Returns a list of bool."""
  stream_id, index = np.array(unrolls, np.int64).reshape(-1, 2).T
  return order.admit(stream_id, index).tolist()


@st.composite
def _journeys(draw):
  """Draws the unrolls of several streams as they arrive, and their division into batches.

  The streams are interleaved. Unrolls are lost or repeated, and neighbours change places.
  """
  streams = draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True))
  sent = [(stream, index) for stream in streams for index in range(draw(st.integers(0, 12)))]
  turns = draw(st.permutations([stream for stream, _ in sent]))
  of_stream = {stream: iter([unroll for unroll in sent if unroll[0] == stream]) for stream in streams}
  arrived = []
  for stream in turns:  # In the order of each stream.
    arrived += [next(of_stream[stream])] * draw(st.sampled_from((1, 1, 1, 0, 2)))
  for place in range(len(arrived) - 1):
    if draw(st.sampled_from((False, False, False, True))):
      arrived[place], arrived[place + 1] = arrived[place + 1], arrived[place]
  size = draw(st.integers(1, 8))
  return arrived, [arrived[start:start + size] for start in range(0, len(arrived), size)]


def _reference(arrived):
  """Returns which unrolls are admitted, how many are missing and how many late, by a search through all before them."""
  admitted, late = [], 0
  for place, (stream, index) in enumerate(arrived):
    is_in_order = all(index > before for other, before in arrived[:place] if other == stream)
    admitted.append(is_in_order)
    late += not is_in_order
  seen = {}
  for (stream, index), is_admitted in zip(arrived, admitted):
    if is_admitted:
      seen.setdefault(stream, set()).add(index)
  return admitted, sum(len(set(range(max(indices))) - indices) for indices in seen.values()), late


class UnrollOrderTest(parameterized.TestCase):

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_journeys(), st.data())
  def test_a_restart_changes_nothing_about_what_is_admitted(self, journey, data):
    arrived, batches = journey
    restart = data.draw(st.integers(0, len(batches)))
    before = unroll_order.UnrollOrder(streams_may_have_begun=True)
    admitted = sum((_admit(before, batch) for batch in batches[:restart]), [])
    after = unroll_order.UnrollOrder(streams_may_have_begun=True)
    after.restore(json.loads(json.dumps(before.state())))
    admitted += sum((_admit(after, batch) for batch in batches[restart:]), [])
    expected, _, late = _reference(arrived)
    self.assertEqual((admitted, after.metrics()['unrolls_late']), (expected, late))
    self.assertEqual(dict(after.state()['next_index']), {
        stream: max(index for other, index in arrived if other == stream) + 1 for stream, _ in arrived})

  def test_the_state_has_the_streams_that_were_admitted_last(self):
    before = unroll_order.UnrollOrder(max_streams=3)
    _admit(before, [(1, 0), (2, 0), (3, 0)])
    after = unroll_order.UnrollOrder(streams_may_have_begun=True, max_streams=3)
    after.restore(before.state())
    _admit(after, [(1, 1), (4, 5)])
    self.assertEqual(list(map(tuple, after.state()['next_index'])), [(3, 1), (1, 2), (4, 6)])

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_journeys())
  def test_is_as_the_reference(self, journey):
    arrived, batches = journey
    order = unroll_order.UnrollOrder()
    admitted = sum((_admit(order, batch) for batch in batches), [])
    expected, missing, late = _reference(arrived)
    self.assertEqual(admitted, expected)
    self.assertEqual(order.metrics(), {'unrolls_missing': missing, 'unrolls_late': late})

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_journeys())
  def test_streams_that_may_have_begun_differ_by_what_precedes_the_first_unroll_of_each(self, journey):
    arrived, batches = journey
    order, begun = unroll_order.UnrollOrder(), unroll_order.UnrollOrder(streams_may_have_begun=True)
    for batch in batches:
      self.assertEqual(_admit(begun, batch), _admit(order, batch))
    first = dict(reversed(arrived))
    self.assertEqual(order.metrics()['unrolls_missing'] - begun.metrics()['unrolls_missing'], sum(first.values()))
    self.assertEqual(begun.metrics()['unrolls_late'], order.metrics()['unrolls_late'])

  def test_admits_what_is_in_order(self):
    order = unroll_order.UnrollOrder()
    self.assertEqual(_admit(order, [(7, 0), (5, 0), (7, 1), (7, 2), (5, 1)]), [True] * 5)
    self.assertEqual(order.metrics(), {'unrolls_missing': 0, 'unrolls_late': 0})
    self.assertEqual(order.warning(), '')

  def test_an_unroll_that_comes_behind_its_successor_stays_missing(self):
    order = unroll_order.UnrollOrder()
    self.assertEqual(_admit(order, [(7, 0), (7, 2), (7, 1), (7, 3)]), [True, True, False, True])
    self.assertEqual(order.metrics(), {'unrolls_missing': 1, 'unrolls_late': 1})

  def test_an_unroll_that_comes_twice_is_late_and_not_missing(self):
    order = unroll_order.UnrollOrder()
    self.assertEqual(_admit(order, [(7, 0), (7, 0), (7, 1)]), [True, False, True])
    self.assertEqual(order.metrics(), {'unrolls_missing': 0, 'unrolls_late': 1})

  @parameterized.parameters((False, 4), (True, 0))
  def test_a_stream_that_is_first_seen_in_its_midst(self, streams_may_have_begun, missing):
    order = unroll_order.UnrollOrder(streams_may_have_begun)
    self.assertEqual(_admit(order, [(7, 4), (7, 3), (7, 5)]), [True, False, True])
    self.assertEqual(order.metrics(), {'unrolls_missing': missing, 'unrolls_late': 1})

  def test_warns_of_what_is_new(self):
    order = unroll_order.UnrollOrder()
    _admit(order, [(7, 0), (7, 3), (7, 1)])
    self.assertEqual(order.warning(), 'unrolls lost between actors and learner: 2; late or repeated, and dropped: 1')
    self.assertEqual(order.warning(), '')
    _admit(order, [(7, 5)])
    self.assertStartsWith(order.warning(), 'unrolls lost between actors and learner: 1; ')
    self.assertEqual(order.metrics()['unrolls_missing'], 3)

  @parameterized.parameters(False, True)
  def test_hostile_numbers(self, streams_may_have_begun):
    order, largest = unroll_order.UnrollOrder(streams_may_have_begun), 2**63 - 1
    self.assertEqual(_admit(order, [(7, -1), (-2**63, -2**63), (8, largest), (8, largest), (-1, 0)]),
                     [False, False, True, False, True])
    self.assertEqual(_admit(order, [(9, largest)]), [True])
    self.assertEqual(order.metrics(),
                     {'unrolls_missing': 0 if streams_may_have_begun else 2 * largest, 'unrolls_late': 3})

  def test_memory_is_bounded_and_the_oldest_stream_is_forgotten(self):
    order = unroll_order.UnrollOrder(max_streams=3)
    _admit(order, [(1, 0), (2, 0), (3, 0), (1, 1)])
    _admit(order, [(4, 0)])  # Stream 2 has been silent for longest.
    self.assertEqual(_admit(order, [(1, 1), (3, 0), (4, 0)]), [False] * 3)
    self.assertEqual(_admit(order, [(2, 1)]), [True])
    self.assertEqual(order.metrics(), {'unrolls_missing': 1, 'unrolls_late': 3})
    for stream in range(1000):
      _admit(order, [(stream, 0)])
    self.assertLen(order._next_index, 3)

  def test_an_empty_batch(self):
    self.assertEqual(_admit(unroll_order.UnrollOrder(), []), [])

  @parameterized.parameters(([3], [4]), ([2, 2], [2, 2]), ([], []))
  def test_other_shapes_are_refused(self, *shapes):
    with self.assertRaisesRegex(ValueError, r'stream_id and index: want \[B\] each, got'):
      unroll_order.UnrollOrder().admit(*(np.zeros(shape, np.int64) for shape in shapes))


if __name__ == '__main__':
  absltest.main()
