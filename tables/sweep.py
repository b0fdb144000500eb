"""The samples of a sweep, sorted by what each has reached. Espeholt et al. 2018, figure 4 (bottom), table D.1."""

import statistics
from typing import Any, NamedTuple, Sequence

from scalable_agents.agents import sweep as agents_sweep
from scalable_agents.environments import scores
from scalable_agents.learner import run_directory
from scalable_agents.tables import layout
from scalable_agents.tables import results
from scalable_agents.tables import runs as runs_lib

_SAMPLED = ('learning_rate', 'entropy_cost', 'rmsprop_epsilon')  # Table D.1.


class Sample(NamedTuple):
  """Runs that differ in nothing but the seed."""
  level: str
  method: str            # What the paper draws a line for.
  flags: dict[str, Any]  # Of the first run.
  score: results.Score | None  # At the end of training; None where a run has not finished an episode of each level.
  frames: int            # Trained for so far, by the run with the fewest.


def samples(runs: Sequence[runs_lib.Run]) -> list[Sample]:
  """The samples of the runs by level and method, best first.

  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged.
  """
  by_setting = {}
  for run in runs:
    by_setting.setdefault(results.setting(run, expert=False), []).append(run)
  found = []
  for group in by_setting.values():
    ends = [_end(run) for run in group]
    finals = [final for final, _ in ends]
    score = None if None in finals else results.mean_over_seeds(finals)
    flags = group[0].flags
    found.append(Sample(flags['level_name'], f'{flags["torso"]}, {flags["off_policy_correction"]}', flags, score,
                        min(frames for _, frames in ends)))
  return sorted(found, key=lambda x: (x.level, x.method, x.score is None, -x.score.mean if x.score else 0))


def unit(level: str) -> str:
  """What a final score is on a level, or on a suite as --level_name has it."""
  if level in scores.SUITES:
    return scores.SUITES[level].summary.replace('_', ' ') + ' human-normalised return (%)'
  return 'return'


def table(found: Sequence[Sample]) -> layout.Table:
  """A row for each of the samples."""
  columns = ['level', 'network, correction', 'rank', 'sample', *_SAMPLED, 'final score, this run', 'run']
  rows, ranks = [], {}
  for sample in found:
    line = sample.level, sample.method
    ranks[line] = ranks.get(line, 0) + 1
    wanted = sample.flags['total_environment_frames']
    extent = results.short(sample.frames) + f' of {results.short(wanted)}' * (sample.frames < wanted)
    rows.append([*line, str(ranks[line]), _index(sample),
                 *(f'{sample.flags[name]:.3g}' for name in _SAMPLED), layout.Number(sample.score, 2),
                 f'{extent} frames'])
  notes = [f'{level}: the final score is the {unit(level)} of the last 100 training episodes'
           f'{" of each level" if level in scores.SUITES else ""}.'
           for level in dict.fromkeys(sample.level for sample in found)]
  notes += [f'{level}, {method}: on average the best 3 samples have {statistics.fmean(best):.2f}.'
            for (level, method), best in _best_three(found).items()]
  notes.append('The paper has figures 4 and E.2 for this and prints no numbers of single samples.')
  return layout.Table('Sweep: samples of hyper-parameters, best first', columns, rows, notes)


def _index(sample: Sample) -> str:
  index = sample.flags.get('sweep_index', agents_sweep.NO_SAMPLE)
  return '–' if index == agents_sweep.NO_SAMPLE else str(index)


def _best_three(found: Sequence[Sample]) -> dict[tuple[str, str], list[float]]:
  """As in the paper's table 2, for every level and method with so many."""
  best = {}
  for sample in found:
    if sample.score:
      best.setdefault((sample.level, sample.method), []).append(sample.score.mean)
  return {line: means[:3] for line, means in best.items() if len(means) >= 3}


def _end(run: runs_lib.Run) -> tuple[float | None, int]:
  """The score at the end of training, and the frames trained for."""
  rows = run_directory.read_metrics(run.logdir)
  if not rows:
    return None, 0
  last = rows[-1]
  if runs_lib.is_expert(run):
    return last.get('episode_return'), last['environment_frames']
  suite = scores.SUITES[run.flags['level_name']]
  means = {level: last.get(f'episode_return/{level}') for level in suite.levels}
  score = None if None in means.values() else getattr(scores.summarise(means), suite.summary)
  return score, last['environment_frames']
