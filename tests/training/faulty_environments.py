"""Environments that each have a fault. Importing this module registers them with gymnasium; `level` returns names."""

import os
import threading

import gymnasium
import numpy as np

EPISODE_STEPS = 10
STEP_SECONDS = 'SCALABLE_AGENTS_TEST_STEP_SECONDS'  # The variable for environments that are slow.
NOT_NUMBERS_SEED = 2
HUGE_REWARD = 3e38
SOUND_FROM_SEED = 5  # Environments with lower seeds are faulty; those that replace them are not.


def level(environment_class):
  """Returns the level name of an environment class of this module."""
  return f'gymnasium:{__name__}:{environment_class.__name__}-v0'


class Sound(gymnasium.Env):
  """Has no fault: an episode has ten steps with a reward of 1 each."""

  observation_space = gymnasium.spaces.Box(-1., 1., [3], np.float32)
  action_space = gymnasium.spaces.Discrete(2)

  def __init__(self, render_mode=None):
    self.render_mode = render_mode
    self._step = 0

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._step = 0
    return self._observation(), {}

  def step(self, action):
    self._step += 1
    return self._observation(), 1., self._step == EPISODE_STEPS, False, {}

  def _observation(self):
    return np.full([3], self._step / EPISODE_STEPS, np.float32)


class Slow(Sound):
  """Takes a long time, of which an environment variable says how long."""

  def step(self, action):
    threading.Event().wait(float(os.environ.get(STEP_SECONDS, '0.02')))
    return super().step(action)


class SlowInParts(Sound):
  """Takes 0.6 s per step, in parts: the time in which its process is stopped does not count."""

  def step(self, action):
    for _ in range(30):
      threading.Event().wait(0.02)
    return super().step(action)


class Raising(Sound):
  """Raises in the middle of its first episode in every process."""

  def step(self, action):
    if self._step == EPISODE_STEPS // 2:
      raise RuntimeError('the game has crashed')
    return super().step(action)


class _FaultyAtFirst(Sound):
  """Fails in its third episode if its seed is below `SOUND_FROM_SEED`."""

  def __init__(self, render_mode=None):
    super().__init__(render_mode)
    self._episodes = 0

  def reset(self, *, seed=None, options=None):
    if seed is not None:
      self._faulty = seed < SOUND_FROM_SEED
    self._episodes += 1
    return super().reset(seed=seed, options=options)

  def step(self, action):
    if self._faulty and self._episodes == 3:
      self._fail()
    return super().step(action)


class RaisingAtFirst(_FaultyAtFirst):

  def _fail(self):
    raise RuntimeError('the game has crashed')


class HangingAtFirst(_FaultyAtFirst):

  def _fail(self):
    threading.Event().wait()


class Talkative(Sound):
  """Prints at every opportunity."""

  metadata = {'render_modes': ['rgb_array']}

  def __init__(self, render_mode=None):
    super().__init__(render_mode)
    print('hello from the game', flush=True)

  def step(self, action):
    print('step', flush=True)
    return super().step(action)

  def render(self):
    print('picture', flush=True)
    return np.zeros([16, 16, 3], np.uint8)


class SmallImages(Sound):
  """Observes images that are too small for the shallow torso."""

  observation_space = gymnasium.spaces.Box(0, 255, [7, 7, 3], np.uint8)

  def _observation(self):
    return np.zeros([7, 7, 3], np.uint8)


class InfiniteReward(Sound):
  """Gives rewards with which no loss is finite."""

  def step(self, action):
    observation, _, *rest = super().step(action)
    return (observation, float('inf'), *rest)


class HugeReward(Sound):
  """Gives a huge reward in one step of its third episode."""

  def __init__(self, render_mode=None):
    super().__init__(render_mode)
    self._episodes = 0

  def reset(self, *, seed=None, options=None):
    self._episodes += 1
    return super().reset(seed=seed, options=options)

  def step(self, action):
    observation, reward, *rest = super().step(action)
    return (observation, HUGE_REWARD if (self._episodes, self._step) == (3, 2) else reward, *rest)


class RewardsOfOneNotNumbers(Sound):
  """Gives rewards of NaN in all steps if its seed is `NOT_NUMBERS_SEED`."""

  def reset(self, *, seed=None, options=None):
    if seed is not None:
      self._faulty = seed == NOT_NUMBERS_SEED
    return super().reset(seed=seed, options=options)

  def step(self, action):
    observation, reward, *rest = super().step(action)
    return (observation, float('nan') if self._faulty else reward, *rest)


class ObservationNotNumbers(Sound):
  """Observes NaN in the middle of its episodes."""

  def _observation(self):
    observation = super()._observation()
    if self._step == EPISODE_STEPS // 2:
      observation[1] = np.nan
    return observation


for environment in (
    Sound, Slow, SlowInParts, Raising, RaisingAtFirst, HangingAtFirst, Talkative, SmallImages, InfiniteReward,
    HugeReward, RewardsOfOneNotNumbers, ObservationNotNumbers):
  gymnasium.register(f'{environment.__name__}-v0', entry_point=environment)

# Flags of a training that leaves the processor to programs that start, because its environments mostly sleep.
SLOW_UNROLL_LENGTH = 5
SLOW_FLAGS = (f'--level_name={level(Slow)}', f'--unroll_length={SLOW_UNROLL_LENGTH}')
