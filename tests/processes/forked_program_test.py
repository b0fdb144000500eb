"""Tests that a forked program is like one that was started: arguments, streams, signals, exit codes and its end."""

import os
import pty
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.processes import forked_program
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting

_IMPORTED = 'tensorflow',
_WAITS = 'import os, time; os.write(1, b"waiting"); time.sleep(1000)'

_CLIENT = '''
from scalable_agents.processes import forked_program
forked_program.ForkedProgram((), '-c', ['pass'], (0, 1, 2)).wait()
forked_program.ForkedProgram((), '-c', ['import time; time.sleep(1000)'], (0, 1, 2))
print('ready', flush=True)
input()
'''


def _start(output, code, stdin=None):
  """Starts a program that runs `code`, with timeit, which runs the code in its argument."""
  with open(os.devnull, 'rb') as nothing:
    streams = (nothing.fileno() if stdin is None else stdin, output.fileno(), output.fileno())
    return forked_program.ForkedProgram(_IMPORTED, 'timeit', ['--number=1', '--repeat=1', code], streams)


class ForkedProgramTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.output = self.enterContext(tempfile.TemporaryFile())

  def _text(self):
    return os.pread(self.output.fileno(), 1 << 20, 0).decode()

  @parameterized.parameters(
      ('pass', 0), ('import os; os._exit(5)', 5), ('raise KeyError', 1), ('import os; os.abort()', -signal.SIGABRT))
  def test_exit_codes(self, code, wanted):
    process = _start(self.output, code)
    self.assertEqual(process.wait(300), wanted, self._text())
    self.assertEqual((process.poll(), process.wait()), (wanted, wanted))
    process.kill()  # Does nothing: its id may belong to another process by now.

  def test_what_it_finds(self):
    folder = self.create_tempdir().full_path
    code = ('import os, sys; print(os.getcwd(), os.environ["WORD"], os.getsid(0) == os.getpid(), '
            'sorted(map(int, os.listdir("/proc/self/fd")))[:-1], sys.argv[0], "tensorflow" in sys.modules, '
            'sys.stdin.read() == "", os.environ.get("TF_ENABLE_ONEDNN_OPTS")); print("and this", file=sys.stderr)')
    before = os.getcwd()
    os.chdir(folder)
    try:
      with absltest.mock.patch.dict(os.environ, {'WORD': 'a\udcff b', 'TF_ENABLE_ONEDNN_OPTS': '0'}):
        process = _start(self.output, code.replace('os.environ["WORD"]', 'ascii(os.environ["WORD"])'))
    finally:
      os.chdir(before)
    self.assertEqual(process.wait(300), 0, self._text())
    self.assertRegex(self._text(), rf"{folder} 'a\\udcff b' True \[0, 1, 2\] \S+/timeit.py True True 0\n")
    self.assertIn('and this\n', self._text())

  @parameterized.parameters(signal.SIGTERM, signal.SIGKILL)
  def test_signals(self, number):
    process = _start(self.output, _WAITS)
    waiting.wait_until(lambda: 'waiting' in self._text())
    self.assertIsNone(process.poll())
    with self.assertRaises(subprocess.TimeoutExpired):
      process.wait(0.01)
    process.send_signal(number)
    self.assertEqual(process.wait(300), -number)
    self.assertFalse(psutil.pid_exists(process.pid))

  def test_run_returns_the_exit_code_and_all_output(self):
    code = ('import os, sys; print(*sys.orig_argv[:3], sys.stdin.read(), flush=True); '
            'print("and this", file=sys.stderr); os._exit(3)')
    code, screen = forked_program.run((), 'timeit', ['--number=1', '--repeat=1', code])
    self.assertEqual(code, 3)
    self.assertIn(f'{sys.executable} -m timeit \n', screen)
    self.assertIn('and this\n', screen)

  def test_stop_ends_the_programs_and_the_next_one_has_a_new_server(self):
    def start(code):
      return forked_program.ForkedProgram((), '-c', [code], (0, 1, 2))
    waits = start(_WAITS)
    forked_program.stop()
    self.assertEqual(waits.wait(300), -signal.SIGKILL)
    self.assertEqual(start('raise SystemExit(4)').wait(300), 4)

  def test_a_server_that_cannot_import_is_an_error(self):
    for _ in range(2):
      with self.assertRaisesRegex(errors.UserError, "^No module named 'no_such_module'$"):
        forked_program.ForkedProgram(('no_such_module',), '-c', ['pass'], (0, 1, 2))

  def test_a_server_that_has_ended_is_an_error(self):
    imported = 'statistics',
    forked_program._server(imported)
    forked_program._servers[imported][1].kill()
    with self.assertRaisesRegex(errors.UserError, '^the process that starts programs has ended$'):
      forked_program.ForkedProgram(imported, '-c', ['pass'], (0, 1, 2))

  def test_a_terminal_is_its_own(self):
    master, terminal = pty.openpty()
    self.addCleanup(os.close, master)
    process = _start(self.output, _WAITS, stdin=terminal)
    os.close(terminal)
    waiting.wait_until(lambda: 'waiting' in self._text())
    os.write(master, b'\x03')  # Ctrl-C.
    self.assertEqual(process.wait(300), 1)  # timeit prints the KeyboardInterrupt.
    self.assertIn('KeyboardInterrupt', self._text())

  @parameterized.parameters(True, False)
  def test_programs_end_with_the_server_and_the_server_ends_with_its_client(self, is_client_killed):
    client = subprocess.Popen([sys.executable, '-c', _CLIENT], env=python_path.environment(), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    with client:
      self.assertIn(b'ready\n', client.stdout)  # Reads up to this line.
      server, program = psutil.Process(client.pid).children(recursive=True)
      (client if is_client_killed else server).kill()
      self.assertEmpty(psutil.wait_procs([server, program] if is_client_killed else [program], timeout=300)[1])


if __name__ == '__main__':
  absltest.main()
