"""Tests of actor/worker_stderr.py."""

import os
import subprocess
import sys
import time

from absl.testing import absltest

from scalable_agents.actor import worker_stderr
from scalable_agents.tests.actor import waiting

# Writes a megabyte to a WorkerStderr and prints its last words.
_PROGRAM = '''
import os, sys
from scalable_agents.actor import worker_stderr
reading, writing = os.pipe()
stderr = worker_stderr.WorkerStderr(os.fdopen(reading, 'rb'))
for _ in range(1000):
  os.write(writing, b'x' * 999 + b'\\n')
os.write(writing, b'the end\\n')
os.close(writing)
stderr.wait(60)
print(stderr.last_words(0))
'''


class WorkerStderrTest(absltest.TestCase):

  def _start(self):
    """A WorkerStderr and a function that writes to it."""
    reading, writing = os.pipe()
    pipe = os.fdopen(writing, 'wb', buffering=0)
    self.addCleanup(pipe.close)
    return worker_stderr.WorkerStderr(os.fdopen(reading, 'rb')), pipe

  def test_all_of_it_is_passed_on_and_little_is_kept(self):
    done = subprocess.run([sys.executable, '-c', _PROGRAM], capture_output=True, check=True, text=True,
                          timeout=waiting.PATIENCE_SECONDS)
    self.assertEqual(done.stderr, ('x' * 999 + '\n') * 1000 + 'the end\n')
    self.assertEqual(done.stdout, '… ' + 'x' * 290 + ' / the end\n')

  def test_the_last_lines_but_for_stack_traces(self):
    stderr, pipe = self._start()
    self.assertEqual(stderr.last_words(0), '')
    pipe.write(b'before\nzip: not found\nfailed to compile:\nstack traceback:\n\t[C]: in function\n\n  more of it\n')
    pipe.close()
    stderr.wait(waiting.PATIENCE_SECONDS)
    self.assertEqual(stderr.last_words(0), 'zip: not found / failed to compile: / stack traceback:')

  def test_what_was_written_before_does_not_count(self):
    stderr, pipe = self._start()
    pipe.write(b'a greeting\n')
    waiting.wait_until(lambda: stderr.last_words(0))
    asked_ns = time.monotonic_ns()
    self.assertEqual(stderr.last_words(asked_ns), '')
    pipe.write(b'a fault\n')
    waiting.wait_until(lambda: stderr.last_words(asked_ns))
    self.assertEqual(stderr.last_words(asked_ns), 'a fault')

  def test_a_program_that_lives_on_with_the_pipe_holds_up_nobody(self):
    stderr, pipe = self._start()
    pipe.write(b'a fault\n')
    waiting.wait_until(lambda: stderr.last_words(0))
    stderr.wait(0.1)  # With the pipe still open.
    self.assertEqual(stderr.last_words(0), 'a fault')


if __name__ == '__main__':
  absltest.main()
