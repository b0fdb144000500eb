"""Tables 1, 3 and 4 of Kapturowski et al. 2019 (R2D2), with the paper's numbers and the results of runs."""

from collections.abc import Iterable, Sequence

from scalable_agents.environments import scores
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

AGENTS = (runs_lib.R2D2, 'impala')  # As in config.json. Runs of IMPALA may be re-runs in tables 1 and 3.
_PAPER = r2d2_published.PAPER
_SUMMARY = '1'
_OF_LEVELS = {table.number: table for table in (
    paper_tables.PaperTable('3', 'DMLab-30 scores', 'dmlab30', True, 1, _PAPER),
    paper_tables.PaperTable('4', 'Atari-57 scores', 'atari57', True, 1, _PAPER),
)}
NUMBERS = (_SUMMARY, *_OF_LEVELS)
_SEEDS = ("The paper's scores: R2D2 and R2D2+ are means over 3 seeds. The feed-forward variant, IMPALA and Ape-X have "
          'one seed. Ape-X has its best score in training, the others have final scores. The paper does not state the '
          "number of evaluation episodes, so it is the IMPALA paper's. R2D2 in full also has 256 actors and the "
          "paper's number of seeds.")
_EXPERTS = 'IMPALA-Experts, deep'  # In the IMPALA paper.


def agent_of(run: runs_lib.Run, agents: Iterable[published.Agent]) -> published.Agent | None:
  """Returns the agent of the paper that corresponds to a run, in full, scaled down or with other settings.

  A run of R2D2 on a single level is R2D2+ if it has the deep network and asymmetric rewards, the feed-forward variant
  if it has no LSTM, and otherwise R2D2. A run of IMPALA is one of the re-runs. Returns None if there is no such agent.
  """
  if run.agent != runs_lib.R2D2:
    return runs_lib.agent_of(run, agents)
  suite = runs_lib.suite_of(run)
  if suite is None or not runs_lib.is_expert(run):
    return None
  name = r2d2_published.FEED_FORWARD if not run.flags['use_lstm'] else (
      r2d2_published.PLUS if r2d2_variants.is_plus(run) else r2d2_published.R2D2)
  return next((agent for agent in agents if (agent.suite, agent.name) == (suite.name, name)), None)


def table(number: str, runs: Sequence[runs_lib.Run]) -> layout.Table:
  """Makes a table.

  Args:
    number: one of NUMBERS.
    runs: evaluated runs.
  """
  shown, notes = _without_ablations(runs)
  if number == _SUMMARY:
    return _summary_table(shown, notes)
  of_levels = _OF_LEVELS[number]
  gathered, others = paper_tables.gather(of_levels, shown, agent_of)
  humans = _other_humans() if of_levels.suite == 'atari57' else []
  return paper_tables.make(of_levels, gathered, [_SEEDS, *humans, *others, *notes])


def _without_ablations(runs: Sequence[runs_lib.Run]) -> tuple[list[runs_lib.Run], list[str]]:
  """Leaves out ablations of an agent if there are also runs with fewer ablations. Returns the others, and a note."""
  by_agent = runs_lib.grouped(runs, lambda run: agent_of(run, _PAPER.agents))
  left_out = {}  # Directory -> variant.
  for agent, of_agent in by_agent.items():
    if agent and agent.family == runs_lib.R2D2:
      fewest = min(len(r2d2_variants.ablations(run)) for run in of_agent)
      left_out |= {run.logdir: r2d2_variants.variant(run) for run in of_agent
                   if len(r2d2_variants.ablations(run)) > fewest}
  if not left_out:
    return list(runs), []
  text = ', '.join(f'{logdir} ({variant})' for logdir, variant in left_out.items())
  return ([run for run in runs if run.logdir not in left_out], [f'Ablations, which are not in the table: {text}'])


def _summary_table(runs, notes) -> layout.Table:
  """Makes table 1, with a row for each number of the paper."""
  gathered, others = paper_tables.assign(_PAPER.agents, runs, agent_of)
  trained = {(agent.name, agent.suite): result for agent, result in gathered.items()}
  numbers = []
  names = dict.fromkeys(row['agent'] for row in published.rows('r2d2_table_1.csv'))
  for name, suite in ((name, suite) for name in names for suite in paper_tables.BENCHMARKS):
    again = _recomputed(suite, name)
    for measure, printed in _PAPER.summaries[suite].get(name, {}).items():
      result = trained.get((name, suite))
      cell = result.summary(measure) if result else results.Cell(None, results.NOT_RUN)
      numbers.append(paper_tables.SummaryNumber(name, paper_tables.BENCHMARKS[suite], measure, printed, again, cell))
  original = published.SUMMARIES['dmlab30'][_EXPERTS]['mean_capped']
  explained = [
      "From its levels: computed from the paper's rows in tables 3 and 4 with the function that scores runs. The paper "
      'rounds those rows.',
      f"{r2d2_published.ORIGINAL}, DMLab-30: from the rows of the IMPALA paper's table B.1. That paper prints "
      f'{original} for the mean capped score.',
      paper_tables.explanation(*paper_tables.BENCHMARKS), _SEEDS]
  return paper_tables.summary_table(numbers, explained + others + notes)


def _recomputed(suite: str, name: str) -> scores.SuiteScore | None:
  if (suite, name) == ('dmlab30', r2d2_published.ORIGINAL):
    return paper_tables.recomputed(suite, _EXPERTS)
  return paper_tables.recomputed(suite, name, _PAPER)


def _other_humans() -> list[str]:
  """Returns a note on the human scores in table 4 that differ from those that the scores are computed with."""
  reference = scores.SUITES['atari57'].scores
  printed = ', '.join(f'{game} {score}' for game, score in r2d2_published.HUMAN.items()
                      if score != reference[game].human)
  return [f'Human: the scores that the human-normalised scores are computed with. The paper prints {printed}.']
