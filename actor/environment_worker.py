"""A worker process, which steps its environments on request. actor/environment_workers.py starts it.

The worker does not import TensorFlow. At the start, the shared memory has a JSON request after its header: the function
that makes an environment, its arguments, and the worker's niceness from then on. The first packet on the socket is the
request's length. The worker answers with the environments' specification, also JSON.

Later packets are uint32 slot numbers, see cc/environment_channel.h. The worker resets an environment at its first
request and then steps it with the action in its slot. When all results are in their slots, it sends the packet back.
"""

import contextlib
import functools
import importlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np

from scalable_agents.actor import leftovers
from scalable_agents.actor import shared_memory
from scalable_agents.environments import base
from scalable_agents.environments import long_work
from scalable_agents.processes import standard_streams

MAXIMUM_PACKET_BYTES = 1 << 17
REQUEST_LENGTH = struct.Struct('<q')
_MOST_FRAMES = 2**31 - 1  # Of an episode without end: the slot has an int32.


class Slot:
  """One environment and its slot in shared memory. actor/unroll.py describes the rows."""

  def __init__(self, environment: Any, memory: mmap.mmap, layout: shared_memory.SlotLayout, number: int):
    """Finds the slot in the memory. The first `advance` resets the environment.

    Args:
      environment: a dm_env environment with the attribute `frames_per_step`.
      memory: the worker's memory, which has room for the slot.
      layout: of the slot.
      number: of the slot.
    """
    self._environment = environment
    self._memory = memory
    self._start = shared_memory.HEADER_BYTES + number * layout.slot_bytes
    self._observation = [
        (field.name, np.ndarray(field.shape, field.dtype, memory, self._start + field.offset))
        for field in layout.observation]
    if isinstance(environment, base.Environment):
      environment.write_observations_to(dict(self._observation))
    self._frames_per_step = environment.frames_per_step
    self._is_truncated = False
    self._began = False

  def advance(self):
    """Resets or steps the environment and writes a row."""
    if not self._began:
      self._began = True
      self._reset()
      self._write(0., 0., True)
      return
    if self._is_truncated:  # The last observation had a row of its own.
      self._is_truncated = False
      finished = self._episode_return, self._episode_length
      self._reset()
      self._write(0., 1., True, *finished)
      return
    action, = shared_memory.ACTION.unpack_from(self._memory, self._start)
    timestep = self._environment.step(action)
    reward = timestep.reward
    self._episode_return += reward
    self._episode_length = min(self._episode_length + self._frames_per_step, _MOST_FRAMES)
    is_last = timestep.last()
    self._is_truncated = is_last and timestep.discount != 0.
    if is_last and not self._is_truncated:
      finished = self._episode_return, self._episode_length
      self._reset()
      self._write(reward, 0., True, *finished)
    else:
      self._copy_observation(timestep.observation)
      # A discount of 0 within an episode is a lost life, which ends the episode for learning only.
      self._write(reward, 0. if timestep.discount == 0. else 1., False, self._episode_return, self._episode_length)

  def _reset(self):
    self._copy_observation(self._environment.reset().observation)
    self._episode_return = 0.
    self._episode_length = 0

  def _copy_observation(self, observation):
    for name, view in self._observation:
      if observation[name] is not view:  # The environment has not written it there.
        if np.shape(observation[name]) != view.shape:  # np.copyto might broadcast it.
          raise ValueError(f'observation {name!r}: want shape {view.shape}, got {np.shape(observation[name])}')
        np.copyto(view, observation[name])
      if view.dtype.kind == 'f' and not np.isfinite(view).all():  # The policy's output would not be finite.
        raise ValueError(f'observation {name!r}: not finite')

  def _write(self, reward, discount, done, episode_return=0., episode_length=0):
    start = self._start + shared_memory.RESULT_OFFSET
    try:
      shared_memory.RESULT.pack_into(self._memory, start, reward, discount, episode_return, episode_length, done)
    except OverflowError:  # A number is too large for float32, which makes it infinite.
      with np.errstate(over='ignore'):
        reward, episode_return = np.float32(reward), np.float32(episode_return)
      shared_memory.RESULT.pack_into(self._memory, start, reward, discount, episode_return, episode_length, done)


class _ParentGoneError(Exception):
  """The training process has ended."""


def _with_parent(call, argument):
  """Calls `send` or `recv` of the socket. Environments may raise the same errors, but about connections of their own.

  Raises:
    _ParentGoneError: the other end of the socket is closed.
  """
  try:
    return call(argument)
  except (BrokenPipeError, ConnectionResetError) as error:
    raise _ParentGoneError from error


def _receive_request(connection, memory_descriptor):
  """Returns the request. It is read from shared memory, because it may be too long for a packet."""
  length, = REQUEST_LENGTH.unpack(_with_parent(connection.recv, REQUEST_LENGTH.size))
  return json.loads(os.pread(memory_descriptor, length, shared_memory.HEADER_BYTES))


def _make_environments(request, numbers, environments):
  module, function = request['constructor'].split(':')
  constructor = getattr(importlib.import_module(module), function)
  for number, arguments in enumerate(request['environments']):
    numbers[shared_memory.AT_WORK] = number + 1
    environments.append(constructor(**arguments))
  numbers[shared_memory.AT_WORK] = 0


