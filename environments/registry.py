"""Levels by name. Names are parsed here and nowhere else.

A name is a game of Atari-57 in snake_case (`space_invaders`), a level of DMLab-30 (`rooms_watermaze`) or DeepMind Lab's
`seekavoid_arena_01`, a built-in task (`_TASKS`: `catch` and others) or `gymnasium:` with any id that gymnasium knows
(`gymnasium:CartPole-v1`; `gymnasium:my_package:MyTask-v0` imports `my_package` first, which registers the id).
Importing this module loads no emulator, no gymnasium and no DeepMind Lab: environment workers start fast, and load only
what their level needs.
"""

import difflib

from scalable_agents.environments.atari import Atari, AtariSettings
from scalable_agents.environments import atari57
from scalable_agents.environments import base
from scalable_agents.environments import catch
from scalable_agents.environments import chain
from scalable_agents.environments import dmlab as dmlab_lib
from scalable_agents.environments import filmed
from scalable_agents.environments import gymnasium_adapter
from scalable_agents.environments import obey
from scalable_agents.environments import recall
from scalable_agents.environments import scores

_TASKS = {
    'catch': catch.Catch,
    'recall': recall.Recall,
    'chain': chain.Chain,
    'obey_ball': obey.ObeyBall,
    'obey_side': obey.ObeySide,
    'obey_nothing': obey.ObeyNothing,
}
_GYMNASIUM = 'gymnasium:'


def levels() -> tuple[str, ...]:
  """All level names but the ids of gymnasium: 57 Atari games, DeepMind Lab's for training and tests, built-in tasks."""
  return atari57.LEVELS + dmlab_lib.LEVELS + tuple(_TASKS)


def expand(level_names: str) -> tuple[str, ...]:
  """The levels that one name stands for: those of a suite (`atari57`), of a list with commas, or a level itself.

  Raises:
    ValueError: the list names a level twice, a suite, or none at one of its places.
  """
  if level_names in scores.SUITES:
    return scores.SUITES[level_names].levels
  names = tuple(name.strip() for name in level_names.split(','))
  if len(set(names)) < len(names) or '' in names:
    raise ValueError(f'{level_names!r}: want every level of a list named, and once')
  for name in names:
    if name in scores.SUITES:
      raise ValueError(f'{level_names!r}: {name} is a suite, which stands alone; a list has levels')
  return names


def test_level(level_name: str) -> str:
  """What is played to test an agent that was trained on a level: two of DMLab-30 have a version of their own."""
  for suite in scores.SUITES.values():
    if level_name in suite.levels:
      return suite.test_levels[suite.levels.index(level_name)]
  return level_name


def check(level_name: str) -> None:
  """Checks, without starting an emulator, that `make` would know the level.

  Raises:
    ImportError: a gymnasium id needs a package that is not installed, or DeepMind Lab is not.
    ValueError: unknown level, with the closest names; or a gymnasium environment whose spaces are not supported.
  """
  if level_name.startswith(_GYMNASIUM):
    try:
      gymnasium_adapter.Gymnasium(level_name.removeprefix(_GYMNASIUM), seed=0).close()
    except (ImportError, ValueError):
      raise
    except Exception as error:  # Of the user's own code.
      raise ValueError(f'{level_name} cannot be made: {type(error).__name__}: {" ".join(str(error).split())}') from error
  elif level_name in dmlab_lib.LEVELS:
    dmlab_lib.check_installed(level_name)
  elif level_name not in levels():
    raise _unknown(level_name)


def make(level_name: str, *, seed: int, atari: AtariSettings = AtariSettings(),
         dmlab: dmlab_lib.DmlabSettings = dmlab_lib.DmlabSettings()) -> base.Environment:
  """Makes an environment.

  Args:
    level_name: see above.
    seed: of everything random in the environment, >= 0.
    atari: the protocol of Atari games; other levels ignore it.
    dmlab: the protocol of DeepMind Lab; other levels ignore it.

  Raises:
    ImportError: a package that the level needs is not installed.
    ValueError: as `check`; or the settings do not fit the level.
  """
  if level_name in atari57.LEVELS:
    return Atari(level_name, seed=seed, settings=atari)
  if level_name in dmlab_lib.LEVELS:
    return dmlab_lib.Dmlab(level_name, seed=seed, settings=dmlab)
  if level_name in _TASKS:
    return _TASKS[level_name](seed=seed)
  if level_name.startswith(_GYMNASIUM):
    return gymnasium_adapter.Gymnasium(level_name.removeprefix(_GYMNASIUM), seed=seed)
  raise _unknown(level_name)


def make_from_json(level_name: str, seed: int, protocol: dict[str, dict]) -> base.Environment:
  """`make` with the settings as plain values, which is how a worker process is asked.

  Args:
    level_name, seed: as for `make`.
    protocol: what differs from the defaults: 'atari' and 'dmlab' to fields of AtariSettings and DmlabSettings.
  """
  return make(level_name, seed=seed, atari=AtariSettings(**protocol.get('atari', {})),
              dmlab=dmlab_lib.DmlabSettings(**protocol.get('dmlab', {})))


def make_filmed(level_name: str, seed: int, protocol: dict[str, dict]) -> filmed.Filmed:
  """As `make_from_json`, with pictures in the observations."""
  return filmed.Filmed(make_from_json(level_name, seed, protocol))


def _unknown(level_name):
  closest = difflib.get_close_matches(level_name.lower(), (*levels(), *scores.SUITES), n=3, cutoff=0.5)
  hint = f'did you mean {" or ".join(closest)}?' if closest else (
      f'want an Atari game in snake_case, a level of DMLab-30, one of {", ".join(_TASKS)}, {_GYMNASIUM}ID, a suite '
      f'({", ".join(scores.SUITES)}) or several levels with commas between them')
  return ValueError(f'unknown level {level_name!r}: {hint}')
