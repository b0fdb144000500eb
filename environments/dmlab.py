"""DeepMind Lab as a dm_env environment, under the papers' protocol.

Espeholt et al. 2018 (IMPALA), section 5.3.1 and appendix D: images of 72x96, four frames per agent step, no stack of
images, nine actions. Hessel et al. 2019 (PopArt): fifteen actions.

`deepmind_lab` is C code with a game engine. Some errors end its process instead of raising an exception: a map that it
cannot read, an error in a level's script, a call after `close`. This module prevents some of these errors. Because of
the others, each Lab runs in a worker process that can be replaced (actor/environment_worker.py).
"""

import dataclasses
import functools
import importlib.util
import os
import re
import sys
import tempfile

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base
from scalable_agents.environments import dmlab30
from scalable_agents.environments import instruction
from scalable_agents.environments import level_cache
from scalable_agents.environments import scratch_folder
from scalable_agents.environments import suite

# The level of Lab's first examples. It is not part of the suite, and is the only level outside the suite's folder.
_FIRST_LEVEL = 'seekavoid_arena_01'
LEVELS: tuple[str, ...] = tuple(dict.fromkeys(dmlab30.LEVELS + dmlab30.TEST_LEVELS)) + (_FIRST_LEVEL,)
DUMMY_DATASET = 'dummy'  # Lab's name for plain colours in place of a data set.

_TEST_ONLY = frozenset(dmlab30.TEST_LEVELS) - frozenset(dmlab30.LEVELS)
_NEED_DATASET = frozenset({'psychlab_arbitrary_visuomotor_mapping', 'psychlab_continuous_recognition'})
_IMAGES = tuple(f'{number:04}.png' for number in range(1, 2401))  # The files of the data set.
ACTION_SETS = {'impala': 'impala_9', 'popart': 'popart_15'}  # Their names in data/dmlab_action_sets.csv.
_ACTION_FIELDS = ('look_left_right', 'look_down_up', 'strafe_left_right', 'move_back_forward', 'fire', 'jump', 'crouch')
RENDERERS = ('software', 'hardware')
_NO_RENDERER = 'Failed to connect RL API'  # Lab's message if any shared library is missing.
_MISSING_LIBRARY = re.compile(r'([^\s"/]+\.so[.\d]*)"?(?:: cannot open shared object file|\n2 - No such file)')
_PACKAGES = {'libOSMesa.so.8': 'libosmesa6', 'libEGL.so.1': 'libegl1', 'libGL.so.1': 'libgl1',
             'libSDL2-2.0.so.0': 'libsdl2-2.0-0'}  # Debian packages.
_STDERR = 2  # The file descriptor of stderr.
_HOLD_OUT_SEED = 0x600D5EED  # The upper 32 bits of the engine's seeds, so that no seed of a test occurs in training.


@dataclasses.dataclass(frozen=True)
class DmlabSettings:
  """The protocol of DeepMind Lab. All values are plain, so that settings can be sent to workers as JSON.

  Raises:
    ValueError: a value is out of its range.
  """
  width: int = 96             # pixels, a multiple of 4.
  height: int = 72            # pixels, a multiple of 4.
  action_repeats: int = 4     # environment frames per agent step.
  action_set: str = 'impala'  # 'impala': 9 actions (table D.2); 'popart': the 15 actions of the PopArt paper.
  renderer: str = 'software'  # 'software' or 'hardware', which needs EGL.
  level_cache: str = ''       # folder for compiled maps, which processes can share; '': none.
  dataset_path: str = ''      # folder with the images of Brady, Konkle et al. 2008, or DUMMY_DATASET; '': none.
  hold_out: bool = False      # for evaluations: allows held-out levels, and plays seeds that do not occur in training.

  def __post_init__(self):
    for name in ('width', 'height'):
      if getattr(self, name) < 4 or getattr(self, name) % 4:
        raise ValueError(f'{name}: want a positive multiple of 4, got {getattr(self, name)}')
    if self.action_repeats < 1:
      raise ValueError(f'action_repeats: want at least 1, got {self.action_repeats}')
    for name, choices in (('action_set', tuple(ACTION_SETS)), ('renderer', RENDERERS)):
      if getattr(self, name) not in choices:
        raise ValueError(f'{name}: want one of {", ".join(choices)}, got {getattr(self, name)!r}')


