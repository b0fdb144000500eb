"""Helpers for tests of clusters: free ports, a proxy, and a learner's port in another process that a test controls."""

import contextlib
import multiprocessing
import os
import selectors
import signal
import socket
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.processes import parent_death
from scalable_agents.processes import ports

SETTINGS = {'agent': 'impala', '--level_name': 'catch', '--unroll_length': 20, '--torso': 'shallow'}
PARAMETER_SPECS = [tf.TensorSpec([200, 50]), tf.TensorSpec([7])]
CAPACITY = 4  # The capacity of a learner's queue, in unrolls.
_PATIENCE_SECONDS = 120.


class Unroll(NamedTuple):
  """The fields of an unroll that these tests need. A host numbers its unrolls, and its actors take turns."""
  actor_id: Any  # [] int32.
  stream_id: Any   # [] int64. Each actor has one stream, and this is its actor_id.
  index: Any     # [] int64.
  number: Any    # [] int64.
  content: Any   # [5, 2000] float32.


NUM_ACTORS = 8  # The number of actors of a host.
_NUMBER = tf.TensorSpec([], tf.int64)
UNROLL_SPEC = Unroll(tf.TensorSpec([], tf.int32), _NUMBER, _NUMBER, _NUMBER, tf.TensorSpec([5, 2000]))


def processes():
  """Returns a context whose new processes have TensorFlow imported already, since the import takes seconds."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload([__name__])
  return context


def are_due() -> bool:
  """For remote learners: parameters are due every few milliseconds. If they always were, hosts would keep asking."""
  time.sleep(0.005)
  return True


def make_unroll(host: int, number: int) -> Unroll:
  """Returns an unroll of a host. Its content follows from the host and the number."""
  index, actor = divmod(number, NUM_ACTORS)
  actor_id = cluster_config.first_actor_id(host) + actor
  return Unroll(np.int32(actor_id), np.int64(actor_id), np.int64(index), np.int64(number), content(host, number))


def content(host: int, number: int) -> np.ndarray:
  """Returns the content of a host's unroll of this number, [5, 2000] float32."""
  return np.random.RandomState([host, number]).rand(*UNROLL_SPEC.content.shape).astype(np.float32)


@contextlib.contextmanager
def free_port():
  """Yields a port without a listener. The system gives it to no other process inside the block."""
  is_dual = socket.has_dualstack_ipv6()  # Then no IPv6 socket of another program may have the port, either.
  with socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET) as holder:
    if is_dual:
      holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # The listener sets this option, too.
    holder.bind(('', 0))
    yield holder.getsockname()[1]


class Proxy:
  """Forwards bytes between its clients and a port, in a thread of its own. `with` starts and ends it."""

  def __init__(self, target: int):
    self._target = target
    self._listener = socket.create_server(('localhost', 0))
    self.port = self._listener.getsockname()[1]
    self._wakes, self._wake = socket.socketpair()
    self._selector = selectors.DefaultSelector()
    self._pairs = []     # Pairs of sockets: the client's and the target's.
    self._live = {}      # Pair that forwards bytes -> the number of bytes so far.
    self._to_do = None   # A function for the thread to call, and the event to set afterwards.
    self._thread = threading.Thread(target=self._run, daemon=True)

  def __enter__(self):
    self._selector.register(self._listener, selectors.EVENT_READ)
    self._selector.register(self._wakes, selectors.EVENT_READ)
    self._thread.start()
    return self

  def __exit__(self, *unused_exception):
    self._wake.send(b'.')
    self._thread.join()
    for one, other in self._pairs:
      one.close()
      other.close()
    for each in (self._listener, self._wakes, self._wake, self._selector):
      each.close()

  def cut(self):
    """Closes all present connections. Bytes in flight may be lost."""
    done = threading.Event()
    self._to_do = self._cut, done
    self._wake.send(b'!')
    assert done.wait(_PATIENCE_SECONDS)

  def freeze(self, only_the_busiest=False):
    """Stops forwarding on present connections without closing them. New connections work.

    Args:
      only_the_busiest: stop only the connection that has forwarded most bytes.
    """
    done = threading.Event()
    self._to_do = lambda: self._freeze(only_the_busiest), done
    self._wake.send(b'!')
    assert done.wait(_PATIENCE_SECONDS)

  def _run(self):
    while True:
      for key, _ in self._selector.select():
        if key.fileobj is self._listener:
          self._accept()
        elif key.fileobj is self._wakes:
          if self._wakes.recv(1) == b'.':
            return
          action, done = self._to_do
          action()
          done.set()
        elif key.data[1] in self._live:  # Otherwise it was closed just now.
          self._pass_on(key.fileobj, *key.data)

  def _accept(self):
    one = self._listener.accept()[0]
    try:
      other = socket.create_connection(('localhost', self._target))
    except OSError:  # The target does not listen. Neither does the proxy then.
      return one.close()
    pair = one, other
    self._pairs.append(pair)
    self._live[pair] = 0
    self._selector.register(one, selectors.EVENT_READ, (other, pair))
    self._selector.register(other, selectors.EVENT_READ, (one, pair))

  def _pass_on(self, source, sink, pair):
    block = b''
    with contextlib.suppress(OSError):
      block = source.recv(1 << 16)
      sink.sendall(block)
      self._live[pair] += len(block)
    if not block:
      self._close(pair)

  def _cut(self):
    for pair in list(self._live):
      self._close(pair)

  def _close(self, pair):
    self._ignore(pair)
    for each in pair:
      each.close()

  def _freeze(self, only_the_busiest):
    live = list(self._live)
    for pair in [max(live, key=self._live.get)] if only_the_busiest else live:
      self._ignore(pair)

  def _ignore(self, pair):
    del self._live[pair]
    for each in pair:
      self._selector.unregister(each)


