"""The rule that agents with a shared replay run at equal speed. Times are given, so nothing waits."""

import sys
import threading

from absl.testing import absltest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from scalable_agents.experience import pace as pace_lib

_FORGOTTEN = 10.


class Reference:
  """A plain model. Each present agent has a position: where it joined, plus the steps that it has made since."""

  def __init__(self):
    self.present = {}  # Agent -> [position, steps, time of the last report].
    self.left = set()

  def forget(self, now):
    for agent in [agent for agent, (_, _, heard) in self.present.items() if heard < now - _FORGOTTEN]:
      del self.present[agent]

  def report(self, agent, steps, now):
    self.forget(now)
    if agent in self.left:
      return
    if agent in self.present:
      position, before, _ = self.present[agent]
      later = max(steps, before)  # A report may come late.
      self.present[agent] = [position + later - before, later, now]
    else:
      self.present[agent] = [self.slowest(), steps, now]

  def slowest(self):
    return min((position for position, _, _ in self.present.values()), default=0)

  def leads(self):
    return {agent: position - self.slowest() for agent, (position, _, _) in self.present.items()}


class PaceTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.pace, self.steps = pace_lib.Pace(_FORGOTTEN), {}

  def _report(self, agent, steps, now=0.):
    self.steps[agent] = steps
    self.pace.report(agent, steps, now)

  def _leads(self, now=0.):
    """The agent steps by which each present agent is ahead of the slowest one, as agents compute them."""
    return {agent: self.steps[agent] - even for agent, even in self.pace.even(now).items()}

  def test_threads_lose_no_agent(self):
    self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
    sys.setswitchinterval(1e-6)
    pace, agents = pace_lib.Pace(_FORGOTTEN), ('a', 'b', 'c')

    def report(agent):
      for steps in range(20_000):
        pace.report(agent, steps, 0.)

    for agent in agents:
      pace.report(agent, 0, 0.)
    threads = [threading.Thread(target=report, args=[agent]) for agent in agents]
    for thread in threads:
      thread.start()
    while any(thread.is_alive() for thread in threads):
      self.assertCountEqual(pace.even(0.), agents)
    self.assertEqual(pace.even(0.), dict.fromkeys(agents, 19_999))

  def test_a_report_that_comes_late_moves_nobody_back(self):
    for agent, steps in (('a', 0), ('b', 0), ('a', 100), ('a', 60), ('b', 40)):
      self.pace.report(agent, steps, 0.)
    self.assertEqual(self.pace.even(0.), {'a': 40, 'b': 40})
    self.pace.report('b', 200, 0.)
    self.assertEqual(self.pace.even(0.), {'a': 100, 'b': 100})

  def test_nobody_is_there(self):
    self.assertEqual(self.pace.even(0.), {})

  def test_an_agent_alone_is_never_ahead(self):
    for steps in (0, 100, 300):
      self._report('a', steps)
      self.assertEqual(self._leads(), {'a': 0})

  def test_agents_are_ahead_by_the_steps_that_they_have_made_more(self):
    for agent in 'abc':
      self._report(agent, 0)
    self._report('a', 100)
    self._report('b', 30)
    self.assertEqual(self._leads(), {'a': 100, 'b': 30, 'c': 0})
    self._report('c', 50)
    self.assertEqual(self._leads(), {'a': 70, 'b': 0, 'c': 20})

  def test_an_agent_knows_its_lead_before_its_next_report(self):
    self._report('a', 0)
    self._report('b', 0)
    self._report('b', 20)
    self.steps['b'] = 50
    self.assertEqual(self._leads(), {'a': 0, 'b': 50})

  def test_one_that_joins_is_where_the_slowest_one_is(self):
    self._report('a', 0)
    self._report('b', 0)
    self._report('a', 100)
    self._report('b', 40)
    self._report('late', 1000)  # It has made them elsewhere, before the replay job was started again.
    self.assertEqual(self._leads(), {'a': 60, 'b': 0, 'late': 0})
    self._report('late', 1015)
    self.assertEqual(self._leads(), {'a': 60, 'b': 0, 'late': 15})

  def test_a_silent_one_is_forgotten_and_joins_again_where_the_slowest_one_is(self):
    self._report('a', 0, now=0.)
    self._report('silent', 0, now=0.)
    self._report('a', 100, now=8.)
    self.assertEqual(self._leads(now=10.), {'a': 100, 'silent': 0})
    self.assertEqual(self._leads(now=10.1), {'a': 0})
    self._report('a', 150, now=17.)
    self._report('b', 0, now=17.)
    self._report('a', 170, now=18.)
    self._report('silent', 5, now=19.)
    self.assertEqual(self._leads(now=19.), {'a': 20, 'b': 0, 'silent': 0})

  def test_reports_without_steps_keep_an_agent(self):
    self._report('a', 0, now=0.)
    self._report('slow', 0, now=0.)
    for now in range(0, 100, 9):
      self._report('slow', 0, now=now)
      self._report('a', now, now=now)
    self.assertEqual(self._leads(now=100.), {'a': 99, 'slow': 0})

  def test_nobody_waits_for_one_that_has_left(self):
    self._report('a', 0)
    self._report('b', 0)
    self._report('a', 100)
    self.pace.leave('b')
    self.assertEqual(self._leads(), {'a': 0})
    self._report('b', 0)  # This report has taken longer than the farewell.
    self.assertEqual(self._leads(), {'a': 0})
    self.pace.leave('a')
    self.pace.leave('unknown')
    self.assertEqual(self._leads(), {})

  @settings(max_examples=200, deadline=None, derandomize=True)
  @given(st.lists(st.tuples(st.sampled_from('abcd'), st.integers(0, 50), st.sampled_from([0., 1., 4., 11.]),
                            st.sampled_from(['report'] * 6 + ['leave', 'ask'])), max_size=40))
  def test_is_what_a_plain_model_says(self, events):
    pace, model, steps, now = pace_lib.Pace(_FORGOTTEN), Reference(), dict.fromkeys('abcd', 0), 0.
    for agent, more, later, what in events:
      now += later
      if what == 'report':
        steps[agent] += more
        pace.report(agent, steps[agent], now)
        model.report(agent, steps[agent], now)
      elif what == 'leave':
        pace.leave(agent)
        model.present.pop(agent, None)
        model.left.add(agent)
      model.forget(now)
      even = pace.even(now)
      self.assertEqual({agent: model.present[agent][1] - even[agent] for agent in even}, model.leads())
      self.assertEqual(even.keys(), model.present.keys())


if __name__ == '__main__':
  absltest.main()
