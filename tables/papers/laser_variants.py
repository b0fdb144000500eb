"""Names the variants of LASER by the settings of their runs, for figures. Schmitt et al. 2020.

A variant is LASER, one of its ablations (figures 2, 3 and 4), or an agent that it is compared with, such as IMPALA.
Runs may also differ in the share of replayed experience, the capacity of the replay, whether agents share it, or the
threshold of the trust region. Then the name of LASER with the most common values contains all of these settings that
differ. Any other name contains only the settings that differ from the most common values.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import fractions
import math
from typing import Any

from scalable_agents.tables.papers import laser_sweeps
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

NO_REPLAY = 'No replay'
_OTHER_AGENTS = ('popart_impala', 'impala')


def _share(share: float) -> str:
  return f'replay share {fractions.Fraction(share).limit_denominator(100)}'


_PARAMETERS: dict[str, Callable[[Any], str]] = {  # Setting -> how its value is named.
    'shares': lambda shares: 'shared replay' if shares else 'own replay',
    'trust_region_threshold': lambda threshold: f'b = {threshold:g}',
    'replay_share': _share,
    'replay_capacity': lambda capacity: f'capacity {results.short(capacity)}',
}


def ablations(run: runs_lib.Run) -> list[str]:
  """Returns the names of the ablations that a run of LASER combines; [] for LASER itself."""
  flags = run.flags
  if not flags.get('replay_share'):
    return [NO_REPLAY]
  found = []
  if flags.get('trust_region_threshold') == math.inf:
    found.append('Naive sharing' if laser_sweeps.is_shared(run) else 'No trust region')
  elif flags.get('relevance') == 'kl_mu':
    found.append('KL(pi || mu)')
  if (rho := flags.get('clip_rho_threshold', 1.)) != 1:
    found.append(f'rho-bar {rho:g}')
  if not flags.get('learn_online', True):
    found.append('Pure replay')
  if flags.get('replay_sampling') == 'prioritised':
    found.append(f'Prioritised (beta {flags.get("importance_exponent", 1.):g})')
  elif flags.get('replay_sampling') == 'unrolls':
    found.append('Unrolls')
  return found


def by_variant(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by variant, with LASER first, then its ablations, then other agents.

  Runs in a group differ only in the seed, the level and the hyper-parameters of a sweep. If they differed in further
  settings, the names of their groups have these too. If a level has runs of several lengths, the names of all levels'
  groups have the number of frames, so that each group has a score over its levels.
  """
  settings = [laser_sweeps.settings(run) for run in runs]
  parameters = [_parameters(run, those) for run, those in zip(runs, settings, strict=True)]
  common = _common(parameters)
  names = [_name(run, those, common) for run, those in zip(runs, parameters, strict=True)]
  places = [(name, run.flags['level_name']) for name, run in zip(names, runs, strict=True)]
  frames = [{'total_environment_frames': run.flags['total_environment_frames']} for run in runs]
  several = {name for name, different in zip(names, results.differing(places, frames, ()), strict=True) if different}
  groups, order = {}, {}
  for run, those, name, others in zip(runs, parameters, names, results.differing(places, settings, ()), strict=True):
    length = f'total_environment_frames={results.written(run.flags["total_environment_frames"])}'
    full_name = ', '.join([name, *others, *([length] if name in several else [])])
    groups.setdefault(full_name, []).append(run)
    order[full_name] = _order(run, those, common)
  return {name: groups[name] for name in sorted(groups, key=lambda name: order[name])}


def _parameters(run: runs_lib.Run, settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns those of _PARAMETERS that can be part of the name of a run's variant, and their values."""
  if run.agent != runs_lib.LASER or not run.flags.get('replay_share'):
    return {}
  is_naive = run.flags.get('trust_region_threshold') == math.inf  # The ablation's name says whether it shares.
  implied = ('shares', 'trust_region_threshold') if is_naive else ()
  return {name: settings[name] for name in _PARAMETERS if name in settings and name not in implied}


def _common(parameters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the most common value of each of _PARAMETERS that has several values. Among equals, the largest one."""
  found = {}
  for name in _PARAMETERS:
    counts = collections.Counter(those[name] for those in parameters if name in those)
    if len(counts) > 1:
      found[name] = max(counts, key=lambda value: (counts[value], value))
  return found


def _name(run: runs_lib.Run, parameters: Mapping[str, Any], common: Mapping[str, Any]) -> str:
  if run.agent in _OTHER_AGENTS:
    share = run.flags.get('replay_share')
    return runs_lib.NAMES[run.agent] + (f', {_share(share)}' if share else '')
  different = _different(parameters, common)
  shown = different if ablations(run) or different else [name for name in common if name in parameters]
  parts = ablations(run) or [runs_lib.NAMES[runs_lib.LASER]]
  return ', '.join(parts + [_PARAMETERS[name](parameters[name]) for name in shown])


def _different(parameters: Mapping[str, Any], common: Mapping[str, Any]) -> list[str]:
  return [name for name in common if name in parameters and parameters[name] != common[name]]


def _order(run: runs_lib.Run, parameters: Mapping[str, Any], common: Mapping[str, Any]) -> tuple[Any, ...]:
  """Returns a key that sorts variants: those of LASER first, and of these the one with the most common values."""
  if run.agent in _OTHER_AGENTS:
    return (1 + _OTHER_AGENTS.index(run.agent), run.flags.get('replay_share') or 0)
  different = _different(parameters, common)
  places = [list(_PARAMETERS).index(name) for name in different]
  return (0, ablations(run), places, [parameters[name] for name in different])
