"""Names the variants of R2D2 by the settings of their runs. Kapturowski et al. 2019.

A variant is R2D2, R2D2+ (section 4.2) or an ablation (figures 4, 7 and 8). A training strategy is a start state and a
burn-in (section 3).
"""

from collections.abc import Sequence
from typing import Any

from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_ABLATIONS = {  # Name -> its settings.
    'Feed-Forward': {'use_lstm': False},
    'Clipped': {'reward_transform': 'abs_one', 'value_rescaling': False},
    'Discount': {'discount': 0.99},
    'Life-Loss (roll)': {'episode_end_on_life_loss': True, 'reset_on_life_loss': False},
    'Life-Loss (reset)': {'episode_end_on_life_loss': True, 'reset_on_life_loss': True},
}
_PLUS = {  # Setting of R2D2+ -> its values.
    'torso': ('deep',), 'reward_transform': ('soft_asymmetric', 'optimistic_asymmetric'),
    'target_update_interval': (400,), 'batch_size': (32,), 'samples_per_period': (0.77,)}
_STRATEGY = ('recurrent_state', 'burn_in')


def is_plus(run: runs_lib.Run) -> bool:
  """Returns whether a run is of R2D2+: it has the deep network and asymmetric rewards."""
  return all(run.flags.get(name) in _PLUS[name] for name in ('torso', 'reward_transform'))


def ablations(run: runs_lib.Run) -> list[str]:
  """Returns the names of the ablations that a run combines; [] for R2D2 itself."""
  return [name for name, settings in _ABLATIONS.items()
          if all(run.flags.get(setting, False) == value for setting, value in settings.items())]


def variant(run: runs_lib.Run) -> str:
  """Returns the name of a run's variant: R2D2, R2D2+ or its ablations."""
  names = ablations(run)
  if is_plus(run):
    names.insert(0, 'R2D2+')
  return ', '.join(names) or 'R2D2'


def strategy(run: runs_lib.Run) -> str:
  """Returns the name of a run's training strategy, and of its variant unless that is R2D2."""
  state, burn_in = (run.flags.get(name) for name in _STRATEGY)
  parts = [f'{state} state', f'burn-in {burn_in}']
  if (its_variant := variant(run)) != 'R2D2':
    parts.append(its_variant)
  return ', '.join(parts)


def by_variant(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by variant, with R2D2 first. Runs in a group differ only in the seed and the level.

  If runs of one level differ in further settings, the group's name has these too.
  """
  order = list(_ABLATIONS)
  ordered = sorted(runs, key=lambda run: (is_plus(run), [order.index(name) for name in ablations(run)]))
  return _grouped(ordered, [variant(run) for run in ordered], ())


def by_strategy(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by training strategy, otherwise as `by_variant`. Zero states are first, and short burn-ins."""
  ordered = sorted(runs, key=lambda run: (run.flags.get('recurrent_state') != 'zero', run.flags.get('burn_in') or 0))
  return _grouped(ordered, [strategy(run) for run in ordered], _STRATEGY)


def _grouped(runs, names, apart) -> dict[str, list[runs_lib.Run]]:
  return results.named(
      runs, names, [run.flags['level_name'] for run in runs], [_unnamed(run) for run in runs], apart)


def _unnamed(run: runs_lib.Run) -> dict[str, Any]:
  """Returns the settings of a run without those that the name of its variant implies."""
  named = {setting for name in ablations(run) for setting in _ABLATIONS[name]}
  if is_plus(run):
    named |= {name for name, values in _PLUS.items() if run.flags.get(name) in values}
  return {name: value for name, value in results.settings_of(run, expert=True).items() if name not in named}
