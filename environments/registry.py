"""Makes environments from the names of levels. No other module parses these names.

A level has one of these names:

- a game of Atari-57 in snake_case: `space_invaders`;
- a level of DMLab-30, or DeepMind Lab's `seekavoid_arena_01`: `rooms_watermaze`;
- a built-in task (`_TASKS`): `catch`;
- a built-in task, `_x` and a number: `catch_x100` or `catch_x0.1`. The rewards are multiplied by this number;
- `gymnasium:` and an id of gymnasium: `gymnasium:CartPole-v1`. `gymnasium:my_package:MyTask-v0` first imports
  `my_package`, which registers the id;
- `dm_env:MODULE:FUNCTION`: the function makes a dm_env environment, see dm_env_adapter.py.

The last two may have arguments: `gymnasium:CartPole-v1?max_episode_steps=9` or `dm_env:my_tasks:maze?size=9&loops=2`.
A value is a Python or JSON literal, or else a string. In it, %26 stands for & and %25 for %.

To add a built-in task, write a subclass of `base.Environment` whose only argument is `seed`, and add it to `_TASKS`.

Importing this module imports no emulator, no gymnasium and no DeepMind Lab. So environment workers start fast, and
import only the packages that their levels need.
"""

import ast
import contextlib
import difflib
import json
import re
import sys
import threading
import urllib.parse

from scalable_agents.environments import atari as atari_lib
from scalable_agents.environments import atari57
from scalable_agents.environments import base
from scalable_agents.environments import catch
from scalable_agents.environments import catch_variants
from scalable_agents.environments import chain
from scalable_agents.environments import dm_env_adapter
from scalable_agents.environments import dmlab as dmlab_lib
from scalable_agents.environments import filmed
from scalable_agents.environments import gymnasium_adapter
from scalable_agents.environments import harvest
from scalable_agents.environments import obey
from scalable_agents.environments import quiz
from scalable_agents.environments import recall
from scalable_agents.environments import scaled
from scalable_agents.environments import scores

_TASKS = {
    'catch': catch.Catch,
    'recall': recall.Recall,
    'recall_late': recall.RecallLate,
    'chain': chain.Chain,
    'obey_ball': obey.ObeyBall,
    'obey_side': obey.ObeySide,
    'obey_nothing': obey.ObeyNothing,
    'catch_mirror': catch_variants.Mirror,
    'catch_shift': catch_variants.Shift,
    'harvest': harvest.Harvest,
    'quiz': quiz.Quiz,
}
# The factor must not be 0: there would be nothing to learn.
_SCALED = re.compile(f'({"|".join(_TASKS)})_x(?=.*[1-9])([0-9]{{1,9}}(?:\\.[0-9]{{1,9}})?)')
_PATIENCE_SECONDS = 10.  # Then `check` says that it waits for a user's own environment.
_USERS_OWN = {'gymnasium:': gymnasium_adapter.Gymnasium, 'dm_env:': dm_env_adapter.DmEnv}


def levels() -> tuple[str, ...]:
  """Returns all level names, except those of users' own environments and of tasks with multiplied rewards.

  They are the 57 Atari games, all DeepMind Lab levels and the built-in tasks.
  """
  return atari57.LEVELS + dmlab_lib.LEVELS + tuple(_TASKS)


def expand(level_names: str) -> tuple[str, ...]:
  """Expands the value of `--level_name` to a tuple of levels.

  Args:
    level_names: a suite (`atari57`), a level, or several levels with commas between them. Commas inside brackets or
      quotes belong to a level's arguments.

  Raises:
    ValueError: the list contains a level twice, a suite, an empty name, or a line break.
  """
  if not level_names.isprintable():
    raise ValueError(f'{level_names!r}: want one line of text')
  if level_names in scores.SUITES:
    return scores.SUITES[level_names].levels
  names = tuple(name.strip() for name in _split(level_names))
  if len(set(names)) < len(names) or '' in names:
    raise ValueError(f'{level_names!r}: want different levels with commas between them, got a repeated or empty name')
  for name in names:
    if name in scores.SUITES:
      raise ValueError(f'{level_names!r}: {name} is a suite; want either one suite or a list of levels')
  return names


def _split(level_names):
  """Splits at the commas that are not inside brackets or quotes."""
  names, depth = [''], 0
  for token in re.findall(r'"[^"]*"|\'[^\']*\'|.', level_names, re.DOTALL):
    depth = max(0, depth + (token in ('[', '(', '{')) - (token in (']', ')', '}')))
    if token == ',' and not depth:
      names.append('')
    else:
      names[-1] += token
  return names


def test_level(level_name: str) -> str:
  """Returns the level that evaluates an agent trained on `level_name`. Two levels of DMLab-30 have a test version."""
  for suite in scores.SUITES.values():
    if level_name in suite.levels:
      return suite.test_levels[suite.levels.index(level_name)]
  return level_name