class Dmlab(base.Environment):
  """One level of DeepMind Lab. The reward is the raw sum over the frames of a step.

  Observations:
    pixels: uint8 [height, width, 3].
    instruction: uint8 [instruction.BYTES], the level's text for the agent in UTF-8, padded with zeros. It is all zeros
      if the level gives no instruction. Longer text is cut between characters. It can change within an episode.

  Lab has no observation after the end of an episode, so the LAST step repeats the observation before it. The first
  episode of a Lab differs from a later one with the same seed. In another process the same seeds give the same
  episodes, except on the four LaserTag levels: these have computer-controlled opponents, and episodes with one seed
  often differ after a few steps.
  """

  def __init__(self, level: str, *, seed: int, settings: DmlabSettings = DmlabSettings()):
    """Loads the level's script. The engine starts with the first episode, which takes seconds.

    Args:
      level: one of LEVELS.
      seed: random seed from which the episodes' seeds are drawn, >= 0.
      settings: the protocol.

    Raises:
      ImportError: `deepmind_lab` or a library that it needs is missing, or this process has imported TensorFlow, with
        which Lab cannot run.
      ValueError: no such level, a test level without `hold_out`, or a data set that is needed but missing.
      OSError: the temporary folder or the level cache cannot be made.
      RuntimeError: Lab raised an error.
    """
    check_level(level, settings)
    lab = _load_lab(level)
    self._settings = settings
    self.frames_per_step = settings.action_repeats
    self._random = np.random.RandomState(seed % 2**32)
    self._actions = _actions(settings.action_set)
    super().__init__(len(self._actions), {
        'pixels': specs.BoundedArray((settings.height, settings.width, 3), np.uint8, 0, 255, name='pixels'),
        'instruction': instruction.spec()})
    self._observation = {}
    cache = level_cache.LevelCache(os.path.abspath(settings.level_cache)) if settings.level_cache else None
    self._folder = scratch_folder.ScratchFolder('dmlab_')
    connect = functools.partial(
        lab.Lab, level if level == _FIRST_LEVEL else f'contributed/dmlab30/{level}', ['RGB_INTERLEAVED', 'INSTR'],
        config=_config(settings), renderer=settings.renderer, level_cache=level_cache.Announcing(cache),
        temp_folder=self._folder.path)
    try:
      self._lab = _connect(connect, level, settings.renderer)
    except BaseException:
      self._folder.remove()
      raise

  def render(self) -> np.ndarray:
    """Returns the pixels that the agent sees, uint8 [height, width, 3]."""
    return self._observation['pixels'].copy()

  def close(self):
    """Ends Lab and removes its files. No further episode can be played. Idempotent."""
    lab, self._lab = self._lab, None
    if lab:
      lab.close()
      self._folder.remove()

  def _start_episode(self):
    # Lab rejects NumPy integers. Without a seed it would use the time of its import, which is equal in many workers.
    self._open_lab().reset(seed=int(self._random.randint(2**31)))
    return self._observe()

  def _advance(self, action):
    lab = self._open_lab()
    reward = lab.step(self._actions[action], num_steps=self._settings.action_repeats)
    if lab.is_running():
      return dm_env.transition(reward, self._observe())
    return dm_env.termination(reward, self._observation)

  def _open_lab(self):
    """Returns the Lab. Raises RuntimeError after `close`, because a call of a closed Lab would end the process."""
    if not self._lab:
      raise RuntimeError('this DeepMind Lab is closed')
    return self._lab

  def _observe(self):
    seen = self._open_lab().observations()  # Lab does not modify these arrays later.
    self._observation = {'pixels': seen['RGB_INTERLEAVED'], 'instruction': instruction.encode(seen['INSTR'])}
    return self._observation


def check_installed(level: str) -> None:
  """Checks that `deepmind_lab` is installed, without importing it.

  Args:
    level: named in the error.

  Raises:
    ImportError: it is not installed.
  """
  if importlib.util.find_spec('deepmind_lab') is None:
    raise _missing(level, "No module named 'deepmind_lab'")


def check_level(level: str, settings: DmlabSettings) -> None:
  """Checks a level and its settings before Lab does, which would report some errors late or in many lines.

  Raises:
    ValueError: no such level, a test level without `hold_out`, or a data set that is needed but missing or incomplete.
  """
  if level not in LEVELS:
    raise ValueError(f'{level}: DMLab-30 has no such level')
  if level in _TEST_ONLY and not settings.hold_out:
    raise ValueError(f'{level}: this level is for testing only (hold_out); train on '
                     f'{level.removesuffix("_test")}_train')
  if level in _NEED_DATASET:
    _check_dataset(level, settings.dataset_path)


