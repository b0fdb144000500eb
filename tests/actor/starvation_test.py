"""Tests whether workers starve, with made-up counts of the kernel."""

import os
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.actor import starvation
from scalable_agents.processes import machine


class StarvationTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.seconds, self.others, self.waits = 1000., -70., {1: 50., 2: 60.}
    self.cores = 4
    for module, name, fake in ((starvation.time, 'monotonic', lambda: self.seconds),
                               (os, 'sched_getaffinity', lambda process: set(range(4))),
                               (machine, 'num_cores', lambda: self.cores),
                               (machine, 'other_programs_seconds', lambda: self.others),
                               (machine, 'processor_wait_seconds', lambda process: self.waits.get(process, 0.))):
      self.enter_context(mock.patch.object(module, name, fake))
    self.starvation = starvation.Starvation()
    self.assertFalse(self.starvation.look(5., [1, 2]))

  @parameterized.parameters(
      dict(waited=(5.1, 3.), others=10., want=True),
      dict(waited=(5., 3.), others=40., want=False),   # Workers wait for half of 16 s of stepping.
      dict(waited=(8., 8.), others=9.9, want=False),   # Others use less than one of four cores.
      dict(waited=(-50., 8.1), others=10., want=True),  # Worker 1 was replaced, and its successor has its number.
      dict(waited=(0., 0.), others=0., want=False))
  def test_in_ten_seconds(self, waited, others, want):
    self.seconds += 10.
    self.others += others
    self.waits = {process: self.waits[process] + more for process, more in zip((1, 2), waited)}
    self.assertEqual(self.starvation.look(21., [1, 2]), want)
    self.seconds += 10.
    self.assertFalse(self.starvation.look(21., [1, 2]))  # Now nobody has waited.

  def test_a_worker_that_has_replaced_another_has_no_time_before(self):
    self.seconds, self.others, self.waits = 1010., 0., {1: 50., 3: 9.}
    self.assertFalse(self.starvation.look(21., [1, 3]))

  def test_under_a_quota(self):
    self.seconds, self.others, self.waits, self.cores = 1010., 0., {1: 60., 2: 70.}, 3
    self.assertFalse(self.starvation.look(21., [1, 2]))


if __name__ == '__main__':
  absltest.main()
