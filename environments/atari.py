"""Atari 2600 games under the papers' protocol: ale-py behind dm_env.

Espeholt et al. 2018 (IMPALA), section 5.3.2 and appendix G; the protocol is that of Mnih et al. 2015 (DQN): an action
is repeated for four frames, the last two screens are max-pooled against the consoles' flicker, made gray, reduced to
84x84 and stacked four deep, and an episode starts with a random number of no-ops.

Differs from the paper: DeepMind pools the two screens in colour, converts to luminance and reduces bilinearly. Here,
as in today's emulator packages, each screen is made gray first, then pooled, then reduced by area.
"""

import dataclasses

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import atari57
from scalable_agents.environments import base


@dataclasses.dataclass(frozen=True)
class AtariSettings:
  """The protocol. Plain numbers only, so that settings travel to worker processes as JSON.

  Raises:
    ValueError: a value out of its range.
  """
  action_repeats: int = 4             # environment frames per agent step.
  max_pooled_frames: int = 2          # the last frames of a step whose element-wise maximum is observed.
  height: int = 84                    # pixels.
  width: int = 84                     # pixels.
  frame_stack: int = 4                # observed frames per observation.
  noop_max: int = atari57.SUITE.noop_max  # no-op frames at a start: uniform integer in [1, noop_max]; 0: none.
  episode_end_on_life_loss: bool = False  # for learning only (discount 0, no reset); training only.
  full_action_set: bool = False       # all 18 actions; else the game's minimal set.
  sticky_actions: float = 0.0         # probability that a frame repeats the last action; newer convention: 0.25.
  max_episode_frames: int = atari57.SUITE.max_episode_frames  # environment frames, no-ops included: 30 minutes.

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
  """One game. Observation: {'pixels': uint8 [height, width, frame_stack]}, newest frame last; reward: raw sum.

  Frames from before the episode are zeros in the stack, as in DQN's and Dopamine's agents, so that a replay that
  keeps only the newest frame of each step can rebuild every stack. The first frame of an episode, and the last one
  of an episode that ends inside an action's repetition, show one screen instead of a maximum.

  The end of the game and the cap on frames are LAST with discount 0. With `episode_end_on_life_loss` the loss of a
  life is a MID step with discount 0; the emulator plays on.
  """

  def __init__(self, game: str, *, seed: int, settings: AtariSettings = AtariSettings()):
    """Loads the game.

    Args:
      game: snake_case name, as ale-py names its ROMs.
      seed: of the numbers of no-ops and of sticky actions, >= 0.
      settings: the protocol.

    Raises:
      ImportError: ale-py or OpenCV is missing.
      ValueError: ale-py has no such game.
    """
    self._cv2, self._emulator, all_actions = _load_emulator(game, seed, settings.sticky_actions)
    self._settings = settings
    self.frames_per_step = settings.action_repeats
    self._random = np.random.RandomState(seed % 2**32)
    # Not the emulator's legal actions: of skiing it calls 9 legal, and takes the others for no-ops.
    self._actions = all_actions if settings.full_action_set else self._emulator.getMinimalActionSet()
    self._noop = all_actions[0]
    self._size = (settings.width, settings.height)  # In OpenCV's order.
    self._shape = (settings.height, settings.width, settings.frame_stack)
    super().__init__(len(self._actions), {'pixels': specs.BoundedArray(self._shape, np.uint8, 0, 255, name='pixels')})
    self._screens = [np.zeros(self._emulator.getScreenDims(), np.uint8) for _ in range(settings.max_pooled_frames)]
    self._frames = [np.zeros(self._shape[:2], np.uint8) for _ in range(settings.frame_stack)]  # Oldest first.
    self._episode_frames = 0
    self._lives = 0

  def render(self) -> np.ndarray:
    """The console's screen in colour: uint8 [210, 160, 3]."""
    return self._emulator.getScreenRGB()

  def _start_episode(self):
    self._reset_emulator()
    if self._settings.noop_max:
      for _ in range(self._random.randint(1, self._settings.noop_max + 1)):
        self._emulator.act(self._noop)  # Rewards of no-ops belong to no agent step and are not counted.
        self._episode_frames += 1
        if self._emulator.game_over(with_truncation=False):
          self._reset_emulator()
    self._lives = self._emulator.lives()
    for frame in self._frames:
      frame.fill(0)
    self._emulator.getScreenGrayscale(self._screens[0])
    return self._observe(self._screens[:1])

  def _advance(self, action):
    emulator = self._emulator
    emulator_action = self._actions[action]
    frames = min(self._settings.action_repeats, self._settings.max_episode_frames - self._episode_frames)
    pooled = self._screens[:frames]  # Fewer than usual only where the cap cuts the last step short.
    first_pooled = frames - len(pooled)
    reward = 0
    for i in range(frames):
      reward += emulator.act(emulator_action)
      if emulator.game_over(with_truncation=False):
        emulator.getScreenGrayscale(self._screens[0])
        return dm_env.termination(float(reward), self._observe(self._screens[:1]))
      if i >= first_pooled:
        emulator.getScreenGrayscale(pooled[i - first_pooled])
    self._episode_frames += frames
    observation = self._observe(pooled)
    if self._episode_frames >= self._settings.max_episode_frames:
      return dm_env.termination(float(reward), observation)
    lives, self._lives = self._lives, emulator.lives()
    life_lost = self._settings.episode_end_on_life_loss and self._lives < lives
    return dm_env.transition(float(reward), observation, discount=0.0 if life_lost else 1.0)

  def _reset_emulator(self):
    self._emulator.reset_game()
    self._episode_frames = 0

  def _observe(self, screens):
    """Pools gray screens, pushes the reduced result onto the stack and returns the stack as an observation."""
    pooled = screens[0]
    for screen in screens[1:]:
      np.maximum(pooled, screen, out=pooled)
    newest = self._frames.pop(0)
    self._cv2.resize(pooled, self._size, dst=newest, interpolation=self._cv2.INTER_AREA)
    self._frames.append(newest)
    return {'pixels': self._cv2.merge(self._frames).reshape(self._shape)}


def _load_emulator(game, seed, sticky_actions):
  """OpenCV, an emulator with the game's ROM, and the console's 18 actions.

  Imported only now: a worker for other levels starts faster.
  """
  try:
    import ale_py
    import ale_py.roms
    import cv2
  except ImportError as error:
    raise ImportError(f'{game}: Atari games need ale-py and OpenCV ({error}): '
                      'pip install ale-py opencv-python-headless') from error
  if game not in ale_py.roms.get_all_rom_ids():
    raise ValueError(f'{game}: ale-py {ale_py.__version__} has no such game')
  cv2.setNumThreads(0)  # Workers fill the cores; threads inside one of them would only get in the way.
  # Lets OpenCV take Intel's area resize, four times as fast. It rounds ties otherwise: 0.1 % of pixels differ, by 1.
  cv2.ipp.setUseIPP_NotExact(True)
  ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
  emulator = ale_py.ALEInterface()
  emulator.setInt('random_seed', seed % 2**31)
  emulator.setFloat('repeat_action_probability', sticky_actions)
  emulator.loadROM(ale_py.roms.get_rom_path(game))
  return cv2, emulator, list(ale_py.Action)
