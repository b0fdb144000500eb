"""The protocol of Atari games. Each of its settings is a flag.

Espeholt et al. 2018 (IMPALA), section 5.3.2 and table G.1. Built-in and gymnasium tasks ignore it. A protocol is a
frozen dataclass with `validate` and `environments`; launch/program.py calls both.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

from scalable_agents.environments import atari
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_STICKY_PROBABILITY = 0.25  # Machado et al. 2018.
_MAX_NOOPS = 100_000  # These take seconds, and an environment must answer before its timeout.
_MAX_EPISODE_FRAMES = 10 ** 9  # Episodes are counted in int32.


@dataclasses.dataclass(frozen=True)
class Protocol:
  """The settings of the protocol. The defaults are the paper's."""

  action_repeats: int = setting(
      4, 'Environment frames per agent step: each action is repeated this many times. IMPALA, table G.1.', at_least=1,
      at_most=settings.MAX_ACTION_REPEATS)
  noop_max: int = setting(
      atari57.SUITE.noop_max,
      'An episode starts with 1 to this many no-op actions of one frame each, drawn uniformly; 0 for none. IMPALA: 30 '
      '(section 5.3.2). LASER: 37 (appendix D).',
      at_least=0, at_most=_MAX_NOOPS)
  episode_end_on_life_loss: bool = setting(
      True, 'In training, the loss of a life has discount 0, as if the episode ended. IMPALA: yes (table '
      'G.1). R2D2: no (section 2.3).')
  full_action_set: bool = setting(
      False, 'Use all 18 actions of the Atari 2600, not only those that the game uses. IMPALA: if it learns several '
      'games (appendix G). R2D2: always (section 2.3).')
  sticky_actions: bool = setting(
      False, 'The emulator repeats the previous action with probability 0.25. None of the papers does this.')
  max_episode_frames: int = setting(
      atari57.SUITE.max_episode_frames,
      'Environment frames after which an episode ends; 108,000 are 30 minutes of play. R2D2 and LASER: 30 minutes '
      '(appendices). IMPALA: not stated.',
      at_least=1, at_most=_MAX_EPISODE_FRAMES)

  def validate(self, levels: Sequence[str]):
    """Checks the settings for a run on these levels.

    Args:
      levels: names of levels, see environments/registry.py.
    Raises:
      ValueError: a setting is out of its range, or a level has another protocol. The message is one line.
    """
    for level in levels:
      if level in dmlab.LEVELS:
        raise ValueError(f'--level_name: {level} is a level of DeepMind Lab, whose programs end in _dmlab30. An agent '
                         'of your own needs a preset with its protocol (docs/agents.md)')
    settings.check(self)
    if set(levels).isdisjoint(atari57.LEVELS):  # Other tasks ignore the settings of the emulator.
      return
    try:
      atari.AtariSettings(**self.environments(levels, training=True)['atari'])
    except ValueError as error:
      raise ValueError(f'--{error}') from error

  def environments(self, levels: Sequence[str], training: bool) -> dict[str, Any]:
    """Returns the `protocol` argument of `registry.make_from_json`.

    Args:
      levels: names of the run's levels. With several levels the agent has all 18 actions in each (appendix G).
      training: True for training, False for evaluation.
    Returns:
      {'atari': fields of atari.AtariSettings by name}.
    """
    return {'atari': {
        'action_repeats': self.action_repeats,
        'max_pooled_frames': min(2, self.action_repeats),
        'noop_max': self.noop_max,
        'episode_end_on_life_loss': self.episode_end_on_life_loss and training,
        'full_action_set': self.full_action_set or len(levels) > 1,
        'sticky_actions': _STICKY_PROBABILITY if self.sticky_actions else 0.,
        'max_episode_frames': self.max_episode_frames,
    }}
