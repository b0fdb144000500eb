"""The protocol of DeepMind Lab. Each of its settings is a flag.

Espeholt et al. 2018 (IMPALA), section 5.3.1 and appendix D. Built-in and gymnasium tasks ignore it. A protocol is a
frozen dataclass with `validate` and `environments`; launch/program.py calls both.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import level_cache
from scalable_agents.processes import run_flags
from scalable_agents.records import settings
from scalable_agents.records.settings import setting


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The settings of the protocol. The defaults are the paper's."""

  action_repeats: int = setting(
      4, 'Environment frames per agent step: each action is repeated this many times. IMPALA, section D.1.', at_least=1,
      at_most=settings.MAX_ACTION_REPEATS)
  action_set: str = setting('impala', 'impala: the 9 actions of table D.2. popart: the 15 actions of Hessel et al. '
                            '2019.', choices=tuple(dmlab.ACTION_SETS))
  renderer: str = setting('software', "DeepMind Lab's renderer: software, or hardware, which needs EGL.", free=True,
                          choices=dmlab.RENDERERS)
  level_cache: str = setting(
      '', 'Folder for compiled maps, which several programs can share. If it has the map of an episode, the episode '
      'begins within half a second, else after several seconds. Maps of the skymaze levels, and of language levels, '
      'occur again within a long run; those of other levels only in runs and evaluations with the same seed. '
      'Default: no folder.', free=True)
  dataset_path: str = setting(
      '', 'Folder with the images of Brady, Konkle et al. 2008, 0001.png to 2400.png, which two levels of psychlab '
      'need. dummy selects plain colours instead.', free=True,
      kind=lambda path: 'plain colours' if path == dmlab.DUMMY_DATASET else 'images or none')

  def validate(self, levels: Sequence[str]):
    """Checks the settings for a run on these levels.

    Args:
      levels: names of levels, see environments/registry.py.
    Raises:
      ValueError: a setting is out of its range, or a level has another protocol. The message is one line.
    """
    settings.check(self)
    for level in levels:
      if level in atari57.LEVELS:
        raise ValueError(f'--level_name: {level} is an Atari game, whose programs end in _atari57')
    try:
      dmlab_settings = dmlab.DmlabSettings(**self.environments(levels, training=True)['dmlab'])
      if dmlab_settings.level_cache:
        level_cache.check(dmlab_settings.level_cache)
    except ValueError as error:
      raise ValueError(f'--{error}') from error
    try:
      for level in levels:
        if level in dmlab.LEVELS:
          dmlab.check_level(level, dmlab_settings)
    except ValueError as error:
      raise ValueError(f'--level_name: {error}') from error

  def environments(self, unused_levels: Sequence[str], training: bool) -> dict[str, Any]:
    """Returns the `protocol` argument of `registry.make_from_json`.

    Args:
      unused_levels: names of the run's levels.
      training: True for training, False for evaluation, which plays held-out levels and episodes.
    Returns:
      {'dmlab': fields of dmlab.DmlabSettings by name}.
    """
    paths = {name: path and run_flags.user_path(path)
             for name, path in (('level_cache', self.level_cache), ('dataset_path', self.dataset_path))
             if (name, path) != ('dataset_path', dmlab.DUMMY_DATASET)}
    return {'dmlab': dataclasses.asdict(self) | paths | {'hold_out': not training}}
