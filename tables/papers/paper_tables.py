"""Tables of a paper with its numbers and the results of runs. TABLES are those of Espeholt et al. 2018 (IMPALA)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from scalable_agents.environments import scores
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

ABOVE_HUMAN = 'above_human'  # A field of scores.SuiteScore, which is a number of levels. The others are in per cent.
BENCHMARKS = {'atari57': 'Atari-57', 'dmlab30': 'DMLab-30'}
MEASURES = {'mean_capped': 'mean capped', 'median': 'median', 'mean': 'mean', ABOVE_HUMAN: 'levels above human'}
_AgentOf = Callable[[runs_lib.Run, Iterable[published.Agent]], published.Agent | None]


class PaperTable(NamedTuple):
  """A table of a paper about one suite."""
  number: str
  title: str
  suite: str
  of_levels: bool  # True: a row per level. False: a row per agent.
  decimals: int    # Digits after the point in the paper.
  paper: published.Paper = published.IMPALA
  more_measures: Sequence[str] = ()  # Fields of scores.SuiteScore that the paper does not print.


class SummaryNumber(NamedTuple):
  """A number in a table about both suites."""
  agent: str      # In the paper's words.
  benchmark: str  # The suite, and the frames if the paper has several numbers.
  measure: str    # Field of scores.SuiteScore.
  printed: float
  again: scores.SuiteScore | None  # From `recomputed`.
  cell: results.Cell  # The runs' result.


class Result(Protocol):
  """The results of the runs of an agent: results.Result and laser_results.Result."""

  def level(self, level: str) -> results.Cell: ...
  def summary(self, measure: str) -> results.Cell: ...


TABLES = {table.number: table for table in (
    PaperTable('3', 'Mean capped human-normalised score on DMLab-30 (%)', 'dmlab30', False, 1),
    PaperTable('4', 'Human-normalised scores on Atari-57 (%)', 'atari57', False, 1),
    PaperTable('B.1', 'DMLab-30 test scores', 'dmlab30', True, 1),
    PaperTable('C.1', 'Atari scores', 'atari57', True, 2),
)}


def levels_table(suite: str) -> PaperTable:
  """Returns the IMPALA paper's table with a row per level of a suite."""
  return next(table for table in TABLES.values() if table.suite == suite and table.of_levels)


def agents(table: PaperTable) -> list[published.Agent]:
  """Returns the agents of a table that this project can train."""
  names = (table.paper.level_scores if table.of_levels else table.paper.summaries)[table.suite]
  trained = {agent.name: agent for agent in table.paper.agents if agent.suite == table.suite}
  return [trained[name] for name in names if name in trained]


def gather(table: PaperTable, runs: Sequence[runs_lib.Run],
           agent_of: _AgentOf = runs_lib.agent_of) -> tuple[dict[str, results.Result], list[str]]:
  """Assigns each run to an agent of the table.

  Args:
    table: the table.
    runs: evaluated runs.
    agent_of: see `assign`.
  Returns:
    A dict from the name of each agent of `agents` to its result, and notes on runs that the table does not show.
  """
  found, notes = assign(agents(table), runs, agent_of)
  return {agent.name: result for agent, result in found.items()}, notes


def assign(wanted: Iterable[published.Agent], runs: Sequence[runs_lib.Run],
           agent_of: _AgentOf = runs_lib.agent_of) -> tuple[dict[published.Agent, results.Result], list[str]]:
  """Assigns each run to one of several agents.

  Args:
    wanted: the agents.
    runs: evaluated runs.
    agent_of: returns the one of several agents that corresponds to a run, or None.
  Returns:
    A dict from each agent to its result, and notes on runs that are not shown.
  """
  of_agent = {agent: [] for agent in wanted}
  others = {}  # Description -> directories.
  for run in runs:
    agent = agent_of(run, of_agent)
    if agent is None:
      others.setdefault(runs_lib.describe(run), []).append(run.logdir)
    else:
      of_agent[agent].append(run)
  notes = [f'None of these agents ({description}): {", ".join(logdirs)}' for description, logdirs in others.items()]
  gathered = {agent: results.Result(agent, found) for agent, found in of_agent.items()}
  return gathered, notes + [result.note for result in gathered.values() if result.note]


def make(table: PaperTable, gathered: Mapping[str, Result], notes: Sequence[str], explained: str = '') -> layout.Table:
  """Makes the table to print.

  Args:
    table: the table.
    gathered: agent -> its result. With `notes` from `gather`.
    notes: lines below the table.
    explained: the note on the numbers of runs. Default: `explanation`.
  """
  how = explained or explanation(table.suite)
  return (_levels_table if table.of_levels else _agents_table)(table, gathered, [how, *notes])


def recomputed(suite: str, agent: str, paper: published.Paper = published.IMPALA) -> scores.SuiteScore | None:
  """Scores the paper's own rows with the function that scores runs. Returns None if the paper's rows are incomplete."""
  means = paper.level_scores.get(suite, {}).get(agent, {})
  return scores.summarise(means) if len(means) == len(scores.SUITES[suite].test_levels) else None


