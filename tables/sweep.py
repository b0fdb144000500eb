"""The samples of a sweep, sorted by what each has reached. Espeholt et al. 2018, figures 4, E.1, table D.1.

Runs that differ in more than what a sweep samples are different lines, of the table and of the figures: another network
or correction, say, or --policy_lag (figure E.1) or --clip_rho_threshold (section 5.2.2).
"""

import json
import re
import statistics
from typing import Any, NamedTuple, Sequence

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.records import run_rows
from scalable_agents.tables import layout
from scalable_agents.tables import results
from scalable_agents.tables import runs as runs_lib
from scalable_agents.training import sweep as sweep_lib

# What a line is called does not repeat these.
_IN_OTHER_COLUMNS = {'torso', 'off_policy_correction', 'sweep_index', *sweeps.IMPALA.ranges}
_NUMBER = re.compile(r'(\d[\d_]*(?:\.\d+)?)')

Points = Sequence[tuple[int, float]]  # (environment frames, score).


class Sample(NamedTuple):
  """Runs that differ in nothing but the seed."""
  level: str
  line: str              # Network, correction, and every other setting in which the level's runs differ.
  flags: dict[str, Any]  # Of the first run.
  score: results.Score | None  # At the end of training; None where a run has not finished an episode of each level.
  frames: int            # Trained for so far, by the run with the fewest.
  curves: Sequence[Points]  # Of each run; without the rows before it had finished an episode of each level.


def samples(runs: Sequence[runs_lib.Run]) -> list[Sample]:
  """The samples of the runs by level and line, best first.

  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged.
  """
  by_setting = {}
  for run, line in zip(runs, _lines(runs)):
    by_setting.setdefault((line, results.setting(run, expert=False)), []).append(run)
  found = []
  for (line, _), group in by_setting.items():
    scored = [_scored(run) for run in group]
    finals = [points[-1][1] if points else None for points in scored]
    score = None if None in finals else results.mean_over_seeds(finals)
    frames = min(points[-1][0] if points else 0 for points in scored)
    curves = [[(at, value) for at, value in points if value is not None] for points in scored]
    found.append(Sample(group[0].flags['level_name'], line, group[0].flags, score, frames, curves))
  return sorted(found, key=lambda x: (x.level, _natural(x.line), x.score is None, -x.score.mean if x.score else 0))


def unit(level: str) -> str:
  """What a final score is on a level, or on a suite as --level_name has it."""
  if level in scores.SUITES:
    return scores.SUITES[level].summary.replace('_', ' ') + ' human-normalised return (%)'
  return 'return'


def best_three(found: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
  """(level, line) -> the three samples with the best final scores, or as many as there are."""
  best = {}
  for sample in found:  # They are sorted.
    if sample.score and len(best.setdefault((sample.level, sample.line), [])) < 3:
      best[sample.level, sample.line].append(sample)
  return best


def table(found: Sequence[Sample]) -> layout.Table:
  """A row for each of the samples."""
  columns = ['level', 'setting', 'rank', 'sample', *sweeps.IMPALA.ranges, 'final score, this run', 'run']
  rows, ranks = [], {}
  for sample in found:
    line = sample.level, sample.line
    ranks[line] = ranks.get(line, 0) + 1
    wanted = sample.flags['total_environment_frames']
    extent = results.short(sample.frames) + f' of {results.short(wanted)}' * (sample.frames < wanted)
    rows.append([*line, str(ranks[line]), _index(sample),
                 *(f'{sample.flags[name]:.3g}' for name in sweeps.IMPALA.ranges), layout.Number(sample.score, 2),
                 f'{extent} frames'])
  notes = [f'{level}: the final score is the {unit(level)} of the last 100 training episodes'
           f'{" of each level" if level in scores.SUITES else ""}.'
           for level in dict.fromkeys(sample.level for sample in found)]
  # As in the paper's table 2.
  notes += [f'{level}, {line}: on average the best 3 samples have '
            f'{statistics.fmean(sample.score.mean for sample in best):.2f}.'
            for (level, line), best in best_three(found).items() if len(best) == 3]
  notes.append('Setting: the network, the correction, and every other setting in which runs of the level differ, beside '
               + ', '.join(sweeps.IMPALA.ranges) + '.')
  notes.append('The paper has figure 4 for this, and prints no numbers of single samples.')
  return layout.Table('Sweep: training scores of samples of hyper-parameters, best first', columns, rows, notes)


def _lines(runs: Sequence[runs_lib.Run]) -> list[str]:
  """The line of each run."""
  settings = [results.settings_of(run, expert=False) for run in runs]
  values = {}  # (level, setting) -> its values, as JSON.
  for those in settings:
    for name, value in those.items():
      values.setdefault((those['level_name'], name), set()).add(json.dumps(value))
  found = []
  for those in settings:
    differing = [f'{name}={results.written(value)}' for name, value in sorted(those.items())
                 if len(values[those['level_name'], name]) > 1 and name not in _IN_OTHER_COLUMNS]
    found.append(', '.join([those['torso'], those['off_policy_correction'], *differing]))
  return found


def _natural(text: str) -> list[str | float]:
  """A key that sorts text with numbers in it by these: lag=2 before lag=10."""
  return [float(part) if number % 2 else part for number, part in enumerate(_NUMBER.split(text))]


def _index(sample: Sample) -> str:
  index = sample.flags.get('sweep_index', sweep_lib.NO_SAMPLE)
  return '–' if index == sweep_lib.NO_SAMPLE else str(index)


def _scored(run: runs_lib.Run) -> list[tuple[int, float | None]]:
  """Environment frames and score of rows of metrics.jsonl, the last one's too; None before each level has finished an
  episode.
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
