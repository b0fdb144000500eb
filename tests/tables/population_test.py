"""Tests of the figure of a made-up population."""

import functools
import os

from absl.testing import absltest
from matplotlib import image

from scalable_agents.tables import population
from scalable_agents.tests.tables import programs
from scalable_agents.tests.tables import run_directories

_start = functools.partial(programs.start, population.__name__)


class PopulationTest(run_directories.TestCase):

  def setUp(self):
    super().setUp()
    self._make = functools.partial(run_directories.member, self.folder)

  def test_the_picture(self):
    self._make(0, 1.0, 500, [(100, 2.0), (200, 3.0, 1, 150)])
    self._make(1, 0.5, 600)
    done = _start(f'--population={self.folder}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertEqual(done.stdout, f'wrote {self.folder}/schedules.png\n')
    self.assertGreater(image.imread(os.path.join(self.folder, 'schedules.png')).shape[0], 300)

  def test_bad_input_is_one_line(self):
    self._make(0, None, 0)
    for flags, message in (((), "--population: want the population's directory"),
                           ((f'--population={self.folder}',), f'--population={self.folder}: no member in this')):
      done = _start(*flags)
      self.assertEqual((done.returncode, done.stdout), (1, ''))
      self.assertStartsWith(done.stderr, f'error: {message}')
      self.assertEqual(done.stderr.count('\n'), 1)


if __name__ == '__main__':
  absltest.main()
