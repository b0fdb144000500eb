"""Draws scores of R2D2, its variants and IMPALA on a whole suite. Kapturowski et al. 2019.

Scores against frames and hours (figures 2, left, 3 and 9), and per level (figure 11). As in the paper, a run is on one
level, and a suite's score summarises the runs on its levels. The runs may be on some levels of a suite only.
"""

from collections.abc import Sequence

from matplotlib import figure

from scalable_agents.environments import scores
from scalable_agents.environments import suite as suite_lib
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import suites
from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_FIGURES = {'atari57': 'figures 2 and 9', 'dmlab30': 'figure 3'}  # By suite.


def by_agent(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by variant of R2D2, and by the network of IMPALA and settings that differ between runs of a suite.

  Runs of IMPALA on a whole suite are left out.
  """
  of_r2d2 = [run for run in runs if run.agent == runs_lib.R2D2]
  others = [run for run in runs if run.agent != runs_lib.R2D2 and runs_lib.is_expert(run)]
  names = [_name_of_impala(run) for run in others]
  suites_of = [suite.name if (suite := runs_lib.suite_of(run)) else '' for run in others]
  return r2d2_variants.by_variant(of_r2d2) | results.named(
      others, names, list(zip(names, suites_of, strict=True)),
      [results.settings_of(run, expert=True) for run in others])


def _name_of_impala(run: runs_lib.Run) -> str:
  """Returns the paper's name. Its re-runs have the larger action set, unlike the agents of Espeholt et al. 2018."""
  suite = runs_lib.suite_of(run)
  name = f'IMPALA, {run.flags["torso"]}'
  if suite is None:
    return name
  is_again = suite.name == 'dmlab30' and run.flags.get('action_set') == 'popart'
  return f'{name} ({"re-run" if is_again else "original"})'


def published_scores(rows: curves.Rows) -> dict[str, dict[str, float]]:
  """Returns the paper's final scores of the agents that are drawn: name of a group -> level -> score.

  They are evaluations. Those of the original IMPALA on DMLab-30 are in its own paper.

  Args:
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  found = {}
  for suite in scores.SUITES.values():
    trained = suite.trained
    printed = dict(r2d2_published.PAPER.level_scores[suite.name])
    if suite.name == 'dmlab30':
      printed[r2d2_published.ORIGINAL] = published.LEVEL_SCORES[suite.name]['IMPALA-Experts, deep']
    for name in rows:
      of_levels = printed.get(curves.without_kind(name), {})
      found.setdefault(name, {}).update({trained[level]: score for level, score in of_levels.items()})
  return found


def draw_scores(suite: suite_lib.Suite, rows: curves.Rows) -> figure.Figure | None:
  """Draws the suite's score against frames and against hours of training, with a line per agent.

  Horizontal lines are the paper's final scores on the same levels.

  Args:
    suite: the suite. Agents with a single level of it are left out.
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  lines, papers, published_ones = {}, {}, published_scores(rows)
  for name, of_group in rows.items():
    levels = [level for level in suite.levels if curves.of_level(of_group, level)]
    label = f'{name}, {len(levels)} levels'
    lines[label] = suites.of_experts(suite, of_group)
    if levels and set(levels) <= published_ones[name].keys():
      summary = scores.summarise({level: published_ones[name][level] for level in levels})
      papers[label] = getattr(summary, suite.summary)
  kind = 'scores' if curves.are_evaluated(rows) else 'training scores'
  return suites.draw_scores(suite, lines, papers, f'{suite.name}: {kind} ({_FIGURES[suite.name]})',
                            'environment frames per run')


def draw_bars(suite: suite_lib.Suite, rows: curves.Rows) -> figure.Figure | None:
  """Draws the score of each level at the end of training as bars, with marks of the paper's scores. Figure 11.

  Args:
    suite: the suite. It is drawn if there are at least two of its levels.
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  levels = set(suite.levels)
  of_suite = {name: [of_run for of_run in of_group if levels.intersection(curves.levels_of({name: [of_run]}))]
              for name, of_group in rows.items()}
  if len(levels.intersection(curves.levels_of(of_suite))) < 2:
    return None
  title = f'{suite.name}: scores per level' + (' (figure 11)' if suite.name == 'dmlab30' else '')
  return suites.draw_bars(of_suite, published_scores(rows), suite.summary == 'median', title)
