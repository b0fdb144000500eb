"""Removes a folder when the process that uses it has ended for any reason. See environments/scratch_folder.py.

Standard input is a pipe from that process. The kernel closes the pipe when the process ends. Programs that still work
in the folder, such as map compilers, are killed first, because they would otherwise write new files.
"""

import contextlib
import os
import shutil
import signal
import sys
import time


def _works_in(pid: str, folder: str) -> bool:
  """Returns whether a process has a path of the folder in its arguments, or its working directory in the folder."""
  try:
    with open(f'/proc/{pid}/cmdline', 'rb') as file:
      return os.fsencode(folder) in file.read() or folder in os.readlink(f'/proc/{pid}/cwd')
  except OSError:
    return False  # The process has ended or belongs to another user.


def main(folder: str):
  """Waits for the end of standard input, then kills the programs that work in `folder` and removes it."""
  sys.stdin.buffer.read()
  while at_work := [int(pid) for pid in os.listdir('/proc')
                    if pid.isdigit() and int(pid) != os.getpid() and _works_in(pid, folder)]:
    for pid in at_work:
      with contextlib.suppress(OSError):  # It has ended meanwhile.
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.01)
  shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
  main(sys.argv[1])
