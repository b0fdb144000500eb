"""What the papers' results cost: the frames of each agent that is trained, and core-days and GPU-days at known rates.

tables/data/rates.csv is the only place with these rates. Its columns:

  family, suite, torso, lstm,          the agents that a row is for. `learned` is the number of transitions that LASER
    learned, learners                  learns from per new agent step, and 1 for all other agents
  step_ms                              processor time per agent step of all that a run does, environments included;
                                       measured here, empty if it was not
  environment_ms                       processor time per agent step of the environment alone
  experts_environment_ms               the same where each level has as many steps as any other, because each has an
                                       agent of its own; empty if it is the same. Levels of one agent share the time
                                       evenly, so that most steps are those of fast levels
  reported_frames_per_second, gpus     what the paper reports, and with how many GPUs
  measured, reported                   where the numbers come from
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scalable_agents.environments import scores
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import popart_tables
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published

_FRAMES_PER_STEP = 4  # All four papers.
_SECONDS_PER_DAY = 86_400
_PAPERS = {'IMPALA': published.IMPALA, 'PopArt': published.Paper(popart_tables.agents(), {}, {}),
           'R2D2': r2d2_published.PAPER, 'LASER': laser_published.PAPER}
_TABLES = {  # The table that has all agents of a paper on a suite, and that with scores of levels.
    ('IMPALA', 'dmlab30'): ('3', 'B.1'), ('IMPALA', 'atari57'): ('4', 'C.1'), ('PopArt', 'dmlab30'): ('1', ''),
    ('PopArt', 'atari57'): ('1', ''), ('R2D2', 'dmlab30'): ('1', '3'), ('R2D2', 'atari57'): ('1', '4'),
    ('LASER', 'dmlab30'): ('1', ''), ('LASER', 'atari57'): ('1', '2')}
_COLUMNS = ('paper', 'table', 'agent', 'suite', 'runs', 'frames (billions)', 'core-days here', 'of environments',
            'GPU-days reported')


class Rate(NamedTuple):
  """A row of rates.csv. None: not known."""
  step_seconds: float | None         # Per agent step, of one core.
  environment_seconds: float | None
  experts_environment_seconds: float | None
  reported_frames_per_second: float | None
  gpus: int
  measured: str
  reported: str

  def of_experts(self) -> 'Rate':
    """Returns the rate of agents for one level each."""
    if self.environment_seconds is None or self.experts_environment_seconds is None:
      return self
    more = self.experts_environment_seconds - self.environment_seconds
    return self._replace(step_seconds=None if self.step_seconds is None else self.step_seconds + more,
                         environment_seconds=self.experts_environment_seconds)


class Cost(NamedTuple):
  """What an agent of a paper costs: all runs from which its numbers come."""
  paper: str
  agent: published.Agent
  runs: int    # Levels of experts x samples of hyper-parameters or members of a population x seeds.
  frames: int  # Environment frames of all runs.
  rate: Rate

  @property
  def core_days(self) -> float | None:
    """Days of one core that also computes the network."""
    return self._days(self.rate.step_seconds)

  @property
  def environment_core_days(self) -> float | None:
    """Days of one core for the environments alone."""
    return self._days(self.rate.environment_seconds)

  @property
  def gpu_days(self) -> float | None:
    """Days of one GPU at the rate that the paper reports."""
    speed = self.rate.reported_frames_per_second
    return self.frames / speed * self.rate.gpus / _SECONDS_PER_DAY if speed else None

  def _days(self, seconds_per_step):
    return None if seconds_per_step is None else self.frames / _FRAMES_PER_STEP * seconds_per_step / _SECONDS_PER_DAY


def learned_per_step(agent: published.Agent) -> int:
  """Returns the number of transitions that LASER learns from per new agent step, and 1 for all other agents."""
  if agent.family != 'laser':
    return 1
  settings = dict(agent.settings)
  return 8 if agent.suite == 'dmlab30' or settings.get('batch_size') == 256 else 5


def costs() -> Iterator[Cost]:
  """Yields the cost of each agent that a paper trains, in the order of the papers' tables."""
  rates = _rates()
  for name, paper in _PAPERS.items():
    for agent in paper.agents:
      levels = len(scores.SUITES[agent.suite].levels) if agent.experts else 1
      runs = levels * agent.population * agent.samples * agent.seeds
      key = agent.family, agent.suite, agent.torso, agent.use_lstm, learned_per_step(agent), agent.learners
      rate = rates[key].of_experts() if agent.experts else rates[key]
      yield Cost(name, agent, runs, runs * agent.frames, rate)


def _tables(cost: Cost) -> str:
  """Returns the numbers of the paper's tables that have the agent."""
  agent = cost.agent
  summary, of_levels = _TABLES[cost.paper, agent.suite]
  return f'{summary}, {of_levels}' if agent.name in _PAPERS[cost.paper].level_scores.get(agent.suite, ()) else summary


def table() -> layout.Table:
  """Makes the table of all papers."""
  made: list[Sequence[str | layout.Number]] = []
  sources: dict[str, None] = {}  # In the order of their first use.
  for cost in costs():
    suite = cost.agent.suite
    made.append((cost.paper, _tables(cost), cost.agent.name, suite, layout.Number(cost.runs, 0),
                 layout.Number(cost.frames / 1e9, 1), layout.Number(cost.core_days, 0),
                 layout.Number(cost.environment_core_days, 0), layout.Number(cost.gpu_days, 1)))
    sources |= dict.fromkeys(source for source in (cost.rate.measured, cost.rate.reported) if source)
  return layout.Table(
      'What the results of the papers cost', _COLUMNS, made,
      ['A run is one level of experts, one sample of hyper-parameters or member of a population, and one seed '
       'or repetition.',
       'Core-days here: the CPU computes the network, too. Of environments: the part that stays on the CPU with a GPU.',
       "PopArt and pixel control: IMPALA's rates.",
       "R2D2 on Atari: 10 billion frames per game are this project's default. The paper has none (docs/fidelity.md).",
       'Agents of one level each on DMLab-30 take longer: slow levels have as many steps as fast ones. Levels of one '
       'agent share the time evenly.',
       *sources])


def _rates() -> dict[tuple[str, str, str, bool, int, int], Rate]:
  """Reads rates.csv: (family, suite, torso, LSTM, transitions learned from per new step, learners) -> Rate."""
  def number(text, factor=1.):
    return float(text) * factor if text else None

  return {(row['family'], row['suite'], row['torso'], row['lstm'] == 'yes', int(row['learned']), int(row['learners'])):
          Rate(number(row['step_ms'], 1e-3), number(row['environment_ms'], 1e-3),
               number(row['experts_environment_ms'], 1e-3), number(row['reported_frames_per_second']),
               int(row['gpus'] or 0), row['measured'], row['reported'])
          for row in published.rows('rates.csv')}
