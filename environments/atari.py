"""Atari 2600 games under the papers' protocol, as dm_env environments that use ale-py.

Espeholt et al. 2018 (IMPALA), section 5.3.2 and appendix G. The protocol is that of Mnih et al. 2015 (DQN). An action
is repeated for four frames. The last two screens are max-pooled, because the console's sprites flicker. The result is
converted to gray, resized to 84x84 and stacked with the three frames before it. An episode starts with a random number
of no-ops.

Differs from the paper: DeepMind pools the two screens in colour, converts to luminance and resizes bilinearly. Here,
as in today's emulator packages, each screen is converted to gray first, then pooled, then resized by area averaging: a
pixel is the exact mean of the area that it covers, and halves are rounded up.
"""

from collections.abc import Mapping
import dataclasses
import importlib.util
from typing import Any

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import atari57
from scalable_agents.environments import base
from scalable_agents.environments import pixel_pass


@dataclasses.dataclass(frozen=True)
class AtariSettings:
  """The protocol of Atari games. All values are plain numbers, so that settings can be sent to workers as JSON.

  Raises:
    ValueError: a value is out of its range.
  """
  action_repeats: int = 4             # environment frames per agent step.
  max_pooled_frames: int = 2          # a frame shows the element-wise maximum of this many last screens of a step.
  height: int = 84                    # pixels.
  width: int = 84                     # pixels.
  frame_stack: int = 4                # observed frames per observation.
  noop_max: int = atari57.SUITE.noop_max  # no-op frames at a start: uniform integer in [1, noop_max]; 0: none.
  episode_end_on_life_loss: bool = False  # the discount is 0 at a lost life, without a reset. For training only.
  full_action_set: bool = False       # True: all 18 actions. False: the game's minimal set.
  sticky_actions: float = 0.0         # probability that a frame repeats the last action; newer convention: 0.25.
  max_episode_frames: int = atari57.MAX_EPISODE_FRAMES  # environment frames, no-ops included: 30 minutes.

  def __post_init__(self):
    for name in ('action_repeats', 'max_pooled_frames', 'height', 'width', 'frame_stack', 'max_episode_frames'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}: want at least 1, got {getattr(self, name)}')
    if self.max_pooled_frames > self.action_repeats:
      raise ValueError(f'max_pooled_frames: want at most action_repeats = {self.action_repeats}, '
                       f'got {self.max_pooled_frames}')
    if not 0 <= self.noop_max < self.max_episode_frames:
      raise ValueError(f'noop_max: want an integer in [0, max_episode_frames = {self.max_episode_frames}), '
                       f'got {self.noop_max}')
    if not 0 <= self.sticky_actions < 1:
      raise ValueError(f'sticky_actions: want a probability in [0, 1), got {self.sticky_actions}')


