"""Tests of the figure of a made-up population."""

import functools
import os

from absl.testing import absltest
from matplotlib import image

from scalable_agents.tables import population
from scalable_agents.tables.figures import impala
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

  def test_the_learning_rate_of_another_run_is_drawn_too(self):
    axes = impala.draw_schedules({'learning_rate': [[(0, 1.), (9, 2.)]]}, {'learning_rate': []}, 'member_00',
                                 [(0, 4.), (9, 1.)]).axes[0]
    self.assertEqual(axes.lines[-1].get_label(), 'a run without a population')
    self.assertEqual([*axes.lines[-1].get_ydata()], [4., 1.])
    axes = impala.draw_schedules({'learning_rate': [[(0, 1.), (9, 2.)]]}, {'learning_rate': []}, 'member_00',
                                 [(0, 4.), (9, 1e-9)]).axes[0]
    self.assertEqual(axes.get_ylim()[0], 0.1)  # A tenth of the population's lowest rate.
    self._make(0, 1.0, 500)
    sweep_run = run_directories.single_game(self.folder, 'sweep_run', curves={'pong': [1., 2.]},
                                            more={'learning_rate': [2., 1.]})
    done = _start(f'--population={self.folder}', f'--sweep_run={sweep_run}')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    done = _start(f'--population={self.folder}', f'--sweep_run={self.folder}')
    self.assertEqual((done.returncode, done.stderr), (
        1, f'error: --sweep_run={self.folder}: want a run directory whose metrics have the learning rate\n'))

  def test_bad_input_is_one_line(self):
    self._make(0, None, 0)
    for flags, message in (((), '--population=: want a folder'),
                           ((f'--population={self.folder}',), f'--population={self.folder}: no member in this')):
      done = _start(*flags)
      self.assertEqual((done.returncode, done.stdout), (1, ''))
      self.assertStartsWith(done.stderr, f'error: {message}')
      self.assertEqual(done.stderr.count('\n'), 1)


if __name__ == '__main__':
  absltest.main()
