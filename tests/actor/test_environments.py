"""dm_env environments for tests of the actors: their observations tell what happened, and they fail on demand."""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.actor import leftovers
from scalable_agents.environments import long_work


class Constant(dm_env.Environment):
  """Costs nothing: one observation, shared by all steps, in episodes of 1,000 steps."""

  frames_per_step, frame_stacks = 1, {}

  def __init__(self, seed, shape=(84, 84, 4)):
    del seed
    self._observation = {'pixels': np.zeros(shape, np.uint8)}
    self._middle = dm_env.transition(0., self._observation)
    self._last = dm_env.termination(1., self._observation)
    self._steps = 0

  def reset(self):
    self._steps = 0
    return dm_env.restart(self._observation)

  def step(self, action):
    del action
    self._steps += 1
    return self._last if self._steps == 1000 else self._middle

  def observation_spec(self):
    pixels = self._observation['pixels']
    return {'pixels': specs.BoundedArray(pixels.shape, pixels.dtype, 0, 255, 'pixels')}

  def action_spec(self):
    return specs.DiscreteArray(6)


class Closing(Constant):
  """Leaves a file of this name when it is closed, then fails as it is told: 'hang' or 'raise'.

  Or it is 'slow' to close, or fails earlier: 'make' or 'reset'.
  """

  def __init__(self, seed, file, fault=None):
    super().__init__(seed, shape=(2,))
    self._file, self._fault = file, fault
    if fault != 'hang':
      leftovers.CLOSE_SECONDS = 300.  # On a busy machine it may take long to close.
    if fault == 'make':
      raise RuntimeError('the emulator cannot make its screen')

  def reset(self):
    if self._fault == 'reset':
      raise RuntimeError('the emulator cannot reset its game')
    return super().reset()

  def close(self):
    if self._fault == 'slow':
      time.sleep(0.2)
    with open(self._file, 'x', encoding='utf-8'):
      pass
    if self._fault == 'hang':
      threading.Event().wait()
    if self._fault == 'raise':
      raise RuntimeError('the emulator cannot be closed')


class Weighed(Constant):
  """Its observations are the niceness that its process had in the constructor and in the last reset."""

  def __init__(self, seed):
    super().__init__(seed, shape=(2,))
    self._observation['pixels'][0] = os.nice(0)

  def reset(self):
    self._observation['pixels'][1] = os.nice(0)
    return super().reset()


class Truncating(Constant):
  """Cuts off all memory without a name that its process has, in each step."""

  def __init__(self, seed):
    super().__init__(seed, shape=(2,))

  def step(self, action):
    for descriptor in map(int, os.listdir('/proc/self/fd')):
      if os.path.exists(link := f'/proc/self/fd/{descriptor}') and os.readlink(link).startswith('/memfd:'):
        with contextlib.suppress(PermissionError):
          os.ftruncate(descriptor, 0)
    return super().step(action)


class Starting(Constant):
  """Starts four programs `sleep seconds`.

  One as usual, one without environment variables, one in a session of its own, and one that is nobody's child.

  It hangs in its first step.
  """

  def __init__(self, seed, seconds):
    super().__init__(seed, shape=(2,))
    command = ['sleep', seconds]
    self._children = [subprocess.Popen(command), subprocess.Popen(command, env={}),
                      subprocess.Popen(command, start_new_session=True)]
    subprocess.run(['sh', '-c', 'setsid "$@" &', 'sh', *command], check=True)

  def step(self, action):
    threading.Event().wait()


class Lives(Constant):
  """Episodes of 3 steps; the second step loses a life. Rewards 1, 2, 4; discounts as emulators and others give them.

  All rewards are multiplied by `factor`. `end` is the discount of the last step. It observes the number of the step.
  """

  frame_stacks = {}

  def __init__(self, seed, factor=1., end=0., frames_per_step=4):
    super().__init__(seed, shape=(2,))
    self.frames_per_step = frames_per_step
    self._number, self._factor, self._end = 0, factor, end

  def reset(self):
    self._number = 0
    return super().reset()

  def step(self, action):
    self._number += 1
    middle = super().step(action)._replace(observation={'pixels': np.full([2], self._number, np.uint8)})
    if self._number == 3:
      return middle._replace(step_type=middle.step_type.LAST, reward=4. * self._factor, discount=self._end)
    return middle._replace(reward=self._number * self._factor, discount=0. if self._number == 2 else 0.99)