def _check_dataset(level, path):
  """Raises ValueError if images are missing. Lab would end its process when it needs the first missing image."""
  if path == DUMMY_DATASET:
    return
  missing = next((name for name in _IMAGES if not (path and os.path.isfile(os.path.join(path, name)))), None)
  if missing:
    wrong = f'has no {missing}' if os.path.isdir(path) else 'is not a folder'
    found = f'{path} {wrong}: ' if path else ''
    raise ValueError(f'{level}: dataset_path: {found}this level needs the images of Brady, Konkle et al. 2008, '
                     f"{_IMAGES[0]} to {_IMAGES[-1]}; DeepMind Lab's documentation says how to get them "
                     f'(data/brady_konkle_oliva2008); {DUMMY_DATASET!r} selects plain colours instead')


def _load_lab(level):
  """Imports and returns the module `deepmind_lab`. Importing it here lets workers for other levels start faster."""
  if 'tensorflow' in sys.modules:
    raise ImportError(f'{level}: DeepMind Lab crashes in a process that has imported TensorFlow; it runs in '
                      'environment workers only')
  os.environ['LP_NUM_THREADS'] = '0'  # No threads in the software renderer, because there is a worker for each core.
  try:
    import deepmind_lab  # pyright: ignore[reportMissingImports]  # It is not on PyPI.
  except ImportError as error:
    if importlib.util.find_spec('deepmind_lab') is None:
      raise _missing(level, error) from error
    raise ImportError(f'{level}: DeepMind Lab is installed but cannot be imported ({error}). Its wheel needs Python '
                      '3.11 or older, and the packages numpy, six, dm_env and a setuptools that still has '
                      'pkg_resources') from error
  return deepmind_lab


def _missing(level, reason):
  return ImportError(
      f'{level}: DeepMind Lab, the 3D game of DMLab-30, is not installed ({reason}). No package index has it: build '
      'its wheel from source as its own documentation says (https://github.com/google-deepmind/lab, target '
      '//python/pip_package:build_pip_package) and install the wheel with pip. That wheel needs Python 3.11 or '
      'older; `scalable-agents doctor` names a way with 3.13. To train without DeepMind Lab: --level_name=catch')


def _connect(connect, level, renderer):
  """Calls `connect`, which makes a Lab, and returns the Lab.

  If a library is missing, Lab names it only on stderr. So `connect` is called again with stderr redirected to a file.
  """
  try:
    return connect()
  except RuntimeError as error:
    if str(error) != _NO_RENDERER:
      raise
    said = _stderr_of(connect)
    library = _MISSING_LIBRARY.search(said)
    # The library's name says enough. The rest of the output may have warnings, and the loader's message several times.
    details = '' if library else f': {" ".join(dict.fromkeys(map(str.strip, said.splitlines())))}'
    package = library and _PACKAGES.get(library[1])
    raise ImportError(
        f'{level}: DeepMind Lab cannot load a library that --renderer={renderer} needs' +
        (f', {library[1]}' if library else '') +
        (f'; on Debian: apt-get install {package}' if package else '') +
        f' ({error}{details})') from error


def _stderr_of(function):
  """Calls `function`, which fails, and returns what C code writes to stderr during the call."""
  with tempfile.TemporaryFile() as file:
    stderr = os.dup(_STDERR)
    os.dup2(file.fileno(), _STDERR)
    try:
      function()
    except RuntimeError:
      pass  # The same error as before.
    finally:
      os.dup2(stderr, _STDERR)
      os.close(stderr)
    file.seek(0)
    return file.read().decode('utf-8', 'replace')


def _config(settings):
  """Returns Lab's configuration, a dict of strings."""
  config = {
      'width': str(settings.width),
      'height': str(settings.height),
      'logLevel': 'WARN',
      'appendCommand': '+set net_enabled 0',  # The engine is also a game server, and would listen on all interfaces.
  }
  if settings.dataset_path:
    config['datasetPath'] = (DUMMY_DATASET if settings.dataset_path == DUMMY_DATASET
                             else os.path.abspath(settings.dataset_path))
  if settings.hold_out:
    config.update(allowHoldOutLevels='true', mixerSeed=str(_HOLD_OUT_SEED))
  return config


def _actions(action_set):
  """Returns the actions, int32 [A, 7]. The array is contiguous because Lab reads the bytes of a row in memory."""
  return np.array([[int(row[field]) for field in _ACTION_FIELDS] for row in suite.rows('dmlab_action_sets.csv')
                   if row['set'] == ACTION_SETS[action_set]], np.intc)
