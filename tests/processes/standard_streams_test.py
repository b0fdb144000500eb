"""Programs whose standard streams are closed, full or read by nobody, each in a process of its own."""

import os
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.processes import python_path
from scalable_agents.processes import standard_streams

# Exits with 7 if all goes well.
_PROGRAM = '''
import os, sys
from scalable_agents.processes import standard_streams
standard_streams.make_unfailing()
standard_streams.make_unfailing()  # The second time nothing is to be done.
with open(os.devnull) as file:
  assert file.fileno() > 2, file.fileno()
assert all(os.get_inheritable(descriptor) for descriptor in range(3))
for stream in (sys.stdout, sys.stderr):
  for _ in range(3):
    print('a line', 'of text' * 10_000, file=stream)
  print('the last line', file=stream, flush=True)
  os.fstat(stream.fileno())
sys.exit(7)
'''


def _run(redirections):
  """Runs the program in a shell, with these redirections."""
  return subprocess.run(['sh', '-c', f'exec "$@" {redirections}', 'sh', sys.executable, '-c', _PROGRAM],
                        env=python_path.environment(), text=True, capture_output=True, check=False)


class StandardStreamsTest(parameterized.TestCase):

  @parameterized.parameters('>&-', '2>&-', '<&- >&- 2>&-', '>/dev/full', '>/dev/full 2>&1', '2>/dev/full >&-')
  def test_writing_never_fails(self, redirections):
    done = _run(redirections)
    self.assertEqual(done.returncode, 7, done.stderr)
    self.assertNotIn('Error', done.stderr)

  def test_a_stream_that_can_be_written_to_gets_everything(self):
    for done in (_run(''), _run('<&-')):
      self.assertEqual(done.returncode, 7, done.stderr)
      for text in (done.stdout, done.stderr):
        self.assertEqual([line[:8] for line in text.splitlines()], ['a line o'] * 3 + ['the last'])

  def test_a_pipe_that_nobody_reads_and_one_that_is_full(self):
    for blocking in (True, False):
      reader, writer = os.pipe()
      os.set_blocking(writer, blocking)
      if blocking:
        os.close(reader)
      else:
        self.addCleanup(os.close, reader)
      with standard_streams.UnfailingStream(writer) as stream:
        for _ in range(3):
          print('text' * 100_000, file=stream)
        self.assertFalse(stream.isatty())
      with self.assertRaises(OSError):
        os.fstat(writer)  # It was closed with the stream.


if __name__ == '__main__':
  absltest.main()
