"""Starts programs in a fraction of the time, by forking a server that has imported TensorFlow already.

These imports are more than half of what a small training costs. A forked program is a process like any other, with its
own session, arguments, environment variables and streams. It differs from `python -m` in one point: some modules are
imported before its first line. The version of the code that it writes to config.json is of the time of their import.
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
from scalable_agents.records import package_versions

_MESSAGE_BYTES = 1 << 16

_servers = {}  # Modules that a server has imported -> its socket and its process.
_lock = threading.Lock()  # Of _servers.


class ForkedProgram:
  """A running program, with some methods of subprocess.Popen.

  Attributes:
    pid: its process id.
  """

  def __init__(self, imported: tuple[str, ...], module: str, arguments: Sequence[str], streams: tuple[int, int, int]):
    """Starts it.

    Args:
      imported: the names of the modules that the server has imported. They decide which server it is.
      module: the name of the program's module, as for `python -m`; or '-c' if the first argument is its code.
      arguments: its command-line arguments.
      streams: the file descriptors of its standard input, output and error. A terminal as the standard input becomes
        the program's controlling terminal.
    Raises:
      errors.UserError: the server cannot import a module, or it has ended.
    """
    self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {'module': module, 'arguments': list(arguments), 'folder': os.getcwd(),
               'environment': python_path.environment()}
    with status, open(os.memfd_create('request'), 'w+b') as file:  # A message could be too small for it.
      file.write(json.dumps(request).encode())
      file.seek(0)
      server = _server(imported)
      with contextlib.suppress(OSError):  # The server has ended.
        socket.send_fds(server, [b'.'], [file.fileno(), status.fileno(), *streams])
    answer = self._status.recv(_MESSAGE_BYTES).decode()
    if not answer.isdigit():
      raise errors.UserError(answer or 'the process that starts programs has ended')
    self.pid = int(answer)
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


def command(module: str, arguments: Sequence[str]) -> list[str]:
  """Returns the command that a forked program stands for. It is the program's sys.orig_argv."""
  return [sys.executable, '-m', module, *arguments]


def run(imported: tuple[str, ...], module: str, arguments: Sequence[str]) -> tuple[int, str]:
  """Runs a program without input; see ForkedProgram. Returns what `wait` does, and its output, errors included."""
  read, write = os.pipe()
  with open(read, encoding='utf-8', errors='replace') as screen:
    with open(os.devnull, 'rb') as nothing, open(write, 'wb') as output:
      program = ForkedProgram(imported, module, arguments, (nothing.fileno(), output.fileno(), output.fileno()))
    text = screen.read()  # Up to the program's end.
    return program.wait(), text


@atexit.register
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
  leave_with_server = parent_death.leaving_with_parent(signal.SIGKILL)
  with selectors.DefaultSelector() as selector:
    selector.register(requests, selectors.EVENT_READ)
    while True:
      for key, _ in selector.select():
        if key.fd in running:
          selector.unregister(key.fd)
          os.close(key.fd)
          pid, status = running.pop(key.fd)
          with status, contextlib.suppress(ConnectionError):  # Perhaps nobody waits for it any more.
            status.send(b'%d' % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
          continue
        descriptors = _receive(requests)
        if not descriptors:
          for pid, _ in running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
          os._exit(0)  # A normal exit of TensorFlow takes a second.
        pid = os.fork()
        if not pid:
          leave_with_server()
          with open(descriptors[0], 'rb') as request:
            return json.load(request), descriptors[2:]
        status = _keep_status(descriptors)
        with contextlib.suppress(ConnectionError):
          status.send(b'%d' % pid)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = pid, status
        selector.register(pidfd, selectors.EVENT_READ)


def _receive(requests: socket.socket) -> list[int]:
  """Returns the descriptors of a request: its file, its socket and the streams. [] if the client has ended."""
  return socket.recv_fds(requests, 1, 5)[1]


def _keep_status(descriptors: Sequence[int]) -> socket.socket:
  """Returns the socket of a request, and closes the other descriptors."""
  for index, descriptor in enumerate(descriptors):
    if index != 1:
      os.close(descriptor)
  return socket.socket(fileno=descriptors[1])


def _refuse(requests: socket.socket, reason: str):
  """Answers all requests with the reason why no program can start."""
  while descriptors := _receive(requests):
    with _keep_status(descriptors) as status, contextlib.suppress(ConnectionError):
      status.send(reason.encode())


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
  sys.orig_argv = command(request['module'], request['arguments'])


@contextlib.contextmanager
def _without_messages_of_libraries():
  """Within the block, descriptor 2, where TensorFlow writes lines as it starts, is /dev/null."""
  screen = os.dup(2)
  with open(os.devnull, 'wb') as nothing:
    os.dup2(nothing.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(screen, 2)
    os.close(screen)


def _main():
  kernels.choose()
  descriptor, *names = sys.argv[1:]
  requests = socket.socket(fileno=int(descriptor))
  try:
    with _without_messages_of_libraries():
      if names:
        kernels.load()
      for name in names:
        importlib.import_module(name)
  except ImportError as error:
    _refuse(requests, str(error))
    sys.exit()
  package_versions.installed()  # Kept: files may change before a program asks for the version of what is imported.
  gc.freeze()  # The programs share the memory of what is imported.
  request, streams = _serve(requests)
  requests.close()
  become(request, streams)
  if request['module'] == '-c':
    sys.argv[:2] = ['-c']
    exec(request['arguments'][0], {'__name__': '__main__'})
  else:
    runpy.run_module(request['module'], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  _main()