class Atari(base.Environment):
  """One Atari game.

  The observation is {'pixels': uint8 [height, width, frame_stack]}, with the newest frame last. The reward is the raw
  sum over the frames of a step.

  In the first observations of an episode, the frames from before the episode are zeros, as in DQN's and Dopamine's
  agents. So a replay that stores only the newest frame of each step can rebuild every stack. Two frames show a single
  screen instead of a maximum: the first frame of an episode, and the last frame of an episode that ends while an
  action is repeated.

  The end of the game and the limit on frames are LAST steps with discount 0. With `episode_end_on_life_loss`, the loss
  of a life is a MID step with discount 0, and the game continues.
  """

  def __init__(self, game: str, *, seed: int, settings: AtariSettings = AtariSettings()):
    """Loads the game.

    Args:
      game: the name of the game's ROM in ale-py, in snake_case.
      seed: random seed of the number of no-ops and of sticky actions, >= 0.
      settings: the protocol.

    Raises:
      ImportError: ale-py is missing.
      ValueError: ale-py has no such game.
    """
    self._emulator, all_actions = load_emulator(game, seed, settings.sticky_actions)
    self._settings = settings
    self.frames_per_step = settings.action_repeats
    self.frame_stacks = {'pixels': settings.frame_stack}
    self._random = np.random.RandomState(seed % 2**32)
    # The emulator's own list of legal actions is not used: for skiing it has only 9 actions, and the emulator treats
    # the other 9 as no-ops.
    self._actions = all_actions if settings.full_action_set else self._emulator.getMinimalActionSet()
    self._noop = all_actions[0]
    size, screen = (settings.height, settings.width), self._emulator.getScreenDims()
    super().__init__(len(self._actions), {'pixels': specs.BoundedArray(
        (*size, settings.frame_stack), np.uint8, 0, 255, name='pixels')})
    self._screen_size = screen
    self._pixels = pixel_pass.make(screen, size, settings.frame_stack)
    self._is_stack_observed = False
    self._episode_frames = 0
    self._lives = 0

  def render(self) -> np.ndarray:
    """Returns the console's screen in colour, uint8 [210, 160, 3]."""
    return self._emulator.getScreenRGB()

  def write_observations_to(self, arrays: Mapping[str, np.ndarray]) -> None:
    self._pixels.keep_stack_in(arrays['pixels'])
    self._is_stack_observed = True

  def _start_episode(self):
    self._reset_emulator()
    if self._settings.noop_max:
      for _ in range(self._random.randint(1, self._settings.noop_max + 1)):
        self._emulator.act(self._noop)  # The rewards of no-ops belong to no agent step and are not counted.
        self._episode_frames += 1
        if self._emulator.game_over(with_truncation=False):
          self._reset_emulator()
    self._lives = self._emulator.lives()
    self._pixels.clear()
    self._look(is_first=True)
    return self._observe()

  def _advance(self, action):
    emulator = self._emulator
    emulator_action = self._actions[action]
    frames = min(self._settings.action_repeats, self._settings.max_episode_frames - self._episode_frames)
    first_pooled = max(frames - self._settings.max_pooled_frames, 0)
    reward = 0
    for i in range(frames):
      reward += emulator.act(emulator_action)
      if emulator.game_over(with_truncation=False):
        self._look(is_first=True)
        return dm_env.termination(float(reward), self._observe())
      if i >= first_pooled:
        self._look(is_first=i == first_pooled)
    self._episode_frames += frames
    observation = self._observe()
    if self._episode_frames >= self._settings.max_episode_frames:
      return dm_env.termination(float(reward), observation)
    lives, self._lives = self._lives, emulator.lives()
    life_lost = self._settings.episode_end_on_life_loss and self._lives < lives
    return dm_env.transition(float(reward), observation, discount=0.0 if life_lost else 1.0)

  def _reset_emulator(self):
    self._emulator.reset_game()
    self._episode_frames = 0

  def _look(self, is_first):
    """Adds the console's screen to those that are pooled."""
    screens = pixel_pass.screens(self._screen_size)
    self._emulator.getScreen(screens.indices)  # Palette indices take a tenth of the time of gray.
    if not self._pixels.add(screens, is_first):
      self._pixels.add_gray(screens, self._emulator.getScreenGrayscale(), is_first)

  def _observe(self):
    """Adds the pooled screens to the stack and returns it."""
    self._pixels.observe(pixel_pass.screens(self._screen_size))
    return {'pixels': self._pixels.stack if self._is_stack_observed else self._pixels.stack.copy()}


def check_installed(game: str) -> None:
  """Checks that `ale_py` is installed, without importing it.

  Args:
    game: named in the error.

  Raises:
    ImportError: it is not installed.
  """
  if importlib.util.find_spec('ale_py') is None:
    raise _missing(game, "No module named 'ale_py'")


def load_emulator(game: str, seed: int, sticky_actions: float) -> tuple[Any, list[Any]]:
  """Returns an emulator with the game's ROM, and the console's 18 actions.

  ale-py is imported here, so that workers for other levels start faster.

  Args:
    game: ale-py's name of the game.
    seed: seed of the emulator.
    sticky_actions: probability that a frame repeats the action before.
  Raises:
    ImportError: ale-py is not installed.
    ValueError: ale-py has no such game.
  """
  try:
    import ale_py
    import ale_py.roms
  except ImportError as error:
    raise _missing(game, error) from error
  if game not in ale_py.roms.get_all_rom_ids():
    raise ValueError(f'{game}: ale-py {ale_py.__version__} has no such game')
  ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
  emulator = ale_py.ALEInterface()
  emulator.setInt('random_seed', seed % 2**31)
  emulator.setFloat('repeat_action_probability', sticky_actions)
  emulator.loadROM(str(ale_py.roms.get_rom_path(game)))
  return emulator, list(ale_py.Action.__members__.values())


def _missing(game, error):
  return ImportError(f'{game}: Atari games need ale-py ({error}): pip install ale-py')