def _specification(environment):
  observation = {name: (str(np.dtype(spec.dtype)), list(spec.shape))
                 for name, spec in environment.observation_spec().items()}
  return {'num_actions': int(environment.action_spec().num_values), 'observation': observation,
          'frames_per_step': int(environment.frames_per_step), 'frame_stacks': dict(environment.frame_stacks)}


def _specification_of_all(environments, numbers):
  first = _specification(environments[0])
  for number, environment in enumerate(environments[1:], start=2):
    numbers[shared_memory.AT_WORK] = number  # The message of an error names the environment.
    other = _specification(environment)
    if other != first:
      raise ValueError(f'the environments of a run must have the same specification: got {first} and {other}')
  numbers[shared_memory.AT_WORK] = 0
  return first


def _serve(connection, memory_descriptor, environments, specification, numbers):
  packet = _with_parent(connection.recv, MAXIMUM_PACKET_BYTES)
  layout = shared_memory.slot_layout(specification['observation'])
  memory = mmap.mmap(memory_descriptor, shared_memory.block_bytes(layout, len(environments)))
  slots = [Slot(environment, memory, layout, i) for i, environment in enumerate(environments)]
  while packet:
    began = numbers[shared_memory.REQUEST_NS] = time.monotonic_ns()
    for number in np.frombuffer(packet, np.uint32).tolist():
      numbers[shared_memory.AT_WORK] = number + 1
      slots[number].advance()
    # An environment may have reported the beginning of long work, but not its end.
    numbers[shared_memory.AT_WORK] = numbers[shared_memory.LONG_WORK] = 0
    numbers[shared_memory.STEPPING_NS] += time.monotonic_ns() - began
    _with_parent(connection.send, packet)
    packet = _with_parent(connection.recv, MAXIMUM_PACKET_BYTES)


def _close(environments):
  for environment in environments:
    try:
      environment.close()
    except BaseException:  # The others must be closed in any case.
      traceback.print_exc()


def _leave_with_parent(connection):
  """Ends this process soon after the other end of the socket is closed, even if a step or a `close` hangs."""
  poll = select.poll()
  poll.register(connection, select.POLLRDHUP | select.POLLHUP)
  poll.poll()
  time.sleep(leftovers.CLOSE_SECONDS)
  os._exit(0)


def _give_way(niceness):
  """Lets the training process compute first where cores are short, because everything waits for it.

  Otherwise each answer of a worker's environments would interrupt the learner. A user who has given the run a higher
  niceness wants it to yield to other programs. Then the workers do not yield even more.

  Args:
    niceness: added to the niceness of this process, of its threads and of the programs that the environments run.
  """
  own = os.nice(0)
  if own <= 0:
    with contextlib.suppress(PermissionError):  # A program has chosen a higher niceness, and keeps it.
      os.setpriority(os.PRIO_PGRP, 0, own + niceness)


def main(socket_descriptor: int, memory_descriptor: int):
  """Serves until the other end of the socket is closed. After an error, writes it to shared memory and exits with 1.

  Args:
    socket_descriptor: file descriptor of the socket.
    memory_descriptor: file descriptor of the shared memory.
  """
  standard_streams.make_unfailing()  # An environment may print, and the log's disk may be full.
  # A terminal can be set so that it stops processes in the background that write to it.
  signal.signal(signal.SIGTTOU, signal.SIG_IGN)
  # Programs that an environment starts must not inherit these. Otherwise the training process would not notice this
  # process's end.
  for descriptor in (socket_descriptor, memory_descriptor):
    os.set_inheritable(descriptor, False)
  os.environ.pop('PYTHONSAFEPATH', None)  # A script that an environment starts may import its neighbours.
  connection = socket.socket(fileno=socket_descriptor)
  os.register_at_fork(after_in_child=connection.close)
  threading.Thread(target=_leave_with_parent, args=[connection], daemon=True).start()
  header = mmap.mmap(memory_descriptor, shared_memory.HEADER_BYTES)
  numbers = shared_memory.numbers(header)
  numbers[shared_memory.PROCESS_ID] = os.getpid()
  long_work.tell(functools.partial(numbers.__setitem__, shared_memory.LONG_WORK))
  environments, code = [], 0
  try:
    request = _receive_request(connection, memory_descriptor)
    _make_environments(request, numbers, environments)
    specification = _specification_of_all(environments, numbers)
    _with_parent(connection.send, json.dumps(specification).encode())
    _give_way(request['niceness'])
    _serve(connection, memory_descriptor, environments, specification, numbers)
  except _ParentGoneError:
    pass
  except BaseException as error:  # The training process shows the error.
    shared_memory.write_error(header, ''.join(traceback.format_exception_only(error)), traceback.format_exc())
    sys.stdout.flush()
    code = 1
    end = threading.Timer(leftovers.CLOSE_SECONDS, os._exit, [code])  # Even if a `close` hangs.
    end.daemon = True
    end.start()
  _close(environments)
  os._exit(code)  # A normal exit would call the emulators' destructors, which may hang.


if __name__ == '__main__':
  main(int(sys.argv[1]), int(sys.argv[2]))
