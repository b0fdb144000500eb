"""A fake of DeepMind Lab's module `deepmind_lab`. It is as strict as Lab, has its messages, and is easy to learn.

The agent stands in a corridor between two columns of different colours. Turning or stepping sideways brings it nearer
to one of them. It takes the column that it reaches: +1 if it is the correct one, else -1. Then two other columns
appear. The red column is correct. On levels with instructions (`language_...`), the instruction names the correct
colour. A random policy earns 0 on average. An episode has 120 frames.

If the environment variable FAKE_DEEPMIND_LAB names a folder, each Lab writes its arguments to `<pid>_<number>.json` in
this folder. A file in the folder that is named after a fault causes this fault once: the Lab that finds the file
removes it. The faults are:
  `raise`, `exit`, `abort` and `hang`, each with `_in_init`, `_in_reset` or `_in_step`;
  `compile_in_reset`: a map compiler that works for an hour;
  `no_zip_in_reset`: a map compiler that lacks a program;
  `bad_map_in_reset`: a map from the cache that is truncated.
The last three occur only on levels that compile maps. A file `missing_library` is not removed: no Lab can be made
without the library that it names.
"""

import ctypes
import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import zipfile

import numpy as np

from scalable_agents.environments import dmlab30
from scalable_agents.tests.environments import fake_lab_settings

EPISODE_FRAMES = 120
COLOURS = {'red': (255, 0, 0), 'green': (0, 255, 0), 'blue': (0, 0, 255), 'yellow': (255, 255, 0)}

_ACTIONS = (('LOOK_LEFT_RIGHT_PIXELS_PER_FRAME', -512, 512), ('LOOK_DOWN_UP_PIXELS_PER_FRAME', -512, 512),
            ('STRAFE_LEFT_RIGHT', -1, 1), ('MOVE_BACK_FORWARD', -1, 1), ('FIRE', 0, 1), ('JUMP', 0, 1),
            ('CROUCH', 0, 1))
_LEVELS = frozenset(f'contributed/dmlab30/{name}' for name in dmlab30.LEVELS + dmlab30.TEST_LEVELS) | {
    'seekavoid_arena_01'}
_TEST_ONLY = ('rooms_collect_good_objects_test', 'rooms_exploit_deferred_effects_test')
_NEED_DATASET = ('psychlab_arbitrary_visuomotor_mapping', 'psychlab_continuous_recognition')
_PREBUILT = ('rooms_', 'psychlab_', 'natlab_', 'seekavoid_')  # Levels whose maps are not compiled.
_SETTINGS = {'width', 'height', 'fps', 'mixerSeed', 'datasetPath', 'allowHoldOutLevels', 'appendCommand', 'logLevel',
             'logToStdErr'}
_FRAMES_TO_A_SIDE = 16
_BAD_TYPE = 'bad argument type for built-in operation'
_NUMBERS = itertools.count()
# The end of Lab's messages that come from a level's script.
_LUA_STACK = ("\nstack traceback:\n\t[C]: in function 'error'\n"
              '\t...aselab/game_scripts/decorators/timeout.lua:60: in function '
              '<...aselab/game_scripts/decorators/timeout.lua:56>')
_SETTINGS_STACK = ("\nstack traceback:\n\t[C]: in function 'error'\n"
                   '\t...aselab/game_scripts/decorators/setting_overrides.lua:140: in function '
                   '<...aselab/game_scripts/decorators/setting_overrides.lua:127>')
_WORLDS = 4  # Number of maps of a level that compiles them.


def version() -> str:
  return '1.0'


def _folder():
  return os.environ.get('FAKE_DEEPMIND_LAB', '')


def _fault(name, else_raise='the engine has crashed'):
  """Causes a fault if its file exists."""
  for what in ('raise', 'exit', 'abort', 'hang'):
    if _take(f'{what}_in_{name}'):
      if what == 'raise':
        raise RuntimeError(else_raise)
      if what == 'exit':
        _c_exit(1, 'ERROR: the engine ends')
      if what == 'abort':
        _abort(f'the engine has crashed{_LUA_STACK}')
      ctypes.PyDLL(None).sleep(3600)  # Like Lab, PyDLL keeps Python's lock.


def _take(fault):
  try:
    os.remove(os.path.join(_folder(), fault))
  except OSError:
    return False
  return bool(_folder())


def _c_exit(code, message):
  """Ends the process like C's exit, without `finally` blocks and atexit functions."""
  sys.stderr.write(message + '\n')
  sys.stderr.flush()
  os._exit(code)


