"""Tests of evaluation/viewers.py: the characters of a picture, and the speed at which pictures follow each other."""

from fractions import Fraction
import io
import os
import re
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.evaluation import viewers
from scalable_agents.records import errors


def _points(lines):
  """Returns the colours that a terminal shows, [rows, columns] of 0 to 255: two rows for each line."""
  rows = []
  for line in lines:
    upper, lower = [], []
    for first, second, blocks in re.findall('\x1b\\[38;5;(\\d+);48;5;(\\d+)m(▀+)', line):
      upper += [int(first)] * len(blocks)
      lower += [int(second)] * len(blocks)
    rows += [upper, lower]
  return np.array(rows)


class TerminalTest(parameterized.TestCase):

  @parameterized.parameters(1, 4)
  def test_each_point_has_the_colour_of_its_area(self, size):
    colours = np.random.RandomState(0).randint(6, size=[8, 12, 3])
    picture = np.array([0, 95, 135, 175, 215, 255], np.uint8)[colours].repeat(size, axis=0).repeat(size, axis=1)
    lines = viewers.as_characters(picture, 12, 4)
    np.testing.assert_array_equal(_points(lines), 16 + colours @ [36, 6, 1])
    self.assertTrue(all(line.endswith('\x1b[0m') for line in lines))

  @parameterized.parameters((210, 160, 80, 22, 44, 34), (210, 160, 20, 50, 26, 20), (5, 5, 80, 22, 44, 44),
                            (1, 100, 10, 5, 2, 10), (100, 1, 10, 5, 10, 1))
  def test_it_fits_and_keeps_the_proportions(self, height, width, columns, lines, rows_wanted, columns_wanted):
    picture = np.full([height, width, 3], 255, np.uint8)
    points = _points(viewers.as_characters(picture, columns, lines))
    self.assertEqual(points.shape, (rows_wanted, columns_wanted))
    self.assertEqual(set(points.flat), {231})  # White.

  def test_pictures_replace_each_other_at_the_right_speed(self):
    stream, now = io.StringIO(), [100.]
    pauses = []

    def sleep(seconds):
      pauses.append(seconds)
      now[0] += seconds

    with mock.patch.object(viewers.time, 'monotonic', lambda: now[0]), mock.patch.object(viewers.time, 'sleep', sleep):
      with viewers.Terminal(Fraction(15), 'title', stream) as terminal:
        for late in (0., 0.01, 0.2, 0.01):
          now[0] += late
          terminal.add(np.zeros([10, 10, 3], np.uint8))
    np.testing.assert_allclose(pauses, [0, 1 / 15 - 0.01, 0, 1 / 15 - 0.01], atol=1e-9)
    first, *others = stream.getvalue().split('\rtitle')
    self.assertEqual(first, '')
    height = others[0].count('\n')
    self.assertLen(others, 4)
    for text in others[:-1]:
      self.assertEndsWith(text, f'\x1b[{height}A')


class WindowTest(absltest.TestCase):

  def test_without_a_display_it_is_one_line(self):
    with mock.patch.dict(os.environ):
      os.environ.pop('DISPLAY', None)
      self.assertFalse(viewers.has_window())
      with self.assertRaisesRegex(errors.UserError, '^no window: [^\n]+$'):
        viewers.Window(Fraction(15), 'title')

  def test_a_python_without_tk_is_one_line(self):
    with mock.patch.dict('sys.modules', tkinter=None):
      with self.assertRaisesRegex(errors.UserError, '^no window: this Python has no Tk '):
        viewers.Window(Fraction(15), 'title')


if __name__ == '__main__':
  absltest.main()
