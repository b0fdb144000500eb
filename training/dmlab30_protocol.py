"""How DeepMind Lab is played: each setting of the protocol is a flag, and environments are told what follows from them.

Espeholt et al. 2018 (IMPALA), sections 5.3.1 and D. Built-in and gymnasium tasks take no notice of it.
"""

import dataclasses
from typing import Any

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import level_cache
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import run_flags


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The settings; defaults are the paper's."""

  action_repeats: int = setting(
      4, 'Environment frames per agent step: each action is repeated so often. Section D.1.', at_least=1,
      at_most=settings.MAX_ACTION_REPEATS)
  action_set: str = setting('impala', 'impala: the 9 actions of table D.2; popart: the 15 of Hessel et al. 2019.',
                            choices=tuple(dmlab.ACTION_SETS))
  renderer: str = setting('software', "DeepMind Lab's renderer: software, or hardware, which needs EGL.", free=True,
                          choices=dmlab.RENDERERS)
  level_cache: str = setting(
      '', 'Folder where compiled maps are kept; several programs may share it. An episode whose map is there begins '
      'in a third of a second rather than after several, but only a run or an evaluation with the seed of an earlier '
      'one meets its maps again. Default: none.', free=True)
  dataset_path: str = setting(
      '', 'Folder with the images of Brady, Konkle et al. 2008, 0001.png to 2400.png, which two levels of psychlab '
      'need; or dummy, for plain colours instead.', free=True)

  def validate(self, levels: tuple[str, ...]):
    """Raises ValueError, one line, for a setting out of its range or a level that is played by another protocol."""
    settings.check(self)
    for level in levels:
      if level in atari57.LEVELS:
        raise ValueError(f'--level_name: {level} is an Atari game, whose binaries end in _atari57')
    try:
      dmlab_settings = dmlab.DmlabSettings(**self.environments(levels, training=True)['dmlab'])
    except ValueError as error:
      raise ValueError(f'--{error}') from error
    try:
      for level in levels:
        if level in dmlab.LEVELS:
          dmlab.check_level(level, dmlab_settings)
    except ValueError as error:
      raise ValueError(f'--level_name: {error}') from error
    try:
      if dmlab_settings.level_cache:
        level_cache.check(dmlab_settings.level_cache)
    except ValueError as error:
      raise ValueError(f'--{error}') from error

  def environments(self, unused_levels: tuple[str, ...], training: bool) -> dict[str, Any]:
    """What environments/registry.py takes. Tests play levels and episodes that training does not."""
    paths = {name: path and run_flags.user_path(path)
             for name, path in (('level_cache', self.level_cache), ('dataset_path', self.dataset_path))
             if path != dmlab.DUMMY_DATASET}
    return {'dmlab': dataclasses.asdict(self) | paths | {'hold_out': not training}}