def _abort(reason):
  """Ends the process like Lab after an error in a level's script, except in its init and start."""
  _c_says(f'Check failed: result.ok() {reason}')
  os.kill(os.getpid(), signal.SIGABRT)


def _c_says(text):
  os.write(2, f'{text}\n'.encode())


def _check_library(renderer):
  """Fails like Lab if a library is missing. Only the loader names the library."""
  try:
    with open(os.path.join(_folder(), 'missing_library'), encoding='utf-8') as file:
      library = file.read()
  except OSError:
    return
  if _folder():
    _c_says(f'Failed to open library! - /runfiles/libdmlab_headless_{renderer[0]}w.so\n'
            f'{library}: cannot open shared object file: No such file or directory')
    raise RuntimeError('Failed to connect RL API')


def _check_type(value, number, want):
  if not isinstance(value, want):
    got = 'None' if value is None else type(value).__name__
    raise TypeError(f'argument {number} must be {want.__name__}, not {got}')


class Lab:
  """See the module's docstring. The methods are those of DeepMind Lab's python_api document, without properties."""

  __slots__ = ('_name', '_names', '_config', '_cache', '_temp', '_shape', '_mixer_seed', '_closed', '_running',
               '_frames', '_requested', '_random', '_position', '_sides', '_wanted', '_instruction', '_seed',
               '_sky', '_socket')

  def __init_subclass__(cls):
    raise TypeError("type 'deepmind_lab.Lab' is not an acceptable base type")

  def __init__(self, level, observations, config={}, renderer='software', level_cache=None,  # noqa: B006
               temp_folder='', **unknown):
    for name in unknown:
      raise TypeError(f"'{name}' is an invalid keyword argument for this function")
    for number, (value, want) in enumerate(((level, str), (observations, list), (config, dict), (renderer, str)), 1):
      _check_type(value, number, want)
    _check_type(temp_folder, 6, str)
    if not all(isinstance(text, str) for text in (*observations, *config, *config.values())):
      raise TypeError(_BAD_TYPE)
    self._record(level, observations, config, renderer, level_cache, temp_folder)
    _fault('init', f'Failed to init environment - "the engine has crashed{_LUA_STACK}"')
    self._shape = (fake_lab_settings.size(config, 'height', '240'), fake_lab_settings.size(config, 'width', '320'), 3)
    self._mixer_seed = fake_lab_settings.mixer_seed(config)
    fake_lab_settings.check_fps(config)
    fake_lab_settings.check_log_level(config)
    if renderer not in ('software', 'hardware'):
      raise RuntimeError(f'Failed to set renderer must be "hardware" or "software" actual "{renderer}"!')
    _check_library(renderer)
    self._name = level.rsplit('/', 1)[-1]
    self._init_level(level, config)
    for name in observations:
      if name not in ('RGB_INTERLEAVED', 'INSTR'):
        raise ValueError(f"Unknown observation '{name}'.")
    self._names, self._config, self._cache = list(observations), dict(config), level_cache
    self._temp = temp_folder
    self._closed = self._running = False
    self._frames = self._requested = 0
    self._socket = None

  def __reduce_ex__(self, protocol):
    raise TypeError("cannot pickle 'deepmind_lab.Lab' object")

  def reset(self, episode=-1, seed=None):
    self._crash_if_closed()
    if not hasattr(type(episode), '__index__'):
      raise TypeError(f"'{type(episode).__name__}' object cannot be interpreted as an integer")
    if seed is not None and not isinstance(seed, int):
      raise ValueError(f"'seed' must be int or None, was '{_full_name(seed)}'.")
    if seed is not None and not -2**63 <= seed < 2**63:
      raise OverflowError('Python int too large to convert to C long')
    if 'tensorflow' in sys.modules:
      os.kill(os.getpid(), signal.SIGSEGV)
    self._running = False
    self._make_folder()
    _fault('reset', f'Failed to start environment - "the engine has crashed{_LUA_STACK}"')
    if self._name in _NEED_DATASET and 'datasetPath' not in self._config:
      raise RuntimeError('Failed to start environment - "...brady_konkle_oliva2008.lua:37: \n Follow instructions to '
                         f'download datasets here: ...{_LUA_STACK}"')
    if not self._socket and '+set net_enabled 0' not in self._config.get('appendCommand', ''):
      self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
      self._socket.bind(('127.0.0.1', 0))  # The real module listens on all interfaces.
    self._seed = abs(seed) % 2**31 if seed is not None else 0
    self._random = np.random.RandomState([self._seed, self._mixer_seed])
    self._frames = self._requested = 0
    self._load_map(self._seed % _WORLDS)
    self._sky = self._random.randint(80, 150, size=3)  # The sky differs between episodes.
    self._place()
    self._running = True
    return True

  def step(self, action, num_steps=1):
    if not isinstance(action, np.ndarray):
      raise TypeError(f'argument 1 must be numpy.ndarray, not {"None" if action is None else type(action).__name__}')
    if not hasattr(type(num_steps), '__index__'):
      raise TypeError(f"'{type(num_steps).__name__}' object cannot be interpreted as an integer")
    if num_steps.__index__() >= 2**31:
      raise OverflowError('signed integer is greater than maximum')
    if num_steps.__index__() < -2**31:
      raise OverflowError('signed integer is less than minimum')
    if action.shape != (len(_ACTIONS),):
      raise ValueError(f'action must have shape ({len(_ACTIONS)})')
    if action.dtype.newbyteorder('=') != np.intc:
      raise ValueError('action must have dtype np.intc')
    if not self._running:
      raise RuntimeError('Environment in wrong status to advance.')
    self._check_dataset()
    _fault('step')
    # Like Lab, reads the bytes in memory from the first element on, and ignores strides and byte order.
    native = np.frombuffer(ctypes.string_at(action.ctypes.data, 4 * len(_ACTIONS)), np.intc)
    self._requested += int(num_steps)
    reward = 0.
    for _ in range(num_steps):
      reward += self._frame(native)
      if not self._running:
        break
    return reward

  def observations(self):
    if not self._running:
      raise RuntimeError('Environment in wrong status for call to observations()')
    return {name: self._draw() if name == 'RGB_INTERLEAVED' else self._instruction for name in self._names}

  def events(self):
    if self._closed or not hasattr(self, '_random'):
      raise RuntimeError('Environment in wrong status for call to events()')
    return []

  def is_running(self):
    return self._running

  def num_steps(self):
    return self._requested

  def action_spec(self):
    self._crash_if_closed()
    return [{'name': name, 'min': low, 'max': high} for name, low, high in _ACTIONS]

  def observation_spec(self):
    self._crash_if_closed()
    return [{'name': 'RGB_INTERLEAVED', 'shape': self._shape, 'dtype': np.uint8},
            {'name': 'INSTR', 'shape': (), 'dtype': str}]

  def close(self):
    was_open, self._closed, self._running = not self._closed, True, False
    if self._socket:
      self._socket.close()
    return was_open

  def _init_level(self, level, config):
    """Raises the errors of a level's script."""
    if not level:
      raise RuntimeError('Failed to init environment - "Missing level script must set setting \'levelName\'!"')
    if level not in _LEVELS:
      raise RuntimeError(f'Failed to init environment - "Level not found: Failed to open file \'<runfiles>/baselab/'
                         f'game_scripts/levels/{level}.lua\'"')
    for key, value in config.items():
      if key not in _SETTINGS:
        raise RuntimeError('Failed to init environment - "...aselab/game_scripts/decorators/setting_overrides.lua:140: '
                           f'Invalid setting: "{key}" = "{value}"{_SETTINGS_STACK}"')
    if self._name in _TEST_ONLY and config.get('allowHoldOutLevels') != 'true':
      raise RuntimeError('Failed to init environment - "...aselab/game_scripts/decorators/test_only.lua:33: This level '
                         'must only be used during evaluation. For training, use the *_train.lua version of the level. '
                         'If you really want to use this level, add the setting "allowHoldOutLevels" = "true" '
                         f'explicitly{_LUA_STACK}"')

  def _check_dataset(self):
    path = self._config.get('datasetPath', 'dummy')
    if self._name in _NEED_DATASET and path != 'dummy':
      image = os.path.join(path, f'{self._random.randint(1, 2401):04}.png')
      if not os.path.isfile(image):
        _abort(f'[image.load] - "{image}" could not be read{_LUA_STACK}')

  def _frame(self, native):
    """Plays one frame. Returns its reward."""
    reward = 0.
    self._position += (np.clip(native[0] / 20, -1, 1) + np.clip(native[2], -1, 1)) / _FRAMES_TO_A_SIDE
    if abs(self._position) >= 1 - 1e-9:
      reward = 1. if self._sides[int(self._position > 0)] == self._wanted else -1.
      self._place()
    self._frames += 1
    if self._frames == EPISODE_FRAMES // 2 and self._name == 'language_select_located_object':
      self._load_map((self._seed + 1) % _WORLDS)
    self._running = self._frames < EPISODE_FRAMES
    return reward

  def _place(self):
    """Places the agent in the middle, and two columns at the sides."""
    self._position = 0.
    speaks = self._name.startswith('language_')
    colours = list(COLOURS) if speaks else ['red', 'green']
    self._sides = [colours[i] for i in self._random.permutation(len(colours))[:2]]
    self._wanted = self._sides[self._random.randint(2)] if speaks else 'red'
    self._instruction = f'Pick the {self._wanted} object' if speaks else ''

  def _draw(self):
    height, width, _ = self._shape
    picture = np.empty(self._shape, np.uint8)
    picture[:height // 2] = self._sky
    picture[height // 2:] = (60, 50, 40)
    for side, colour in zip((-1, 1), self._sides):
      middle = int(width * (0.5 + 0.25 * side - 0.2 * self._position))
      near = 0.15 * (1 + max(0., side * self._position))  # Near columns look large.
      half = max(1, int(width * near / 2))
      rows = slice(int(height * (0.5 - near)), int(height * (0.5 + near)))
      picture[rows, max(0, middle - half):middle + half] = COLOURS[colour]
    return picture

  def _make_folder(self):
    if self._temp:
      try:
        os.makedirs(os.path.join(self._temp, 'baselab'), exist_ok=True)
      except OSError:
        raise RuntimeError('Failed to start environment - "Failed to create output directory"') from None

  def _load_map(self, world):
    """Fetches a map from the cache or compiles it, then loads it."""
    if not self._temp or self._name.startswith(_PREBUILT):
      return
    text = f'{self._name} {world}'.encode()
    map_name = self._name.split('_')[0] + '_maze'
    path = os.path.join(self._temp, 'baselab', f'{map_name}.pk3')
    with open(os.path.join(self._temp, 'qkey'), 'ab'):
      pass
    key = f'{map_name}_noaas_{hashlib.md5(text).hexdigest()}'
    if self._cache is None or not self._cache.fetch(key, path):
      self._compile(path, map_name, text)
      if self._cache is not None:
        self._cache.write(key, path)
    if _take('bad_map_in_reset'):
      os.truncate(path, 100)
    try:
      with zipfile.ZipFile(path) as archive:
        found = archive.read(f'maps/{map_name}.bsp')
    except Exception:
      _c_exit(1, f"Didn't find map '{map_name}'\n: No such file or directory")
    if not found.startswith(b'IBSP'):
      _c_exit(3, 'ERROR: G_ParseSpawnVars: found garbage when expecting {')

  def _compile(self, path, map_name, text):
    if _take('compile_in_reset'):  # Like C's system(): with Python's lock held, and with inherited descriptors.
      script = '"$0" -c "import time; time.sleep(3600)" "$1"; exit'  # The shell waits.
      shell = subprocess.Popen(['sh', '-c', script, sys.executable, path.removesuffix('.pk3')], close_fds=False)
      with open(os.path.join(_folder(), 'compiler'), 'w', encoding='ascii') as file:
        file.write(str(shell.pid))
      ctypes.PyDLL(None).sleep(3600)
    if _take('no_zip_in_reset'):
      _c_says('sh: 1: zip: not found')
      raise RuntimeError(f'Failed to start environment - "Failed to compile map.{_LUA_STACK}"')
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
      archive.writestr(f'maps/{map_name}.bsp', b'IBSP' + text * 1000)

  def _crash_if_closed(self):
    if self._closed:
      os.kill(os.getpid(), signal.SIGSEGV)

  def _record(self, level, observations, config, renderer, level_cache, temp_folder):
    if not _folder():
      return
    record = {'level': level, 'observations': observations, 'config': config, 'renderer': renderer,
              'has_level_cache': level_cache is not None, 'temp_folder': temp_folder,
              'lp_num_threads': os.environ.get('LP_NUM_THREADS')}
    path = os.path.join(_folder(), f'{os.getpid()}_{next(_NUMBERS)}.json')
    with open(path + '.part', 'w', encoding='utf-8') as file:
      json.dump(record, file)
    os.rename(path + '.part', path)


def _full_name(value):
  module = type(value).__module__
  return type(value).__name__ if module == 'builtins' else f'{module}.{type(value).__name__}'
