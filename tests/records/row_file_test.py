"""Finding rows in files by their place: compared with reading every line."""

import os
import random
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np

from scalable_agents.records import row_file


def _bytes_read():
  """By this process so far, from files or the kernel's cache of them."""
  with open('/proc/self/io', encoding='ascii') as stream:
    return int(dict(line.split(': ') for line in stream.read().splitlines())['rchar'])


class RowFileTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._file = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'rows')

  def _write(self, content):
    with open(self._file, 'wb') as stream:
      stream.write(content)

  def test_a_file_that_does_not_exist_has_no_rows(self):
    self.assertEmpty(list(row_file.read(self._file)))
    self.assertEmpty(list(row_file.sample(self._file, 2)))
    self.assertIsNone(row_file.last(self._file))
    self.assertEqual(row_file.size_up_to(self._file, lambda row: True), 0)

  @parameterized.parameters((b'', []), (b'torn', []), (b'a\n', [(0, b'a\n')]), (b'a\nto', [(0, b'a\n')]),
                            (b'\n\nb\n', [(0, b'\n'), (1, b'\n'), (2, b'b\n')]))
  def test_a_line_without_its_end_is_no_row(self, content, wanted):
    self._write(content)
    self.assertEqual(list(row_file.read(self._file)), wanted)
    self.assertEqual(list(row_file.sample(self._file, 100)), wanted)
    self.assertEqual(row_file.last(self._file), wanted[-1] if wanted else None)
    self.assertEqual(row_file.size_up_to(self._file, lambda row: True), len(b''.join(line for _, line in wanted)))

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=200)
  @hypothesis.given(lengths=st.lists(st.integers(0, 10_000) | st.integers(0, 9), max_size=40),
                    torn=st.integers(0, 5000), at_most=st.integers(2, 50), counted=st.integers(0, 40))
  def test_against_reading_every_line(self, lengths, torn, at_most, counted):
    """Rows may be longer than the blocks that are read."""
    lines = [b'x' * length + b'\n' for length in lengths]
    self._write(b''.join(lines) + b'y' * torn)
    rows = list(row_file.read(self._file))
    self.assertEqual([row.line for row in rows], lines)
    self.assertEqual([row_file.line_number(self._file, row.position) for row in rows], list(range(1, len(lines) + 1)))
    self.assertEqual(row_file.last(self._file), rows[-1] if rows else None)
    size = row_file.size_up_to(self._file, lambda row: row in rows[:counted])
    self.assertEqual(size, sum(map(len, lines[:counted])))
    sample = list(row_file.sample(self._file, at_most))
    self.assertLessEqual(len(sample), at_most)
    self.assertEqual(sample, [row for row in rows if row in sample])
    self.assertEqual(sample[:1] + sample[-1:], rows[:1] + rows[-1:])

  def test_a_sample_is_evenly_spread_and_prefers_no_row_for_its_length(self):
    generator = random.Random(0)
    lines = [b'%07d%s\n' % (number, b' ' * generator.choice((0, 0, 72))) for number in range(30_000)]
    self._write(b''.join(lines))
    sample = list(row_file.sample(self._file, 1_000))
    self.assertBetween(len(sample), 990, 1_000)
    numbers = [int(row.line) for row in sample]
    np.testing.assert_allclose(numbers, np.linspace(0, 29_999, len(numbers)), atol=600)
    # A third of the rows hold five sixths of the bytes.
    self.assertBetween(sum(len(row.line) > 8 for row in sample) / len(sample), 0.28, 0.39)

  def test_only_parts_of_a_long_file_are_read(self):
    self._write(b''.join(b'%0999d\n' % number for number in range(10_000)))
    for find in (lambda: list(row_file.sample(self._file, 50)), lambda: row_file.last(self._file),
                 lambda: row_file.size_up_to(self._file, lambda row: int(row.line) < 9_000)):
      before = _bytes_read()
      find()
      self.assertLess(_bytes_read() - before, 2_000_000)  # Of 10,000,000; some blocks of 4 and 8 kB for each row.


if __name__ == '__main__':
  absltest.main()