class Learner:
  """A process with a learner's port, a queue and parameters. `with` ends it, if it has not ended by itself.

  The process runs these methods: `take(n)` returns the next n unrolls, stacked; `publish(version)` publishes parameters
  that all have that value; `size()` returns the size of the queue; `metrics()`, `announce_save()`, `announce_end()` and
  `wait_for_farewells()` call the port; `close_queue()` closes the queue.
  """

  def __init__(self, port: int, settings=None, precision='float32'):
    """Starts the process, publishes version 1 and admits actor hosts. Raises ports.PortError."""
    context = processes()
    self._pipe, other_end = context.Pipe()
    self._process = context.Process(
        target=_serve, args=[other_end, f'localhost:{port}', settings or SETTINGS, precision],
        daemon=True)
    self._process.start()
    other_end.close()
    try:
      self._answer()
    except BaseException:
      self.kill()
      raise

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    self.kill()

  def __getattr__(self, name):
    def call(*arguments):
      self._pipe.send([name, *arguments])
      return self._answer()
    return call

  def megabytes(self) -> float:
    """Returns the resident memory of the process."""
    return psutil.Process(self._process.pid).memory_info().rss * 1e-6

  def freeze(self):
    os.kill(self._process.pid, signal.SIGSTOP)

  def thaw(self):
    os.kill(self._process.pid, signal.SIGCONT)

  def kill(self):
    """Kills the process with SIGKILL. Idempotent."""
    self._process.kill()
    self._process.join()

  def _answer(self):
    if not self._pipe.poll(_PATIENCE_SECONDS):
      raise TimeoutError('no answer from the learner')
    value = self._pipe.recv()
    if isinstance(value, Exception):
      raise value
    return value


def _serve(pipe, address, settings, precision):
  """Runs the process: makes the port, then answers calls."""
  parent_death.signal_at_parents_end(signal.SIGKILL)  # Also while it is stopped.
  try:
    port = learner_port.LearnerPort(
        cluster_config.ClusterConfig(job_name='learner', learner_addresses=address), settings)
  except ports.PortError as error:
    pipe.send(error)
    return
  sent = parameters_lib.sent_specs(PARAMETER_SPECS, precision)
  parameters = parameters_lib.ParameterSnapshot(sent, shared_name=learner_port.PARAMETERS)
  queue = unroll_queue.UnrollQueue(
      UNROLL_SPEC, CAPACITY, tf.nest.map_structure(lambda spec: False, UNROLL_SPEC), learner_port.UNROLLS)

  def publish(version):
    values = [tf.fill(spec.shape, float(version)) for spec in PARAMETER_SPECS]
    parameters.publish(
        tf.constant(version, tf.int64), parameters_lib.cast(values, tuple(spec.dtype for spec in sent)))

  def take(count):
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), queue.take_batch(count))

  publish(1)
  port.offer(UNROLL_SPEC, PARAMETER_SPECS)
  pipe.send(None)
  commands = {'take': take, 'publish': publish, 'size': queue.size, 'close_queue': queue.close, 'metrics': port.metrics,
              'announce_save': port.announce_save, 'announce_end': port.announce_end,
              'wait_for_farewells': port.wait_for_farewells}
  with contextlib.suppress(EOFError):  # Raised when the other end of the pipe is gone.
    while True:
      name, *arguments = pipe.recv()
      try:
        pipe.send(commands[name](*arguments))
      except tf.errors.OpError as error:
        pipe.send(RuntimeError(str(error)))
