"""Table 2 of Espeholt et al. 2018 (IMPALA): the final returns of off-policy corrections, without and with replay.

The paper has five levels of DeepMind Lab, and 24 samples of hyper-parameters for each number. Runs on other levels,
such as built-in tasks, have rows without the paper's numbers.
"""

from collections.abc import Sequence
import statistics
from typing import NamedTuple

from scalable_agents.agents import sweeps
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import sweep
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

NUMBER = '2'
_BEST = 3          # The paper takes the mean over this many of the best hyper-parameter combinations.
_FRAMES = 1_000_000_000  # The paper states no number; this is the released code's recipe for a single level.
CORRECTIONS = {  # Name in the paper -> value of --off_policy_correction.
    'V-trace': 'vtrace', '1-Step': 'one_step', 'epsilon-correction': 'epsilon', 'No-correction': 'none'}
_REPLAYS = {'without': 0., 'with': 0.5}  # Share of the batch that is replayed. Section 5.2.2.
_PRINTED = {(task, row['replay'], row['method']): float(number) for row in published.rows('impala_table_2.csv')
            for task, number in row.items() if task not in ('replay', 'method')}
TASKS = tuple(dict.fromkeys(task for task, _, _ in _PRINTED))


class _Key(NamedTuple):
  """What a row of the table is about."""
  task: str
  replay: str
  method: str


def table(found: Sequence[sweep.Sample]) -> layout.Table:
  """Makes the table, given the samples of runs of IMPALA from `sweep.samples`."""
  by_row, notes = runs_lib.grouped(found, _key), []
  methods = dict.fromkeys([*CORRECTIONS, *(key.method for key in by_row)])
  keys = [_Key(task, replay, method) for task in dict.fromkeys([*TASKS, *(key.task for key in by_row)])
          for replay in _REPLAYS for method in methods]
  rows = []
  for key in (key for key in keys if key in _PRINTED or key in by_row):
    samples, note = _of_one_setting(key, by_row.get(key, []))
    if note:
      notes.append(f'{key.task}, {key.method}, {key.replay} replay: {note}')
    rows.append([*key, *layout.compared(_PRINTED.get(key), _cell(key, samples), 1 if key.task in TASKS else 2)])
  columns = ['level', 'replay', 'correction', *layout.comparison_columns('final return')]
  explained = [
      f'This run: the mean over the {_BEST} hyper-parameters with the best final returns. A final return is the mean '
      'of the last 100 training episodes, averaged over seeds. If there is a single hyper-parameter, ± is the standard '
      'deviation over seeds. "Best 3 of 24" says how many hyper-parameters were run.',
      'With replay: --replay_share is more than 0. The paper has 0.5: half of each batch is drawn from the last 10,000 '
      f"unrolls. It does not state the number of frames. The released code's recipe has {results.short(_FRAMES)}."]
  return layout.Table('Table 2: Final returns of off-policy corrections', columns, rows, explained + notes)


def _key(sample: sweep.Sample) -> _Key:
  wanted = sample.flags['off_policy_correction']
  method = next((name for name, correction in CORRECTIONS.items() if correction == wanted), wanted)
  return _Key(sample.level, 'with' if sample.flags.get('replay_share') else 'without', method)


def _of_one_setting(key: _Key, samples: Sequence[sweep.Sample]) -> tuple[Sequence[sweep.Sample], str]:
  """Returns the samples of one setting, best sample first, and a note if there are other settings.

  It is the setting with the fewest departures from the paper, so that ablations do not stand for the agent. Among
  equals, it is the one with the best mean.
  """
  by_line = runs_lib.grouped(samples, lambda sample: sample.line)
  if len(by_line) < 2:
    return samples, ''
  fewest = {line: min(len(departures.departures(_run(sample), _agent(key))) for sample in of_line)
            for line, of_line in by_line.items()}
  # A setting without scores comes last.
  line = min(by_line, key=lambda name: (not _scored(by_line[name]), fewest[name], -_mean(by_line[name])))
  why = 'the best of those with' if list(fewest.values()).count(fewest[line]) > 1 else 'with'
  return by_line[line], (f'of {len(by_line)} settings this one is shown, {why} the fewest departures from the paper: '
                         f'{line}')


def _agent(key: _Key) -> published.Agent:
  """Returns the paper's agent of a row. On other levels than the paper's, it serves to compare settings."""
  return published.Agent('IMPALA', 'dmlab30', True, 'shallow', True, _FRAMES, 1, 1,
                         (('reward_transform', 'abs_one'), ('replay_share', _REPLAYS[key.replay])))


def _run(sample: sweep.Sample) -> runs_lib.Run:
  return runs_lib.Run('', sample.flags, None)


def _scored(samples: Sequence[sweep.Sample]) -> list[sweep.Sample]:
  return [sample for sample in samples if sample.score][:_BEST]


def _mean(samples: Sequence[sweep.Sample]) -> float:
  """Returns the mean score of the best samples, 0 if none has a score."""
  return statistics.fmean([sample.score.mean for sample in _scored(samples) if sample.score] or [0.])


def _cell(key: _Key, samples: Sequence[sweep.Sample]) -> results.Cell:
  best = _scored(samples)
  if not best:
    return results.Cell(None, 'no run has finished an episode' if samples else results.NOT_RUN)
  one, seeds = best[0].score, [sample.score.seeds for sample in best if sample.score]
  score = one if len(best) == 1 else results.Score(_mean(best), None, min(seeds))
  shown = f'best {len(best)} of {len(samples)}, {sum(seeds)} {"runs" if sum(seeds) > 1 else "run"}'
  frames = min(sample.frames for sample in best)
  if key.task not in TASKS:
    return results.Cell(score, f'{shown}, {results.short(frames)} frames')
  less = [f'{results.short(got)} of {results.short(wanted)} {name}' for name, got, wanted in (
      ('hyper-parameters', len(samples), sweeps.IMPALA.num_samples), ('frames', frames, _FRAMES)) if got < wanted]
  return results.Cell(score, f'{shown}; {results.extent(less, map(_run, best), _agent(key))}')