def check(level_name: str) -> None:
  """Checks that `make` supports a level, without starting an emulator.

  It makes a user's own environment. If that takes long, a line on the standard error says so.

  Raises:
    ImportError: a user's own environment needs a module that is not there, or ale-py or DeepMind Lab is not installed.
    ValueError: the level is unknown (the message has the closest names), or a user's own environment cannot be made or
      has spaces that are not supported.
  """
  if level_name.startswith(tuple(_USERS_OWN)):
    notice = threading.Timer(
        _PATIENCE_SECONDS, print,
        [f'{level_name} is not made, and closed again, after {_PATIENCE_SECONDS:g} s: waiting for it'],
        {'file': sys.stderr, 'flush': True})
    notice.daemon = True
    notice.start()
    try:
      environment = _make_users_own(level_name, 0)
      with contextlib.suppress(Exception):  # It may need a reset first. Workers do not mind, either.
        environment.close()
    except (ImportError, ValueError):
      raise
    except (Exception, SystemExit) as error:  # The user's own code can raise anything.
      raise ValueError(f'{level_name} cannot be made: {type(error).__name__}: {base.one_line(error)}') from error
    finally:
      notice.cancel()
  elif level_name in atari57.LEVELS:
    atari_lib.check_installed(level_name)
  elif level_name in dmlab_lib.LEVELS:
    dmlab_lib.check_installed(level_name)
  elif level_name not in levels() and not _SCALED.fullmatch(level_name):
    raise _unknown(level_name)


def check_settings(level_name: str, protocol: dict[str, dict]) -> None:
  """Checks that a level can be made with these settings, without making it.

  Args:
    level_name: as for `make`.
    protocol: as for `make_from_json`.

  Raises:
    ValueError: it cannot, for example because it needs a data set that is not there.
  """
  if level_name in dmlab_lib.LEVELS:
    dmlab_lib.check_level(level_name, dmlab_lib.DmlabSettings(**protocol.get('dmlab', {})))


def make(level_name: str, *, seed: int, atari: atari_lib.AtariSettings = atari_lib.AtariSettings(),
         dmlab: dmlab_lib.DmlabSettings = dmlab_lib.DmlabSettings()) -> base.Environment:
  """Makes an environment.

  Args:
    level_name: the name of one level, see the module's docstring.
    seed: random seed of the environment, >= 0.
    atari: the protocol of Atari games. Other levels ignore it.
    dmlab: the protocol of DeepMind Lab. Other levels ignore it.

  Returns:
    An environment with observations and actions as `base.Environment` describes them.

  Raises:
    ImportError: a package that the level needs is not installed.
    ValueError: as for `check`, or the settings are invalid for the level.
  """
  if level_name in atari57.LEVELS:
    return atari_lib.Atari(level_name, seed=seed, settings=atari)
  if level_name in dmlab_lib.LEVELS:
    return dmlab_lib.Dmlab(level_name, seed=seed, settings=dmlab)
  if level_name in _TASKS:
    return _TASKS[level_name](seed=seed)
  if scaled_name := _SCALED.fullmatch(level_name):
    task, factor = scaled_name.groups()
    return scaled.Scaled(_TASKS[task](seed=seed), float(factor))
  if level_name.startswith(tuple(_USERS_OWN)):
    return _make_users_own(level_name, seed)
  raise _unknown(level_name)


def make_from_json(level_name: str, seed: int, protocol: dict[str, dict]) -> base.Environment:
  """Like `make`, but with settings as plain values. Worker processes call this function.

  Args:
    level_name: as for `make`.
    seed: as for `make`.
    protocol: fields of AtariSettings and DmlabSettings that differ from their defaults, under the keys 'atari' and
      'dmlab'.
  """
  return make(level_name, seed=seed, atari=atari_lib.AtariSettings(**protocol.get('atari', {})),
              dmlab=dmlab_lib.DmlabSettings(**protocol.get('dmlab', {})))


def make_filmed(level_name: str, seed: int, protocol: dict[str, dict], has_pictures: bool) -> filmed.Filmed:
  """Like `make_from_json`, for one episode; with pictures in the observations if `has_pictures`."""
  return filmed.Filmed(make_from_json(level_name, seed, protocol), has_pictures)


def _make_users_own(level_name, seed):
  kind, _, name = level_name.partition(':')
  name, has_query, query = name.partition('?')
  try:
    # The standard library would make a space of +, as forms in browsers need.
    pairs = urllib.parse.parse_qsl(query.replace('+', '%2B'), keep_blank_values=True, strict_parsing=bool(has_query))
  except ValueError:
    raise ValueError(f'{level_name}: want arguments as ?name=value&name=value') from None
  arguments = {argument: _literal(text) for argument, text in pairs}
  if len(arguments) < len(pairs):
    raise ValueError(f'{level_name}: want each argument once')
  if 'seed' in arguments:
    raise ValueError(f'{level_name}: leave out seed: the program sets it, to another number for each environment')
  return _USERS_OWN[f'{kind}:'](name, seed=seed, **arguments)


def _literal(text):
  for parse in (json.loads, ast.literal_eval):
    with contextlib.suppress(ValueError, SyntaxError):
      return parse(text)
  return text


def _unknown(level_name):
  if level_name in scores.SUITES:
    return ValueError(f'{level_name} is a suite: want one of its levels')
  containing = [name for name in levels() if level_name.lower() in name] if len(level_name) > 3 else []
  closest = containing[:3] or difflib.get_close_matches(
      level_name.lower(), (*levels(), *scores.SUITES), n=3, cutoff=0.5)
  if closest:  # Only levels of the same suite: a similar name in another suite is a coincidence.
    suites = (dmlab_lib.LEVELS, atari57.LEVELS)
    home = [closest[0] in suite for suite in suites]
    closest = [name for name in closest if [name in suite for suite in suites] == home]
  hint = f'did you mean {" or ".join(closest)}?' if closest else (
      f'want an Atari game in snake_case, a level of DMLab-30, one of {", ".join(_TASKS)}, gymnasium:ID, '
      f'dm_env:MODULE:FUNCTION, a suite '
      f'({", ".join(scores.SUITES)}) or several levels with commas between them')
  return ValueError(f'unknown level {level_name!r}: {hint}')
