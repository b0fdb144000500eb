"""Groups runs into sweeps, and sweeps into repetitions. Schmitt et al. 2020 (LASER), section 5.1 and A.3.

The paper compares sweeps by their best agent. An agent of a sweep is a combination of the hyper-parameters that are
swept, such as the learning rate. It has a run on each level, or on each group of levels in multi-task training.
"""

from collections.abc import Mapping, Sequence
import json
import os
from typing import Any, NamedTuple

from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib


class Key(NamedTuple):
  """An agent of a sweep."""
  values: tuple[float | None, ...]  # The values of the swept hyper-parameters.
  number: int                       # Tells apart agents with the same values, which share a replay.


Sweep = Mapping[Key, runs_lib.Run]  # On one level.
Agent = Mapping[str, runs_lib.Run]  # Value of --level_name -> run.


def is_shared(run: runs_lib.Run) -> bool:
  """Returns whether the run's replay was shared with other runs."""
  return bool(run.flags.get('shared_replay'))


def settings(run: runs_lib.Run) -> dict[str, Any]:
  """Returns the settings of a run by name, without those that are swept or differ between repetitions."""
  is_single = ',' not in run.flags['level_name'] and runs_lib.is_expert(run)
  found = results.settings_of(run, is_single, swept=False) | {'shares': is_shared(run)}
  found.pop('shared_replay', None)
  return found


def setting(run: runs_lib.Run) -> str:
  """Returns a key that is equal for runs with equal `settings`."""
  return json.dumps(settings(run), sort_keys=True)


def sweeps(runs: Sequence[runs_lib.Run]) -> list[Sweep]:
  """Groups runs on one level, with equal `settings`, into sweeps.

  Runs in the same folder that share a replay, or are members of a population, are a sweep. Of the other runs, those
  with the same swept hyper-parameters are repetitions: the n-th sweep has the n-th run of each combination.
  """
  together, apart = {}, []
  for run in sorted(runs, key=lambda run: (run.flags['seed'], run.logdir)):
    values = tuple(run.flags.get(name) for name in results.SWEEPS[run.family].ranges)
    if is_shared(run) or run.population > 1:
      # A sweep that is started again may have another address.
      sweep = together.setdefault(os.path.dirname(run.logdir), {})
      number = sum(key.values == values for key in sweep)
      sweep[Key(values, number)] = run
    else:
      number = sum(Key(values, 0) in sweep for sweep in apart)
      if number == len(apart):
        apart.append({})
      apart[number][Key(values, 0)] = run
  return [together[place] for place in sorted(together)] + apart


def repetitions(runs: Sequence[runs_lib.Run]) -> list[list[Agent]]:
  """Returns the agents of each repetition of a sweep, given its runs, which have equal `settings`.

  The n-th repetition has the n-th sweep on each level. If a level has a single run there, this run belongs to every
  agent. Agents with runs on fewer levels than others are left out.
  """
  of_levels = {level: sweeps(group) for level, group in runs_lib.by_level(runs).items()}
  found = []
  for number in range(max(map(len, of_levels.values()), default=0)):
    of_one = {level: each[number] for level, each in of_levels.items() if len(each) > number}
    agents = []
    for key in dict.fromkeys(key for sweep in of_one.values() for key in sweep):
      agent = {level: sweep.get(key) or (next(iter(sweep.values())) if len(sweep) == 1 else None)
               for level, sweep in of_one.items()}
      agent = {level: run for level, run in agent.items() if run}
      if agent not in agents:
        agents.append(agent)
    most = max(map(len, agents))
    found.append([agent for agent in agents if len(agent) == most])
  return found