def summary_table(numbers: Iterable[SummaryNumber], notes: Sequence[str]) -> layout.Table:
  """Makes a table 1 of scores on both suites, with a row for each number of the paper."""
  columns = ['agent', 'benchmark', 'score', 'paper', 'from its levels', 'this run', 'difference', 'run']
  rows = []
  for agent, benchmark, measure, printed, again, cell in numbers:
    paper, *run = layout.compared(printed, cell, _decimals(measure, 1))
    rows.append([agent, benchmark, _label(measure), paper, _from_levels(again, measure), *run])
  return layout.Table('Table 1: Human-normalised scores on Atari-57 and DMLab-30', columns, rows, notes)


def _from_levels(again: scores.SuiteScore | None, measure: str) -> layout.Number:
  return layout.Number(getattr(again, measure) if again else None, _decimals(measure, 2))


def _label(measure: str) -> str:
  return MEASURES[measure] if measure == ABOVE_HUMAN else f'{MEASURES[measure]} (%)'


def _decimals(measure: str, of_percents: int) -> int:
  return 0 if measure == ABOVE_HUMAN else of_percents


def _measures(table: PaperTable) -> list[str]:
  """Returns the fields of scores.SuiteScore that the table has."""
  printed = {name for summary in table.paper.summaries[table.suite].values() for name in summary}
  return [name for name in MEASURES if name in printed or name in table.more_measures]


def _agents_table(table, gathered, notes) -> layout.Table:
  measures = _measures(table)
  columns = ['agent']
  for measure in measures:
    name = MEASURES[measure]
    paper, run, difference, extent = layout.comparison_columns(name)
    columns += [paper, f'{name}: from its levels', run, difference]
  columns.append('run')
  rows = []
  for agent, printed in table.paper.summaries[table.suite].items():
    row = [agent]
    again = recomputed(table.suite, agent, table.paper)
    for measure in measures:
      cell = gathered[agent].summary(measure) if agent in gathered else results.Cell(None, results.NOT_RUN)
      paper, run, difference, extent = layout.compared(printed.get(measure), cell, table.decimals)
      row += [paper, _from_levels(again, measure), run, difference]
    rows.append([*row, extent])  # The extent is the same for every measure.
  explained = (f"From its levels: computed from the paper's rows in table {levels_table(table.suite).number} with the "
               'function that scores runs. The paper rounds those rows.')
  return layout.Table(f'Table {table.number}: {table.title}', columns, rows,
                      [explained, *notes])


def _levels_table(table, gathered, notes) -> layout.Table:
  """Makes a table with a row per level. Below are the suite's scores, as printed and as computed from these rows."""
  columns = ['level', 'human', 'random']
  by_agent = table.paper.level_scores[table.suite]
  for agent in by_agent:
    # Agents of other papers have only the column with the paper's numbers.
    columns += layout.comparison_columns(agent)[:None if agent in gathered else 1]
  suite = scores.SUITES[table.suite]
  rows = []
  for level in by_agent[agents(table)[0].name]:  # In the paper's order.
    reference = suite.scores[level]
    row = [level, layout.Number(reference.human, 1), layout.Number(reference.random, 1)]
    for agent, means in by_agent.items():
      if agent in gathered:
        row += layout.compared(means.get(level), gathered[agent].level(level), table.decimals)
      else:
        row.append(layout.Number(means.get(level), table.decimals))
    rows.append(row)
  none = [layout.Number(None, 0)] * 2
  for measure in _measures(table):
    label = _label(measure)
    printed, again = [label, *none], [f'{label}, from these rows', *none]
    for agent in by_agent:
      paper = table.paper.summaries[table.suite].get(agent, {}).get(measure)
      summary = recomputed(table.suite, agent, table.paper)
      from_rows = getattr(summary, measure) if summary else None
      if agent in gathered:
        cell = gathered[agent].summary(measure)
        printed += layout.compared(paper, cell, _decimals(measure, 1))
        again += layout.compared(from_rows, cell, _decimals(measure, 2))
      else:
        printed.append(layout.Number(paper, _decimals(measure, 1)))
        again.append(layout.Number(from_rows, _decimals(measure, 2)))
    rows += [again] if measure in table.more_measures else [printed, again]
  return layout.Table(f'Table {table.number}: {table.title}', columns, rows, notes)


def explanation(*suites: str) -> str:
  """Returns the note on the numbers of runs in a table about these suites."""
  episodes = ' or '.join(str(scores.SUITES[suite].test_episodes) for suite in suites)
  text = ('This run: computed from the mean return of evaluation episodes, ± the standard deviation over seeds. '
          f'"{results.IN_FULL.capitalize()}" means {episodes} episodes per level, as many frames of training, '
          "hyper-parameters of a sweep, members of a population and learners as in the paper, and the paper's value of "
          'every other setting, except settings that the paper swept or tuned for the agent. Other differences are '
          'named.')
  return f'{text} {results.REWARD_FORM}' if 'dmlab30' in suites else text
