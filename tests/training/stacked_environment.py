"""An environment for tests of replays: every frame says from which stream, episode and step it is, and is stacked."""

import numpy as np

from scalable_agents.tests.actor import test_environments

STACK = 3


def frame(seed, episode, step):
  """The frame of a step, uint8 [2, 2]; never all zero."""
  return np.array([[1 + seed % 255, 1 + episode % 255], [1 + step, 7]], np.uint8)


class Stacked(test_environments.Diary):
  """Diary with true stacks of frames. At an episode's start, the frames before the first one are zeros."""

  frame_stacks = {'pixels': STACK}

  def observation_spec(self):
    pixels = test_environments.specs.Array([2, 2, STACK], np.uint8, 'pixels')
    return super().observation_spec() | {'pixels': pixels}

  def _observation(self):
    frames = [frame(self._seed, self._episode, self._step - age) if age <= self._step else np.zeros([2, 2], np.uint8)
              for age in reversed(range(STACK))]
    return super()._observation() | {'pixels': np.stack(frames, axis=-1)}


def make(level_name, seed, protocol):
  """Makes one; `protocol` has arguments of Diary."""
  del level_name
  return Stacked(seed, **protocol)
