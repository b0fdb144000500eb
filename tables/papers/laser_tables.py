"""Tables 1 and 2 of Schmitt et al. 2020 (LASER), with the paper's numbers and the results of runs."""

from collections.abc import Sequence

from scalable_agents.environments import scores
from scalable_agents.tables.papers import laser_results
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tables.results import training_returns

_SUMMARY = '1'
NUMBERS = (_SUMMARY, '2')
AGENTS = (runs_lib.LASER, *runs_lib.AGENTS)  # As in config.json. The others are only in figures.
_PAPER = laser_published.PAPER
_KUNG_FU = ('kung_fu_master', 60744.3)  # Table 2 prints 607443.0 for the agent without a sweep.
_HOW = (
    f'This run: the mean return of the last {training_returns.WINDOW} training episodes of a level before the '
    "column's number of frames (appendix D; ours on DMLab-30), ± the standard deviation over repetitions of the "
    'sweep. Of a sweep, the best agent counts. An agent is a combination of learning rate and entropy cost. The best '
    f'one has the highest median score over the levels. "{results.IN_FULL.capitalize()}" means '
    f"{training_returns.WINDOW} episodes, as many frames and agents as in the paper, and the paper's value of every "
    'other setting, except swept ones and the threshold of the trust region, which the paper does not state. Other '
    'differences are named.')


def table(number: str, runs: Sequence[runs_lib.Run]) -> layout.Table:
  """Makes a table.

  Args:
    number: one of NUMBERS.
    runs: runs of AGENTS. They need not be evaluated.
  Raises:
    run_directory.RunDirectoryError: a file of a run is damaged.
  """
  of_agents, notes = laser_results.assign(runs)
  returns = {run.logdir: training_returns.read(run) for group in of_agents.values() for run in group}
  found = {name: laser_results.Result(laser_published.AGENTS[name], group, returns)
           for name, group in of_agents.items()}
  if number == _SUMMARY:
    return _summary_table(found, notes + [result.note for result in found.values() if result.note])
  of_atari = {name: result for name, result in found.items() if laser_published.AGENTS[name].suite == 'atari57'}
  notes += [result.note for result in of_atari.values() if result.note]
  on_dmlab = [run.logdir for name, group in of_agents.items() if name not in of_atari for run in group]
  if on_dmlab:
    notes.append(f'Not Atari: {", ".join(on_dmlab)}')
  level_scores = dict(_PAPER.level_scores['atari57'])
  if of_agents[laser_published.OWN_50M]:
    level_scores[laser_published.OWN_50M] = {}  # The paper has none.
  paper = published.Paper(_PAPER.agents, _PAPER.summaries, {'atari57': level_scores})
  of_levels = paper_tables.PaperTable(number, 'Atari-57 scores', 'atari57', True, 1, paper, ('mean',))
  return paper_tables.make(of_levels, of_atari, [*_disagreements(), *notes], _HOW)


def _summary_table(found, notes) -> layout.Table:
  """Makes table 1, with a row for each number of the paper."""
  numbers = []
  for row in laser_published.ROWS:
    cell = found[row.ours].summary(row.measure) if row.ours else results.Cell(None, 'another agent')
    again = paper_tables.recomputed(row.suite, row.ours, _PAPER) if row.ours else None
    benchmark = f'{paper_tables.BENCHMARKS[row.suite]}, {results.short(row.frames)} frames'
    numbers.append(paper_tables.SummaryNumber(row.agent, benchmark, row.measure, row.printed, again, cell))
  explained = [
      "From its levels: computed from the paper's rows in table 2 with the function that scores runs.",
      "All scores on DMLab-30 are of training episodes. Also PopArt-IMPALA's 73.5 is the training score of its paper, "
      'where the test score is 72.8. `scalable-agents tables --paper=popart_impala` compares runs of this agent.']
  return paper_tables.summary_table(
      numbers, [f'{_HOW} {results.REWARD_FORM}', *explained, *_disagreements(), *notes])


def _disagreements() -> list[str]:
  """Returns notes on numbers of the paper that do not agree."""
  parts = []
  for name, printed in _PAPER.summaries['atari57'].items():
    if again := paper_tables.recomputed('atari57', name, _PAPER):
      parts.append(f'{printed["median"]:g} and {again.median:.1f} ({name})')
  game, intended = _KUNG_FU
  rows = _PAPER.level_scores['atari57'][laser_published.SINGLE_200M]
  other = scores.summarise({**rows, game: intended})
  return [
      f'The medians that the paper prints differ from those of its table 2: {"; ".join(parts)}. Table 2 has the last '
      'returns, probably of one agent. The printed numbers are probably from figure 1: the best agent at each time.',
      f'{laser_published.SINGLE_200M}: the score of {game}, {rows[game]:.1f}, is ten times that of similar agents. '
      f'With {intended} the median would be {other.median:.1f} and the mean {other.mean:.1f}.']
