"""Starts programs for tests in a fraction of the time, by forking a server that has imported TensorFlow already.

These imports are more than half of what a small training costs. A forked program is a process like any other, with its
own session, arguments, environment variables and streams. It differs from `python -m` in one point: libraries are
imported before its first line. So tests of how a program starts use subprocess.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import termios
from typing import TextIO

from scalable_agents.processes import kernels
from scalable_agents.processes import python_path

# What the server imports: what the programs have in common, and what they import when they draw the learning curve.
_IMPORTED = ('scalable_agents.agents.impala', 'scalable_agents.launch.program', 'matplotlib.figure',
             'matplotlib.ticker', 'matplotlib.backends.backend_agg')
_MESSAGE_BYTES = 1 << 16


class ForkedProgram:
  """A running program, with those methods of subprocess.Popen that tests need.

  Attributes:
    pid: its process id.
  """

  def __init__(self, module: str, arguments: list[str], streams: tuple[int, int, int]):
    """Starts it.

    Args:
      module: the name of the program's module, as for `python -m`; or '-c' if the first argument is its code.
      arguments: its command-line arguments.
      streams: the file descriptors of its standard input, output and error. A terminal as the standard input becomes
        the program's controlling terminal.
    """
    self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {'module': module, 'arguments': arguments, 'folder': os.getcwd(),
               'environment': python_path.environment()}
    with status:
      socket.send_fds(_server(), [json.dumps(request).encode()], [status.fileno(), *streams])
    self.pid = int(self._status.recv(_MESSAGE_BYTES))
    self._returncode = None

  def poll(self) -> int | None:
    """Returns the exit code, or minus the number of the signal that ended it. None while it runs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      return self.wait(timeout=0)
    return None

  def wait(self, timeout: float | None = None) -> int:
    """Waits for the end, and returns what `poll` does. Raises subprocess.TimeoutExpired after `timeout` seconds."""
    if self._returncode is None:
      if not select.select([self._status], [], [], timeout)[0]:
        raise subprocess.TimeoutExpired(str(self.pid), timeout)
      self._returncode = int(self._status.recv(_MESSAGE_BYTES))
      self._status.close()
    return self._returncode

  def send_signal(self, number: int):
    """Sends a signal, if the program has not ended."""
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self):
    """Sends SIGKILL, if the program has not ended."""
    self.send_signal(signal.SIGKILL)


def start(test, module: str, *arguments: str) -> tuple[ForkedProgram, TextIO]:
  """Starts a program that ends with a test at the latest. Returns it and what it prints; its errors are the test's."""
  read, write = os.pipe()
  with open(os.devnull, 'rb') as nothing, open(write, 'wb') as output:
    process = ForkedProgram(module, list(arguments), (nothing.fileno(), output.fileno(), sys.__stderr__.fileno()))
  test.addCleanup(process.kill)
  return process, test.enterContext(open(read, encoding='utf-8'))


@functools.cache
def _server():
  """Returns a socket to this process's server. The server ends with this process."""
  ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  environment = python_path.environment()
  if 'TEST_TMPDIR' in environment:  # Otherwise matplotlib makes a folder, which each program would remove at its end.
    environment['MPLCONFIGDIR'] = environment['TEST_TMPDIR']
  with its:
    process = subprocess.Popen(
        [sys.executable, '-m', __name__, str(its.fileno()), *_IMPORTED], env=environment,
        pass_fds=[its.fileno()], start_new_session=True, stdin=subprocess.DEVNULL)
  atexit.register(lambda: (ours.close(), process.wait()))
  return ours


def _serve(requests: socket.socket):
  """Forks a program for each request. Returns in the new process, with the request.

  When the client has ended, it ends with all programs, because the client may have been killed before its cleanups.
  """
  running = {}  # pidfd -> (pid, socket for its exit code)
  with selectors.DefaultSelector() as selector:
    selector.register(requests, selectors.EVENT_READ)
    while True:
      for key, _ in selector.select():
        if key.fileobj in running:
          selector.unregister(key.fileobj)
          os.close(key.fileobj)
          pid, status = running.pop(key.fileobj)
          with status, contextlib.suppress(BrokenPipeError):  # Perhaps nobody waits for it any more.
            status.send(b'%d' % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
          continue
        message, descriptors, *_ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not message:
          for pid, _ in running.values():
            os.kill(pid, signal.SIGKILL)
          sys.exit()
        pid = os.fork()
        if not pid:
          return json.loads(message), descriptors[1:]
        for descriptor in descriptors[1:]:
          os.close(descriptor)
        status = socket.socket(fileno=descriptors[0])
        status.send(b'%d' % pid)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = pid, status
        selector.register(pidfd, selectors.EVENT_READ)


def become(request: dict, streams: tuple[int, int, int]):
  """Makes this process look like one that has just been started.

  Args:
    request: 'arguments', the command-line arguments; 'folder', the current folder; 'environment', the variables.
    streams: the file descriptors of its standard input, output and error.
  """
  os.setsid()
  for number, stream in enumerate(streams):
    os.dup2(stream, number)
  os.closerange(3, max(map(int, os.listdir('/proc/self/fd'))) + 1)
  if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    like = getattr(sys, name)
    by_lines = name == 'stderr' or os.isatty(number)
    stream = open(number, 'w' if number else 'r', 1 if by_lines else -1, like.encoding, like.errors, closefd=False)
    setattr(sys, name, stream)
    setattr(sys, f'__{name}__', stream)
  os.chdir(request['folder'])
  os.environ.clear()
  os.environ.update(request['environment'])
  sys.argv[1:] = request['arguments']


def _main():
  kernels.choose()
  descriptor, *names = sys.argv[1:]
  for name in names:
    importlib.import_module(name)
  if tensorflow := sys.modules.get('tensorflow'):
    tensorflow.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
  gc.freeze()  # The programs share the memory of what is imported.
  request, streams = _serve(socket.socket(fileno=int(descriptor)))
  become(request, streams)
  if request['module'] == '-c':
    sys.argv[:2] = ['-c']
    exec(request['arguments'][0], {'__name__': '__main__'})
  else:
    runpy.run_module(request['module'], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  _main()
