"""Removes a folder when the process that uses it has ended, however it ended. See environments/scratch_folder.py.

Waits for the end of its standard input, a pipe from that process which nothing but the kernel has to close. Programs
that still work in the folder, such as map compilers, are ended first, else they would fill it again.
"""

import os
import shutil
import signal
import sys
import time


def _works_in(pid: str, folder: str) -> bool:
  """Whether a process was given a path in the folder, or stands in it."""
  try:
    with open(f'/proc/{pid}/cmdline', 'rb') as file:
      return os.fsencode(folder) in file.read() or folder in os.readlink(f'/proc/{pid}/cwd')
  except OSError:
    return False  # It is gone, or somebody else's.


def main(folder: str):
  """Waits, then ends who works in `folder` and removes it."""
  sys.stdin.buffer.read()
  while at_work := [int(pid) for pid in os.listdir('/proc')
                    if pid.isdigit() and int(pid) != os.getpid() and _works_in(pid, folder)]:
    for pid in at_work:
      try:
        os.kill(pid, signal.SIGKILL)
      except OSError:
        pass  # It has ended just now.
    time.sleep(0.01)
  shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
  main(sys.argv[1])