NUM_ACTIONS = 5  # Of Diary.


class Story:
  """What happens in a stream of Diary, whatever the actions: streams of different seeds differ."""

  def __init__(self, seed):
    self._random = np.random.RandomState(seed)
    self._episodes = []

  def episode(self, number):
    """The rewards of an episode's steps, in halves, and whether each loses a life; 1 to 9 steps."""
    while len(self._episodes) <= number:
      length = self._random.randint(1, 10)
      rewards = self._random.randint(-6, 7, size=length) / 2
      lost = self._random.rand(length) < 0.2
      lost[-1] = False
      self._episodes.append((rewards, lost))
    return self._episodes[number]


class Diary(dm_env.Environment):
  """Its observations say where in which stream it is, and what it was told to do there.

  A stream whose seed is below `faulty_below` has a fault, see `_fail`: in its step number `fault_step`, where 0 is the
  reset, or in its constructor for None.
  """

  frames_per_step, frame_stacks = 4, {'pixels': 2}

  def __init__(self, seed, fault=None, fault_step=0, faulty_below=0):
    self._fault = fault if seed < faulty_below else None
    self._fault_step = fault_step
    if fault_step is None:
      self._fail()
    self._seed = seed
    self._story = Story(seed)
    self._episode = -1
    self._step = self._steps_in_stream = 0
    self._last_action = -1

  def reset(self):
    self._episode += 1
    self._step = 0
    return dm_env.restart(self._observation())

  def step(self, action):
    rewards, lost = self._story.episode(self._episode)
    reward = rewards[self._step]
    self._step += 1
    self._steps_in_stream += 1
    self._last_action = action
    observation = self._observation()
    if self._step == len(rewards):
      return dm_env.termination(reward, observation)
    return dm_env.transition(reward, observation, discount=0. if lost[self._step - 1] else 0.9)

  def observation_spec(self):
    return {'record': specs.Array([4], np.int64, 'record'), 'pixels': specs.Array([3, 2], np.uint8, 'pixels')}

  def action_spec(self):
    return specs.DiscreteArray(NUM_ACTIONS)

  def _observation(self):
    record = np.array([self._seed, self._episode, self._step, self._last_action], np.int64)
    pixels = np.repeat(np.array([[self._episode % 256, self._step]], np.uint8), 3, axis=0)  # Two frames of one column.
    if self._steps_in_stream == self._fault_step:
      self._fail()
      if self._fault == 'wrong shape':
        record = record[:1]
    return {'record': record, 'pixels': pixels}

  def _fail(self):
    if self._fault == 'raise':
      raise RuntimeError('the emulator has crashed')
    if self._fault == 'broken pipe':
      raise BrokenPipeError('the emulator has ended')
    if self._fault == 'exit':
      os._exit(3)
    if self._fault == 'kill':
      os.kill(os.getpid(), signal.SIGKILL)
    if self._fault == 'fork and kill' and os.fork():
      os.kill(os.getpid(), signal.SIGKILL)
    if self._fault == 'segmentation fault':
      os.write(2, b'emulator.cc:12: the emulator is lost\n  frame 1\n  frame 2\n')
      os.kill(os.getpid(), signal.SIGSEGV)
    if self._fault == 'long work':
      long_work.begin()
      threading.Event().wait()
    if self._fault in ('hang', 'fork and kill'):
      threading.Event().wait()
    if self._fault == 'hang in C':
      print('hangs', flush=True)
      ctypes.PyDLL(None).sleep(3600)  # PyDLL keeps Python's lock.
