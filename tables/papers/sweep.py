"""Makes the table of a sweep's results: its samples, sorted by their scores. training/sweep.py draws the samples.

Espeholt et al. 2018, figures 4 and E.1, table D.1. A sweep samples some hyper-parameters. Runs that also differ in
other settings belong to different lines of the table and the figures. Examples are the network, the correction,
--policy_lag (figure E.1) and --clip_rho_threshold (section 5.2.2).
"""

from collections.abc import Mapping, Sequence
import re
import statistics
from typing import Any, NamedTuple

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.records import run_rows
from scalable_agents.records import runtime_config
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

# The name of a line does not repeat these settings.
_IN_OTHER_COLUMNS = {'torso', 'off_policy_correction', 'sweep_index', *sweeps.IMPALA.ranges}
_NUMBER = re.compile(r'(\d+(?:_\d+)*(?:\.\d+)?)')

Points = Sequence[tuple[float, float]]  # (environment frames, score).


class Sample(NamedTuple):
  """One sample of the hyper-parameters. Its runs differ only in the seed."""
  level: str
  line: str              # Network, agent, correction, and every other setting in which the level's runs differ.
  flags: dict[str, Any]  # The flags of the first run.
  score: results.Score | None  # At the end of training. None if a run has not finished an episode of each level.
  frames: int            # Environment frames of training so far, the minimum over the runs.
  curves: Sequence[Points]  # A curve per run. It starts when the run has finished an episode of each level.


def samples(runs: Sequence[runs_lib.Run]) -> list[Sample]:
  """Returns the samples of the runs, ordered by level and line, and then best first.

  Args:
    runs: the runs of one or several sweeps. They have the swept settings; see runs.read. Of a population, the fittest
      member counts.
  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged.
  """
  runs = runs_lib.fittest(runs)
  by_setting = {}
  for run, line in zip(runs, _lines(runs), strict=True):
    by_setting.setdefault((line, results.setting(run, expert=False)), []).append(run)
  found = []
  for (line, _), group in by_setting.items():
    scored = [_scored(run) for run in group]
    finals = [final for points in scored for _, final in points[-1:] if final is not None]
    score = results.mean_over_seeds(finals) if len(finals) == len(scored) else None
    frames = min(points[-1][0] if points else 0 for points in scored)
    curves = [[(at, value) for at, value in points if value is not None] for points in scored]
    found.append(Sample(group[0].flags['level_name'], line, group[0].flags, score, frames, curves))
  return sorted(found, key=lambda x: (x.level, _natural(x.line), x.score is None, -x.score.mean if x.score else 0))


def unit(level: str) -> str:
  """Returns the name of the score on a level or suite, where `level` is the value of --level_name."""
  if level in scores.SUITES:
    return scores.SUITES[level].summary.replace('_', ' ') + ' human-normalised return (%)'
  return 'return'


def best_three(found: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
  """Returns the three samples with the best final scores, or fewer if there are fewer, by (level, line)."""
  best = {}
  for sample in found:  # The samples are sorted.
    if sample.score and len(best.setdefault((sample.level, sample.line), [])) < 3:
      best[sample.level, sample.line].append(sample)
  return best


def table(found: Sequence[Sample]) -> layout.Table:
  """Makes the table, with a row per sample."""
  columns = ['level', 'setting', 'rank', 'sample', *sweeps.IMPALA.ranges, 'final score, this run', 'run']
  rows, ranks = [], {}
  for sample in found:
    line = sample.level, sample.line
    ranks[line] = ranks.get(line, 0) + 1
    wanted = sample.flags['total_environment_frames']
    extent = (results.out_of(sample.frames, sample.frames, wanted, results.short) if sample.frames < wanted else
              results.short(sample.frames))
    rows.append([*line, str(ranks[line]), _index(sample),
                 *(f'{sample.flags[name]:.3g}' for name in sweeps.IMPALA.ranges), layout.Number(sample.score, 2),
                 f'{extent} frames'])
  notes = [f'{level}: the final score is the {unit(level)} of the last 100 training episodes'
           f'{" of each level" if level in scores.SUITES else ""}.'
           for level in dict.fromkeys(sample.level for sample in found)]
  # The mean of the best three samples is the score in the paper's table 2.
  notes += [f'{level}, {line}: the mean of the best 3 samples is '
            f'{statistics.fmean(sample.score.mean for sample in best if sample.score):.2f}.'
            for (level, line), best in best_three(found).items() if len(best) == 3]
  notes.append('Setting: the network, the agent unless all are IMPALA, the correction, and every other setting in '
               f'which runs of the level differ, except {", ".join(sweeps.IMPALA.ranges)}.')
  notes.append('The paper shows these results in figure 4, and prints no numbers of single samples.')
  return layout.Table('Sweep: training scores of samples of hyper-parameters, best first', columns, rows, notes)


def _lines(runs: Sequence[runs_lib.Run]) -> list[str]:
  """Returns the name of each run's line."""
  settings = [results.settings_of(run, expert=False) for run in runs]
  # Agents have different settings, so only runs of one agent are compared.
  places = [(those['level_name'], those['agent']) for those in settings]
  differing = results.differing(places, settings, _IN_OTHER_COLUMNS)
  with_agent = any(those['agent'] != 'impala' for those in settings)
  return [', '.join([*_names(those, with_agent), *others]) for those, others in zip(settings, differing, strict=True)]


def _names(settings: Mapping[str, Any], with_agent: bool) -> list[str]:
  """Returns the network, the agent if wanted, and the correction if the agent has one."""
  agent = settings['agent']
  names = (settings['torso'], runs_lib.NAMES.get(agent, f'agent={agent}') if with_agent else '',
           settings.get('off_policy_correction', ''))
  return [name for name in names if name]


def _natural(text: str) -> list[str | float]:
  """Returns a key that sorts numbers within a text by their values: lag=2 before lag=10."""
  return [float(part) if number % 2 else part for number, part in enumerate(_NUMBER.split(text))]


def _index(sample: Sample) -> str:
  index = sample.flags.get('sweep_index', runtime_config.NO_SAMPLE)
  return '–' if index == runtime_config.NO_SAMPLE else str(index)


def _scored(run: runs_lib.Run) -> list[tuple[int, float | None]]:
  """Returns (environment frames, score) of evenly spaced rows of metrics.jsonl, including the last row.

  A score is None until each level has finished an episode.
  """
  rows = runs_lib.thinned(run_rows.read_metrics(run.logdir, runs_lib.ROWS))
  if runs_lib.is_expert(run):
    return [(row['environment_frames'], row.get('episode_return')) for row in rows]
  suite = scores.SUITES[run.flags['level_name']]
  found = []
  for row in rows:
    means = {level: row.get(f'episode_return/{level}') for level in suite.levels}
    score = None if None in means.values() else getattr(scores.summarise(means), suite.summary)
    found.append((row['environment_frames'], score))
  return found
