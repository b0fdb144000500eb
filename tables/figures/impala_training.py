"""Draws the training of the agents of Espeholt et al. 2018 (IMPALA) on a whole suite, also of A3C and batched A2C.

Scores against frames and hours (figures 5 and 6), and the final training score of each level (figure B.1). The runs
need not be evaluated. An agent is one run on all levels, or a set of experts: one run on each level.
"""

from collections.abc import Mapping, Sequence

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.environments import suite as suite_lib
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import suites
from scalable_agents.tables.papers import popart_tables
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib


def name_of(run: runs_lib.Run) -> str:
  """Returns the paper's name of a run's agent, or a name in the paper's style."""
  of_paper = run.agent in ('impala', runs_lib.A3C)
  agent = runs_lib.agent_of(run, published.AGENTS.values()) if of_paper else None
  if agent:
    return agent.name
  name = popart_tables.name_of(run) if run.agent == 'popart_impala' else runs_lib.NAMES.get(run.agent, run.agent)
  names = [name, run.flags.get('torso', ''), 'experts' if runs_lib.is_expert(run) else '',
           'PBT' if run.population > 1 else '', *(runs_lib.unlike_paper(run) if of_paper else ())]
  return ', '.join(name for name in names if name)


def best(runs: Sequence[runs_lib.Run], suite: suite_lib.Suite) -> dict[str, list[runs_lib.Run]]:
  """Returns the runs of each agent's best setting in a sweep, by label. They differ only in the seed, or in the level.

  As in the paper, only the fittest member of a population counts, and all experts of an agent have the same setting,
  the best one on all levels together. Of runs that differ only in the number of frames, the longest ones count.

  Args:
    runs: runs of any agents.
    suite: only runs on all its levels, or on one of them, count.
  """
  found = {}
  of_suite = curves.longest([run for run in runs_lib.fittest(runs) if runs_lib.suite_of(run) == suite])
  for name, of_agent in runs_lib.grouped(of_suite, name_of).items():
    by_setting = runs_lib.grouped(of_agent, lambda run: results.setting(run, runs_lib.is_expert(run)))
    ranked = max(by_setting.values(), key=lambda group: _rank(group, suite))
    found[f'{name}, best of {len(by_setting)}' if len(by_setting) > 1 else name] = ranked
  return found


def _rank(group: Sequence[runs_lib.Run], suite: suite_lib.Suite) -> tuple[int, float]:
  """Returns the number of levels that have returns, and the mean of the final scores.

  They are the suite's scores. Experts on one level have only the level's.
  """
  of_levels = suites.finals_of([curves.rows_of_run(run) for run in group])
  finals = [curve[-1, 1] for curve in _curves(group, suite).get(curves.FRAMES, ())]
  if not finals and len(of_levels) == 1:
    finals = list(of_levels.values())
  return len(of_levels), float(np.mean(finals)) if finals else -np.inf


def _curves(group: Sequence[runs_lib.Run], suite: suite_lib.Suite) -> dict[str, list[np.ndarray]]:
  """Returns the curves of the suite's score; see suites.Lines. As in figure 5, all experts' frames are added up."""
  rows = [curves.rows_of_run(run) for run in group]
  if runs_lib.is_expert(group[0]):
    found = suites.of_experts(suite, rows)
    num_levels = len(runs_lib.by_level(group))
    return found | {curves.FRAMES: [curve * [num_levels, 1] for curve in found.get(curves.FRAMES, [])]}
  metric = f'suite_score/{suite.summary}'
  return {against: curves.of_metric(rows, metric, against) for against in (curves.FRAMES, curves.SECONDS)}


def draw_scores(groups: Mapping[str, Sequence[runs_lib.Run]], suite: suite_lib.Suite) -> figure.Figure | None:
  """Draws the suite's score in training against frames and against hours, with a line per agent. Figures 5 and 6.

  Horizontal lines are the paper's scores on the same levels, which are from evaluations.

  Args:
    groups: from `best`.
    suite: the suite.
  """
  lines, papers = {}, {}
  for name, group in groups.items():
    levels = list(runs_lib.by_level(group)) if runs_lib.is_expert(group[0]) else suite.levels
    label = name if len(levels) == len(suite.levels) else f'{name}, {len(levels)} levels'
    lines[label] = _curves(group, suite)
    score = _papers_score(name_of(group[0]), levels, suite)
    if score is not None:
      papers[label] = score
  return suites.draw_scores(suite, lines, papers, f'{suite.name}: training scores of the best agents (figures 5 and 6)',
                            'environment frames of all levels')


def _papers_score(name: str, levels: Sequence[str], suite: suite_lib.Suite) -> float | None:
  """Returns the paper's score of an agent on these levels of the suite; None if it has none."""
  if len(levels) == len(suite.levels):
    return published.SUMMARIES[suite.name].get(name, {}).get(suite.summary)
  printed = _printed(name, suite)
  if not printed.keys() >= set(levels):
    return None
  return getattr(scores.summarise({level: printed[level] for level in levels}), suite.summary)


def _printed(name: str, suite: suite_lib.Suite) -> dict[str, float]:
  """Returns the paper's score of an agent on each training level; {} if it has none."""
  trained = suite.trained
  return {trained[level]: score for level, score in published.LEVEL_SCORES[suite.name].get(name, {}).items()}


def draw_bars(groups: Mapping[str, Sequence[runs_lib.Run]], suite: suite_lib.Suite) -> figure.Figure | None:
  """Draws the final training score of each level as bars, with marks of the paper's evaluations. Figure B.1.

  Args:
    groups: from `best`.
    suite: the suite.
  """
  papers = {label: printed for label, group in groups.items() if (printed := _printed(name_of(group[0]), suite))}
  return suites.draw_bars(curves.rows_of(groups), papers, suite.summary == 'median',
                          f'{suite.name}: final training scores per level (figure B.1)')


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns the figures by name, for the suites that the runs are on."""
  found = {}
  for suite in scores.SUITES.values():
    groups = best(runs, suite)
    found[f'impala_{suite.name}'] = draw_scores(groups, suite)
    found[f'impala_{suite.name}_bars'] = draw_bars(groups, suite)
  return found
