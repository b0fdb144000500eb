"""The progress line: what it says, on a terminal and elsewhere."""

import fcntl
import io
import os
import pty
import re
import struct
import termios

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.records import progress


def _row(frames, frames_per_second=1000., **values):
  return {'environment_frames': frames, 'frames_per_second': frames_per_second, **values}


def _terminal(test, columns):
  """A terminal of so many columns: the end where its text is read, and the stream of a program that runs in it."""
  reader, writer = pty.openpty()
  test.addCleanup(os.close, reader)
  fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack('HHHH', 24, columns, 0, 0))
  stream = open(writer, 'w', encoding='utf-8')
  test.addCleanup(stream.close)
  return reader, stream


def _read_until(descriptor, wanted):
  text = ''
  while wanted not in text:
    text += os.read(descriptor, 4096).decode(errors='replace')
  return text


class ShortTest(parameterized.TestCase):

  @parameterized.parameters((-20.2571, '-20.26'), (9_999.4, '9999'), (9_999.75, '10,000'), (-9_999.9, '-10,000'),
                            (13_546., '13,546'), (0.000123456, '0.0001235'), (2e15, '2e+15'), (float('nan'), 'nan'))
  def test_four_digits_or_no_decimals(self, value, want):
    self.assertEqual(progress.short(value), want)


class PlainLinesTest(parameterized.TestCase):

  def test_a_line_per_row(self):
    stream = io.StringIO()
    line = progress.Progress(200_000_000, 0, stream)
    line.update(_row(0, 17_012.3, episode_return=None))
    line.message('resumed from 7 frames')
    line.update(_row(100_000_000, 17_012.3, episode_return=-20.256, bottleneck='environments', skipped_updates=0))
    line.update(_row(200_000_000, 17_012.3, episode_return=20., bottleneck='environments', skipped_updates=1234))
    line.close()
    self.assertEqual(stream.getvalue().splitlines(), [
        '0.00/200M, 17,012 frames/s, return none yet, ETA 3:15:57',
        'resumed from 7 frames',
        '100M/200M, 17,012 frames/s, return -20.26, ETA 1:37:59, slowest: environments',
        '200M/200M, 17,012 frames/s, return 20, ETA 0:00:00, slowest: environments, skipped updates: 1,234'])

  def test_while_the_replay_fills(self):
    stream = io.StringIO()
    line = progress.Progress(200_000_000, 0, stream)
    line.update(_row(0, 0., replay_filled=0.999))
    line.update(_row(1_000_000, 100., replay_filled=1.))
    self.assertEqual(stream.getvalue().splitlines(), [
        '0.00/200M, filling the replay: 99 %', '1.00M/200M, 100 frames/s, return none yet, ETA 23d 00:46:40'])

  def test_while_environments_start(self):
    stream = io.StringIO()
    line = progress.Progress(200_000_000, 0, stream)
    line.update(_row(0, 0., replay_filled=0.), starting='30 of 30 environments')
    line.update(_row(0, 90., bottleneck='inference', skipped_updates=1), starting='12 of 30 environments')
    self.assertEqual(stream.getvalue().splitlines(), [
        '0.00/200M, filling the replay: 0 %, starting: 30 of 30 environments',
        '0.00/200M, 90 frames/s, return none yet, starting: 12 of 30 environments, skipped updates: 1'])

  def test_a_suite_shows_its_score(self):
    stream = io.StringIO()
    progress.Progress(200_000_000, 0, stream).update(_row(0, 17_012.3, episode_return=512., suite_score=23.456))
    self.assertEqual(stream.getvalue(), '0.00/200M, 17,012 frames/s, score 23.5 %, ETA 3:15:57\n')

  @parameterized.parameters((0, 1_000_000, '0:16:40'), (990_000, 1_000_000, '0:00:10'), (0, 10**9, '11d 13:46:40'),
                            (1_000_100, 1_000_000, '0:00:00'))
  def test_time_left_also_after_a_resume(self, frames, total, wanted):
    stream = io.StringIO()
    progress.Progress(total, frames, stream).update(_row(frames))
    self.assertIn(f'ETA {wanted}', stream.getvalue())

  def test_the_estimate_follows_a_lasting_change_of_speed_slowly(self):
    stream = io.StringIO()
    line = progress.Progress(1_000_000, 0, stream)
    for _ in range(100):
      line.update(_row(0))
    line.update(_row(0, 2000.))
    self.assertIn(f'ETA {progress._duration(1_000_000 / 1100)}', stream.getvalue().splitlines()[-1])

  def test_no_speed_no_estimate(self):
    stream = io.StringIO()
    progress.Progress(1_000_000, 0, stream).update(_row(0, 0.))
    self.assertIn('0 frames/s, return none yet, ETA unknown', stream.getvalue())


class TerminalTest(parameterized.TestCase):

  def test_one_line_that_moves(self):
    terminal, stream = _terminal(self, columns=120)
    line = progress.Progress(2_000_000, 500_000, stream)
    self.assertIn(' 25% ', _read_until(terminal, '%'))
    line.update(_row(1_000_000, episode_return=3.))
    shown = _read_until(terminal, ' 50% ')
    self.assertIn('\r1.00M/2.00M, 1,000 frames/s, return 3, ETA 0:16:40  50% ', shown)
    self.assertNotIn('\n', shown)
    line.message('worker 3 was started again')
    self.assertIn('\rworker 3 was started again\r\n\r1.00M/2.00M', _read_until(terminal, '0:16:40'))
    line.update(_row(2_000_100, episode_return=3.))
    self.assertIn('\r2.00M/2.00M', _read_until(terminal, 'ETA 0:00:00 100%'))
    line.close()
    _read_until(terminal, '\n')

  @parameterized.parameters(('', 'ETA 2:26:58, slowest: environments'),
                            ('12 of 30 environments', 'starting: 12 of 30 environments'))
  def test_all_that_is_said_fits_in_eighty_columns(self, starting, end):
    terminal, stream = _terminal(self, columns=80)
    line = progress.Progress(200_000_000, 0, stream)
    line.update(_row(50_000_000, 17_012., episode_return=-20.256, bottleneck='environments'), starting)
    line.close()
    states = re.split('[\r\n]+', _read_until(terminal, '\n'))
    self.assertLess(max(map(len, states)), 80)
    self.assertStartsWith(states[-2], f'50.0M/200M, 17,012 frames/s, return -20.26, {end}')

  def test_a_terminal_of_unknown_size_gets_plain_lines(self):
    terminal, stream = _terminal(self, columns=0)
    progress.Progress(2_000_000, 0, stream).update(_row(1_000_000))
    self.assertEqual(_read_until(terminal, '\n'), '1.00M/2.00M, 1,000 frames/s, return none yet, ETA 0:16:40\r\n')


if __name__ == '__main__':
  absltest.main()
