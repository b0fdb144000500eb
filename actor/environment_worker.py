"""A worker process: steps its environments on request. Started by actor/environment_workers.py, imports no TensorFlow.

At first the shared memory holds, behind its header, a request in JSON: which function makes an environment, with which
arguments. The first packet on the socket is the request's length; the worker answers with the environments'
specification, JSON too. From then on packets are uint32 slot numbers, as described in cc/environment_channel.h: an
environment that has not begun is reset, the others are stepped with the action in their slot, and the packet goes back
once all have their result in their slots.
"""

import functools
import importlib
import json
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
import traceback

import dm_env
import numpy as np

from scalable_agents.actor import shared_memory
from scalable_agents.actor import standard_streams
from scalable_agents.environments import long_work

MAXIMUM_PACKET_BYTES = 1 << 17
CLOSE_SECONDS = 2.  # In which a step has to end, and the environments to close, once the worker is to leave.
REQUEST_LENGTH = struct.Struct('<q')


class _Slot:
  """One environment and its record in shared memory. Rows are as actor/unroll.py describes them."""

  def __init__(self, environment, memory, layout, number):
    self._environment = environment
    self._memory = memory
    self._start = shared_memory.HEADER_BYTES + number * layout.slot_bytes
    self._observation = [
        (field.name, np.ndarray(field.shape, field.dtype, memory, self._start + field.offset))
        for field in layout.observation]
    self._frames_per_step = environment.frames_per_step
    self._began = False

  def advance(self):
    """Resets or steps the environment and writes a row."""
    if not self._began:
      self._began = True
      self._reset()
      self._write(0., 0., True)
      return
    action, = shared_memory.ACTION.unpack_from(self._memory, self._start)
    timestep = self._environment.step(action)
    reward = timestep.reward
    self._episode_return += reward
    self._episode_length += self._frames_per_step
    if timestep.step_type is dm_env.StepType.LAST:
      finished = self._episode_return, self._episode_length
      self._reset()
      self._write(reward, 0., True, *finished)
    else:
      self._copy_observation(timestep.observation)
      # A discount of 0 amid an episode is a lost life, which ends it for learning only.
      self._write(reward, 0. if timestep.discount == 0. else 1., False, self._episode_return, self._episode_length)

  def _reset(self):
    self._copy_observation(self._environment.reset().observation)
    self._episode_return = 0.
    self._episode_length = 0

  def _copy_observation(self, observation):
    for name, view in self._observation:
      if np.shape(observation[name]) != view.shape:  # Would be broadcast, if it can be.
        raise ValueError(f'observation {name!r}: want shape {view.shape}, got {np.shape(observation[name])}')
      np.copyto(view, observation[name])
      if view.dtype.kind == 'f' and not np.isfinite(view).all():  # No policy can act on it.
        raise ValueError(f'observation {name!r}: not finite')

  def _write(self, reward, discount, done, episode_return=0., episode_length=0):
    shared_memory.RESULT.pack_into(self._memory, self._start + shared_memory.RESULT_OFFSET, reward, discount,
                                   episode_return, episode_length, done)


def _receive_request(connection, memory_descriptor):
  """The request, which may be too long for a packet."""
  length, = REQUEST_LENGTH.unpack(connection.recv(REQUEST_LENGTH.size))
  return json.loads(os.pread(memory_descriptor, length, shared_memory.HEADER_BYTES))


def _make_environments(request, numbers):
  module, function = request['constructor'].split(':')
  constructor = getattr(importlib.import_module(module), function)
  environments = []
  for number, arguments in enumerate(request['environments']):
    numbers[shared_memory.AT_WORK] = number + 1
    environments.append(constructor(**arguments))
  numbers[shared_memory.AT_WORK] = 0
  return environments


def _specification(environment):
  observation = {name: (str(np.dtype(spec.dtype)), list(spec.shape))
                 for name, spec in environment.observation_spec().items()}
  return {'num_actions': int(environment.action_spec().num_values), 'observation': observation,
          'frames_per_step': int(environment.frames_per_step)}


def _specification_of_all(environments):
  first = _specification(environments[0])
  for environment in environments[1:]:
    other = _specification(environment)
    if other != first:
      raise ValueError(f'the environments of a run must be alike: got {first} and {other}')
  return first


def _serve(connection, memory_descriptor, environments, specification, numbers):
  packet = connection.recv(MAXIMUM_PACKET_BYTES)
  layout = shared_memory.slot_layout(specification['observation'])
  memory = mmap.mmap(memory_descriptor, shared_memory.block_bytes(layout, len(environments)))
  slots = [_Slot(environment, memory, layout, i) for i, environment in enumerate(environments)]
  while packet:
    began = numbers[shared_memory.REQUEST_NS] = time.monotonic_ns()
    for number in np.frombuffer(packet, np.uint32).tolist():
      numbers[shared_memory.AT_WORK] = number + 1
      slots[number].advance()
    numbers[shared_memory.AT_WORK] = numbers[shared_memory.LONG_WORK] = 0  # An environment may never say that it ends.
    numbers[shared_memory.STEPPING_NS] += time.monotonic_ns() - began
    connection.send(packet)
    packet = connection.recv(MAXIMUM_PACKET_BYTES)


def _close(environments):
  for environment in environments:
    try:
      environment.close()
    except BaseException:  # pylint: disable=broad-except; the others are closed all the same.
      traceback.print_exc()


def _leave_with_parent(connection):
  """Ends this process soon after the other end of the socket closes, even while a step or a `close` hangs."""
  poll = select.poll()
  poll.register(connection, select.POLLRDHUP | select.POLLHUP)
  poll.poll()
  time.sleep(CLOSE_SECONDS)
  os._exit(0)


def main(socket_descriptor: int, memory_descriptor: int):
  """Serves until the other end of the socket closes; exit code 1 and a reason in shared memory after an error."""
  standard_streams.make_unfailing()  # An environment may print, and the log may be full.
  # Programs that an environment starts must not hold these open: the other end would not notice this process's end.
  for descriptor in (socket_descriptor, memory_descriptor):
    os.set_inheritable(descriptor, False)
  connection = socket.socket(fileno=socket_descriptor)
  os.register_at_fork(after_in_child=connection.close)
  threading.Thread(target=_leave_with_parent, args=[connection], daemon=True).start()
  header = mmap.mmap(memory_descriptor, shared_memory.HEADER_BYTES)
  numbers = shared_memory.numbers(header)
  long_work.tell(functools.partial(numbers.__setitem__, shared_memory.LONG_WORK))
  environments = []
  try:
    environments = _make_environments(_receive_request(connection, memory_descriptor), numbers)
    specification = _specification_of_all(environments)
    connection.send(json.dumps(specification).encode())
    _serve(connection, memory_descriptor, environments, specification, numbers)
  except (BrokenPipeError, ConnectionResetError):
    pass  # The training process is gone.
  except BaseException as error:  # pylint: disable=broad-except; whatever ends a worker is for its parent to show.
    shared_memory.write_error(header, ''.join(traceback.format_exception_only(error)), traceback.format_exc())
    sys.stdout.flush()
    os._exit(1)
  _close(environments)
  os._exit(0)  # Not through the emulators' destructors, which may hang.


if __name__ == '__main__':
  main(int(sys.argv[1]), int(sys.argv[2]))
