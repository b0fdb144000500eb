"""Tests what is shown of child processes, how their ends are described, and that all of them end."""

import io
import os
import signal
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.processes import child_process

_PATIENCE_SECONDS = 300.  # Deadline for everything that takes a moment on an idle machine.
_STUBBORN = '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
while True:
  time.sleep(1)
'''


class ChildProcessTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.stream = io.StringIO()
    self.children = child_process.Children(self.stream)
    self.addCleanup(self.children.close)

  def _start(self, source, name='child'):
    """Starts a child that runs `source`."""
    child = self.children.add(name, [sys.executable, '-c', source])
    child.start()
    self.addCleanup(self.children.end, [child], signal.SIGKILL, _PATIENCE_SECONDS)
    return child

  def _listen_until(self, condition):
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
      self.assertLess(time.monotonic(), deadline, self.stream.getvalue())
      self.children.listen()

  def _live(self, source, child=None):
    """Starts a child and waits for its end. Returns the child and the description of its end."""
    if child:
      child.start()
    else:
      child = self._start(source)
    self.assertEmpty(self.children.wait([child], _PATIENCE_SECONDS))
    self.assertTrue(child.has_ended())
    return child, child.reap()

  def test_lines_have_names_and_those_of_errors_wait_for_the_end(self):
    child, reason = self._live('''
import sys
print('one\\ntwo')
print('error: no such thing', file=sys.stderr)
print('the rest', end='')
sys.exit(1)''')
    self.assertCountEqual(self.stream.getvalue().splitlines(), ['child: one', 'child: two', 'child: the rest'])
    self.assertEqual(reason, 'with exit code 1 (no such thing)')
    self.assertEqual((child.code, child.last_error, child.refusal), (1, 'no such thing', None))
    self.assertFalse(child.is_running() or child.has_ended())

  def test_who_says_nothing_but_an_error_refuses(self):
    child, _ = self._live("raise SystemExit('error: --torso=tall: want one of shallow, deep')")
    self.assertEqual(child.refusal, '--torso=tall: want one of shallow, deep')
    self.assertEmpty(self.stream.getvalue())

  def test_regression_who_has_worked_before_does_not_refuse(self):
    """A launcher ends all its children if one refuses its flags, but not because of a disk that is full by now."""
    file = os.path.join(self.create_tempdir().full_path, 'lives')
    child, _ = self._live(f'''
with open({file!r}, 'a+') as lives:
  if not lives.tell():
    print('one', file=lives)
    print('works', flush=True)
raise SystemExit('error: the disk is full')''')
    self._live('', child)
    self.assertEqual(child.reason(), 'with exit code 1 (the disk is full)')
    self.assertIsNone(child.refusal)
    self.assertEqual(self.stream.getvalue(), 'child: works\n')

  @parameterized.parameters(
      ('pass', 0, 'with exit code 0'), ('raise SystemExit(7)', 7, 'with exit code 7'),
      ('import os; os.kill(os.getpid(), 9)', -9, 'by SIGKILL'))
  def test_how_it_has_ended(self, source, code, reason):
    child, got = self._live(source)
    self.assertEqual((child.code, got, child.reason()), (code, reason, reason))
    self.assertIsNone(child.refusal)

  def test_early_ends_in_a_row_are_counted(self):
    child, _ = self._live('pass')
    self._live('', child)
    self.assertEqual(child.why_not_again(), '')
    self._live('', child)
    self.assertEqual(
        child.why_not_again(), 'it ended 3 times in a row within 60 s of its start, the last time with exit code 0')
    with mock.patch.object(child_process, '_EARLY_END_SECONDS', 0.):
      self._live('', child)
      self.assertEqual(child.why_not_again(), '')

  def test_ctrl_c_is_for_the_launcher_alone(self):
    child = self._start('import os; print(os.getsid(0) == os.getpid())')
    self._listen_until(child.has_ended)
    child.reap()
    self.assertEqual(self.stream.getvalue(), 'child: True\n')

  def test_all_are_ended_and_who_does_not_leave_is_killed(self):
    children = [self._start(_STUBBORN, 'stubborn'), self._start(_STUBBORN.replace('SIG_IGN', 'SIG_DFL'), 'docile'),
                self.children.add('unborn', [sys.executable])]
    self._listen_until(lambda: self.stream.getvalue().count('ready') == 2)
    self.assertEqual(self.children.wait(children, 0.), children[:2])
    self.assertEmpty(self.children.end(children[1:], signal.SIGTERM, _PATIENCE_SECONDS))
    self.assertEqual(self.children.end(children[:1], signal.SIGTERM, 0.5), ['stubborn ended by SIGKILL'])
    self.assertEqual([child.code for child in children], [-signal.SIGKILL, -signal.SIGTERM, None])
    self.assertEqual(self.stream.getvalue().splitlines()[2:], ['stubborn has not ended: it is killed'])
    self.assertEmpty(psutil.Process().children())

  def test_who_saves_is_not_killed_by_signals_before_the_message(self):
    saving = self._start(_STUBBORN)
    self._listen_until(lambda: 'ready' in self.stream.getvalue())
    said = []

    def say(text):
      said.append(text)
      saving.send_signal(signal.SIGUSR1)  # It ends now.

    with mock.patch.object(child_process, '_UNTOLD_SECONDS', 0.1), mock.patch.object(self.children, 'say', say):
      self.children.end([saving], signal.SIGTERM, 7200., mock.Mock(count=2))
    self.assertEqual(saving.code, -signal.SIGUSR1)
    self.assertEqual(said, ['waiting up to 2 h for child to save; Ctrl-C kills, and what is not saved by then is lost'])

  def test_who_saves_is_killed_by_a_signal_after_the_message(self):
    saving = self._start(_STUBBORN)
    self._listen_until(lambda: 'ready' in self.stream.getvalue())
    signals = mock.Mock()
    type(signals).count = mock.PropertyMock(side_effect=[1, 2])
    with mock.patch.object(child_process, '_UNTOLD_SECONDS', 0.1):
      self.children.end([saving], signal.SIGTERM, _PATIENCE_SECONDS, signals)
    self.assertEqual(saving.code, -signal.SIGKILL)
    self.assertEqual(self.stream.getvalue().splitlines()[-1], 'child has not ended: it is killed')

  def test_regression_waiting_beside_the_dead_takes_no_processor_time(self):
    """The pipe of the dead woke the waiting at once, again and again."""
    running, dead = self._start(_STUBBORN), self._start('pass')
    self._listen_until(lambda: dead.has_ended() and 'ready' in self.stream.getvalue())
    with mock.patch.object(self.children, 'listen', wraps=self.children.listen) as look:
      self.assertEqual(self.children.wait([running], 1.), [running])
    self.assertLess(look.call_count, 10)  # One each 0.2 s, and one for the last output of the dead.
    self.assertTrue(os.path.exists(f'/proc/{running.process.pid}'))


if __name__ == '__main__':
  absltest.main()
