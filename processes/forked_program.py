"""Starts programs in a fraction of the time, by forking a server that has imported TensorFlow already.

These imports are more than half of what a small training costs. A forked program is a process like any other, with its
own session, arguments, environment variables and streams. It differs from `python -m` in one point: libraries are
imported before its first line.
"""

import atexit
from collections.abc import Sequence
import contextlib
import fcntl
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
import threading

from scalable_agents.processes import kernels
from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.records import errors

# What training programs have in common, and what they import when they draw the learning curve.
IMPORTED_BY_TRAINING = ('scalable_agents.agents.impala', 'scalable_agents.launch.program', 'matplotlib.figure',
                        'matplotlib.ticker', 'matplotlib.backends.backend_agg')
_MESSAGE_BYTES = 1 << 16

_servers = {}  # Modules that a server has imported -> its socket and its process.
_lock = threading.Lock()  # Of _servers.


class ForkedProgram:
  """A running program, with some methods of subprocess.Popen.

  Attributes:
    pid: its process id.
  """

  def __init__(self, module: str, arguments: Sequence[str], streams: tuple[int, int, int],
               imported: tuple[str, ...] = IMPORTED_BY_TRAINING):
    """Starts it.

    Args:
      module: the name of the program's module, as for `python -m`; or '-c' if the first argument is its code.
      arguments: its command-line arguments.
      streams: the file descriptors of its standard input, output and error. A terminal as the standard input becomes
        the program's controlling terminal.
      imported: the names of the modules that the server has imported.
    Raises:
      errors.UserError: the server has ended, because it cannot import a module or was stopped.
    """
    self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {'module': module, 'arguments': list(arguments), 'folder': os.getcwd(),
               'environment': python_path.environment()}
    with status, contextlib.suppress(OSError):  # The server has ended.
      socket.send_fds(_server(imported), [json.dumps(request).encode()], [status.fileno(), *streams])
    pid = self._status.recv(_MESSAGE_BYTES)
    if not pid:
      raise errors.UserError('the process that starts programs has ended')
    self.pid = int(pid)
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
        raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.)
      self._returncode = int(self._status.recv(_MESSAGE_BYTES) or -signal.SIGKILL)  # Or: it ended with the server.
      self._status.close()
    return self._returncode

  def send_signal(self, number: int):
    """Sends a signal, if the program has not ended."""
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self):
    """Sends SIGKILL, if the program has not ended."""
    self.send_signal(signal.SIGKILL)


def run(module: str, arguments: Sequence[str]) -> tuple[int, str]:
  """Runs a program without input. Returns its exit code, see ForkedProgram.wait, and its output, errors included."""
  read, write = os.pipe()
  with open(read, encoding='utf-8', errors='replace') as screen:
    with open(os.devnull, 'rb') as nothing, open(write, 'wb') as output:
      program = ForkedProgram(module, arguments, (nothing.fileno(), output.fileno(), output.fileno()))
    text = screen.read()  # Up to the program's end.
    return program.wait(), text


def stop():
  """Ends all programs and servers of this process. The next program starts a new server."""
  with _lock:
    for its_socket, process in _servers.values():
      its_socket.close()
      process.wait()
    _servers.clear()


def _server(imported: tuple[str, ...]) -> socket.socket:
  """Returns a socket to this process's server that has imported these modules. The server ends with this process."""
  with _lock:
    if imported not in _servers:
      if not _servers:
        atexit.register(stop)
      ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
      with its:
        _servers[imported] = ours, subprocess.Popen(
            [sys.executable, '-m', __name__, str(its.fileno()), *imported], env=python_path.environment(),
            pass_fds=[its.fileno()], start_new_session=True, stdin=subprocess.DEVNULL)
    return _servers[imported][0]


def _serve(requests: socket.socket):
  """Forks a program for each request. Returns in the new process, with the request.

  When the client has ended, it ends with all programs, because the client may have been killed before its cleanups.
  """
  running = {}  # pidfd -> (pid, socket for its exit code)
  with selectors.DefaultSelector() as selector:
    selector.register(requests, selectors.EVENT_READ)
    while True:
      for key, _ in selector.select():
        if key.fd in running:
          selector.unregister(key.fd)
          os.close(key.fd)
          pid, status = running.pop(key.fd)
          with status, contextlib.suppress(BrokenPipeError):  # Perhaps nobody waits for it any more.
            status.send(b'%d' % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
          continue
        message, descriptors, *_ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not message:
          for pid, _ in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
          os._exit(0)  # A normal exit of TensorFlow takes a second.
        pid = os.fork()
        if not pid:
          parent_death.signal_at_parents_end(signal.SIGKILL)
          return json.loads(message), descriptors[1:]
        for descriptor in descriptors[1:]:
          os.close(descriptor)
        status = socket.socket(fileno=descriptors[0])
        status.send(b'%d' % pid)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = pid, status
        selector.register(pidfd, selectors.EVENT_READ)


def become(request: dict, streams: Sequence[int]):
  """Makes this process look like one that has just been started.

  Args:
    request: 'module' and 'arguments', see ForkedProgram; 'folder', the current folder; 'environment', the variables.
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
  sys.orig_argv = [sys.executable, '-m', request['module'], *request['arguments']]


@contextlib.contextmanager
def _without_messages_of_libraries():
  """Within the block, descriptor 2, where TensorFlow writes lines as it starts, is /dev/null. sys.stderr stays."""
  screen = os.dup(2)
  sys.stderr = open(screen, 'w', 1, closefd=False)
  with open(os.devnull, 'wb') as nothing:
    os.dup2(nothing.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(screen, 2)


def _main():
  kernels.choose()
  descriptor, *names = sys.argv[1:]
  with _without_messages_of_libraries():
    for name in names:
      importlib.import_module(name)
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
