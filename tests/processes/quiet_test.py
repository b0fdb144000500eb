"""Tests that messages of libraries go to a file and not to the screen. Each test runs a program of its own."""

import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.processes import python_path

_START = '''
import ctypes, logging, os, subprocess, sys, warnings
from scalable_agents.processes import quiet
quiet.start()
log = sys.argv[1]
'''


class QuietTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._log = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'tensorflow.log')

  def _run(self, program, start=_START, returncode=0):
    """Runs a program after `quiet.start()`. Returns what it shows on the screen."""
    done = subprocess.run([sys.executable, '-c', start + program, str(self._log)], env=python_path.environment(),
                          text=True, stderr=subprocess.PIPE, check=False)
    self.assertEqual(done.returncode, returncode, done.stderr)
    return done.stderr

  def test_regression_a_program_started_with_sigchld_ignored_can_end(self):
    ignored = 'import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n'
    self.assertEqual(self._run('quiet.leave(3)', ignored + _START, returncode=3), '')

  def test_tensorflows_lines_are_in_the_log_and_not_on_the_screen(self):
    self._log.write_text('from the run before\n')
    screen = self._run('''
import tensorflow as tf
assert 'keras' not in sys.modules
tf.config.list_physical_devices()
tf.constant(1.) + 1.
tf.get_logger().warning('said by Python before the log')
quiet.note('said by us before the log')
quiet.keep_log(log)
tf.get_logger().warning('said by Python')
quiet.note('said by us')
tf.raw_ops.PrintV2(input='said by C++', output_stream='stderr')
warnings.warn('said by warnings')
from absl import flags, logging
flags.FLAGS(['program'])  # This and the next line: as app.run does.
logging.use_absl_handler()
logging.warning('said by absl')
print('a message of ours', file=quiet.screen())
''')
    self.assertEqual(screen, 'a message of ours\n')
    log = self._log.read_text()
    self.assertStartsWith(log, 'from the run before\n')
    for line in ('said by Python before the log\n', '\nsaid by us before the log\n', 'said by Python\n',
                 '\nsaid by us\n', 'said by C++', 'UserWarning: said by warnings', 'said by absl\n'):
      self.assertIn(line, log)

  def test_the_log_says_which_kernels_compute(self):
    """kernels_test.py tests what the log says if the user has switched oneDNN off."""
    self._run('''
quiet.keep_log(log)
from scalable_agents.processes import devices
devices.configure_tensorflow()
''', start='import os\nos.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)\n' + _START)
    self.assertRegex(self._log.read_text(), '(?m)^kernels on the CPU: oneDNN is on; ')

  def test_an_exception_is_on_the_screen_and_the_chatter_is_not(self):
    screen = self._run('os.write(2, b"chatter\\n"); raise KeyError("a mistake")', returncode=1)
    self.assertRegex(screen, '^Traceback(.|\n)*KeyError: .a mistake.\n$')

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM)
  def test_a_signal_amid_the_imports_shows_nothing(self, number):
    screen = self._run(f'os.write(2, b"chatter\\n"); os.kill(os.getpid(), {int(number)})',
                       returncode=128 + number)
    self.assertEqual(screen, '')

  @parameterized.parameters(('', 128 + signal.SIGTERM), ('quiet.keep_log(log)', -signal.SIGTERM))
  def test_regression_sigterm_in_the_main_program_shows_nothing(self, before, returncode):
    screen = self._run(f'''
from scalable_agents.processes import run_flags
def main():
  {before}
  os.write(2, b"chatter\\n")
  os.kill(os.getpid(), {int(signal.SIGTERM)})
sys.argv = sys.argv[:1]
run_flags.run_main(main)
''', returncode=returncode)
    self.assertEqual(screen, '')

  def test_an_early_exit_drops_the_chatter(self):
    self.assertEqual(self._run('os.write(2, b"chatter\\n"); sys.exit("error: bad flag")', returncode=1),
                     'error: bad flag\n')

  def test_a_crash_before_there_is_a_log_shows_what_was_said(self):
    screen = self._run('os.write(2, b"not compiled for this CPU\\n"); ctypes.CDLL(None).abort()',
                       returncode=-signal.SIGABRT)
    self.assertIn('not compiled for this CPU\n', screen)
    self.assertIn('Fatal Python error: Aborted', screen)

  def test_a_kill_before_there_is_a_log_shows_what_was_said(self):
    screen = self._run('os.write(2, b"last words\\n"); os.kill(os.getpid(), 9)', returncode=-signal.SIGKILL)
    self.assertEqual(screen, 'last words\n')

  def test_a_crash_later_has_its_text_in_the_log_and_its_place_on_the_screen(self):
    screen = self._run('quiet.keep_log(log); os.write(2, b"check failed\\n"); ctypes.CDLL(None).abort()',
                       returncode=-signal.SIGABRT)
    self.assertStartsWith(screen, 'Fatal Python error: Aborted')
    self.assertEqual(self._log.read_text(), 'check failed\n')

  def test_order_and_much_text(self):
    self._run('''
for number in range(20000):
  os.write(2, b"line %d\\n" % number)
quiet.keep_log(log)
os.write(2, b"the last line\\n")
''')
    lines = self._log.read_text().splitlines()
    self.assertEqual(lines, [f'line {number}' for number in range(20000)] + ['the last line'])

  @parameterized.parameters('', 'quiet.keep_log(log)')
  def test_the_file_stays_small(self, keep_log):
    """It must stay small without a log, too: an actor host may run for weeks."""
    self._run(f'''
import time
from scalable_agents.processes import run_flags
quiet._MAXIMUM_BYTES, quiet._FIRST_BYTES, quiet._LAST_BYTES, quiet._SIZE_CHECK_SECONDS = 100_000, 2_000, 10_000, 0.001
os.write(2, b"the first line\\n")
{keep_log}
def main():
  for turn in range(3):
    # A child writes, too, and has opened nothing itself.
    write = 'import os; [os.write(2, b"the child\\\\n") for _ in range(12_000)]'
    subprocess.run([sys.executable, '-c', write], check=True)
    deadline = time.monotonic() + 60
    while os.fstat(2).st_size > 100_000:
      assert time.monotonic() < deadline
      time.sleep(0.01)
    os.write(2, b"turn %d\\n" % turn)
    with open('/proc/self/fd/2', 'rb') as file:
      text = file.read()
    assert text.startswith(b"the first line\\n"), text[:100]
    assert text.endswith(b"the child\\nturn %d\\n" % turn), text[-100:]
    assert text.count(b"this part was removed") == 1 and b"\\0" not in text, text
sys.argv = sys.argv[:1]
run_flags.run_main(main)
''')

  def test_no_process_is_left_over(self):
    screen = self._run('''
def children():
  return open(f'/proc/self/task/{os.getpid()}/children').read().split()
assert len(children()) == 1, children()
quiet.keep_log(log)
assert not children(), children()
''')
    self.assertEqual(screen, '')

  def test_a_child_can_be_given_the_screen(self):
    screen = self._run('''
quiet.keep_log(log)
subprocess.run(['sh', '-c', 'echo to the screen >&2'], stderr=quiet.screen(), check=True)
subprocess.run(['sh', '-c', 'echo to the log >&2'], check=True)
''')
    self.assertEqual(screen, 'to the screen\n')
    self.assertEqual(self._log.read_text(), 'to the log\n')

  def test_starting_twice_is_starting_once(self):
    self.assertEqual(self._run('quiet.start(); print("here", file=sys.stderr)'), 'here\n')

  def test_without_a_start_nothing_is_redirected(self):
    screen = self._run('quiet.keep_log(sys.argv[1]); os.write(2, b"a\\n"); quiet.note("n"); '
                       'print("b", file=quiet.screen())',
                       start='import os, sys\nfrom scalable_agents.processes import quiet\n')
    self.assertEqual(screen, 'a\nb\n')
    self.assertFalse(self._log.exists())

  def test_a_log_that_cannot_be_written_is_an_error_of_one_line(self):
    screen = self._run('quiet.keep_log("/no/such/folder/log")', returncode=1)
    self.assertIn('RunDirectoryError: /no/such/folder/log: No such file or directory', screen)


if __name__ == '__main__':
  absltest.main()
