"""The results table of Hessel et al. 2019 (PopArt-IMPALA, "Summary of results"), with the results of runs."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

from scalable_agents.environments import scores
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_IMPALA, _MULTI_HEAD, POPART = 'IMPALA', 'MultiHead-IMPALA', 'PopArt-IMPALA'
_PIXEL = 'Pixel-'  # Before the name of an agent with pixel control.
_ORIGINAL = 'IMPALA-original'  # On DMLab-30, with the smaller action set of the IMPALA paper.
_NO_HUMAN_STARTS = 'cannot be reproduced: the human start states are not public'


class _Column(NamedTuple):
  """A column of the paper's table."""
  field: str      # In popart_table_1.csv.
  benchmark: str
  how: str        # How the agent is scored.
  measure: str    # Field of scores.SuiteScore; '' if the column cannot be reproduced.
  training: bool  # True: scored on training episodes. False: on an evaluation.


_ATARI, _UNCLIPPED, _DMLAB = 'Atari-57', 'Atari-57 (unclipped)', 'DMLab-30'
_COLUMNS = (
    _Column('atari57_random_starts_median', _ATARI, 'random starts: median', 'median', False),
    _Column('atari57_human_starts_median', _ATARI, 'human starts: median', '', False),
    _Column('atari57_unclipped_random_starts_median', _UNCLIPPED, 'random starts: median', 'median', False),
    _Column('atari57_unclipped_human_starts_median', _UNCLIPPED, 'human starts: median', '', False),
    _Column('dmlab30_train_mean_capped', _DMLAB, 'train: mean capped', 'mean_capped', True),
    _Column('dmlab30_test_mean_capped', _DMLAB, 'test: mean capped', 'mean_capped', False),
)
_PRINTED = {row['agent']: row for row in published.rows('popart_table_1.csv')}
# "Efficient multi-task learning in simulation" says this of the network and of rollouts. "Implementation notes" refer
# to the IMPALA paper, whose Atari agent has no LSTM and unrolls of 20 steps.
_TEXT = (('use_lstm', True), ('unroll_length', 100))


@functools.cache
def _agent(name: str, benchmark: str) -> published.Agent:
  """Returns an agent of the table. "Implementation notes", "Experiments" and, on DMLab-30, figure 4."""
  popart = published.POPART_SETTINGS if name == POPART else ()
  if benchmark == _DMLAB:
    return published.Agent(name, 'dmlab30', False, 'deep', True, 10_000_000_000, 8, 1,
                           (*popart, ('action_set', 'popart')), seeds=3)
  transform = 'abs_one' if benchmark == _ATARI else 'none'
  return published.Agent(name, 'atari57', False, 'deep', False, 57 * 200_000_000, 24, 1,
                         (*popart, ('reward_transform', transform)), also=_TEXT)


def agents() -> list[published.Agent]:
  """Returns the agents of the table."""
  return [_agent(name, benchmark)._replace(name=f'{name}, {benchmark}')
          for benchmark in dict.fromkeys(column.benchmark for column in _COLUMNS) for name in _PRINTED]


def name_of(run: runs_lib.Run) -> str:
  """Returns the name that the paper gives to the agent of a run, whatever its levels and its other settings are."""
  if run.agent == 'impala':
    suite = runs_lib.suite_of(run)
    original = suite is not None and suite.name == 'dmlab30' and run.flags.get('action_set', 'impala') == 'impala'
    name = _ORIGINAL if original else _IMPALA
  else:
    name = POPART if run.flags.get('value_normalization') == 'popart' else _MULTI_HEAD
  return _PIXEL + name if run.flags.get('use_pixel_control') else name


def _benchmark_of(run: runs_lib.Run) -> str | None:
  """Returns the benchmark of the table that a run belongs to; None if it was not trained on a whole suite."""
  if run.flags['level_name'] == 'dmlab30':
    return _DMLAB
  if run.flags['level_name'] == 'atari57':
    return _UNCLIPPED if run.flags.get('reward_transform') == 'none' else _ATARI
  return None


def table(runs: Sequence[runs_lib.Run]) -> layout.Table:
  """Makes table 1, with a row for each number of the paper.

  Args:
    runs: evaluated runs.
  """
  gathered, others = {}, []
  for run in runs:
    key = name_of(run), _benchmark_of(run)
    if key[0] in _PRINTED and key[1] and run.flags['off_policy_correction'] == 'vtrace':
      gathered.setdefault(key, []).append(run)
    else:
      others.append(f'{run.logdir} ({key[0]} on {run.flags["level_name"]})')
  keys = dict.fromkeys((name, column.benchmark) for name in _PRINTED for column in _COLUMNS)
  results_of = {key: results.Result(_agent(*key), gathered.get(key, ())) for key in keys}
  columns = ['agent', 'benchmark', 'score (%)', 'paper', 'this run', 'difference', 'run']
  rows = []
  for name, printed in _PRINTED.items():
    for column in _COLUMNS:
      cell = _cell(column, results_of[name, column.benchmark])
      rows.append([name, column.benchmark, column.how, *layout.compared(float(printed[column.field]), cell, 1)])
  notes = ['Random starts: episodes begin with up to 30 no-op actions, as in evaluations with --mode=test. Train: the '
           'mean return of the last 100 training episodes of each level. This run: ± the standard deviation over runs '
           'or populations. ' + results.REWARD_FORM]
  notes += [f'{benchmark}: {result.note}' for (_, benchmark), result in results_of.items() if result.note]
  if others:
    notes.append(f'Not in the table (other agents, other levels, or not V-trace): {", ".join(others)}')
  return layout.Table('Table 1: Summary of results, human-normalised scores', columns, rows, notes)


def _cell(column: _Column, result: results.Result) -> results.Cell:
  if not column.measure:
    return results.Cell(None, _NO_HUMAN_STARTS)
  return result.training_summary(column.measure) if column.training else result.summary(column.measure)


def published_scores(run: runs_lib.Run) -> dict[str, tuple[float, str]]:
  """Returns the paper's score of each agent on the suite of a run, in per cent, and how the agent was scored.

  {} for runs on some levels only.
  """
  benchmark = _benchmark_of(run)
  column = next((column for column in _COLUMNS if column.measure and column.benchmark == benchmark), None)
  return {name: (float(printed[column.field]), column.how) for name, printed in _PRINTED.items()} if column else {}


def summary_measure(run: runs_lib.Run) -> str:
  """Returns the field of scores.SuiteScore that the paper quotes for the suite of a run.

  A run that is not only on Atari games counts as one on DMLab-30.
  """
  is_atari = set(run.flags['level_name'].split(',')) <= {'atari57', *scores.SUITES['atari57'].levels}
  return scores.SUITES['atari57' if is_atari else 'dmlab30'].summary
