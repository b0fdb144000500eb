"""The IMPALA paper's agents and their published scores. Espeholt et al. 2018, tables 3, 4, B.1 and C.1."""

from collections.abc import Mapping, Sequence
import functools
import os
from typing import Any, NamedTuple

from scalable_agents.agents import sweeps
from scalable_agents.environments import suite

rows = functools.partial(suite.rows, folder=os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data'))


# PopArt-IMPALA's settings that differ from IMPALA's. Hessel et al. 2019, "Implementation notes".
POPART_SETTINGS = (('value_normalization', 'popart'), ('popart_decay', 3e-4), ('popart_second_moment', 'literal'))


class Agent(NamedTuple):
  """An agent of a paper that this project can train."""
  name: str        # In the paper's table. For the IMPALA paper: table 3 or 4.
  suite: str
  experts: bool    # True: an agent per level. False: one agent for all levels.
  torso: str
  use_lstm: bool   # Figure 3. Section 5.3.2: no LSTM on Atari.
  frames: int      # Environment frames of training. For an expert: on its level.
  population: int  # Members of the population; 1 without population-based training.
  learners: int
  settings: tuple[tuple[str, Any], ...] = ()  # (name, value) of each that differs from the family's.
  family: str = 'impala'  # Whose settings it has: 'impala', 'a3c', 'r2d2' or 'laser'. See departures.papers.
  samples: int = 1   # Combinations of hyper-parameters in the sweep of which the paper shows the best one.
  seeds: int = 1     # Also repetitions of a whole sweep or population.
  actors: int = 0    # Number of actors, if it changes what an actor does; otherwise 0.
  # (setting, value) of another reading of the paper, if it contradicts itself about the agent.
  also: tuple[tuple[str, Any], ...] = ()


class Paper(NamedTuple):
  """The scores that a paper prints, and those of its agents that this project can train."""
  agents: Sequence[Agent]
  # Suite -> agent -> field of scores.SuiteScore that the paper prints -> per cent. In the order of the paper's table.
  summaries: Mapping[str, Mapping[str, Mapping[str, float]]]
  # Suite -> agent -> level -> raw score, without levels that the paper leaves out. In the order of the paper's table.
  level_scores: Mapping[str, Mapping[str, Mapping[str, float]]]


# The paper's text states no number of frames for DMLab-30. The released code's recipe has 10 billion, and figure 5
# counts the frames of all 30 experts together.
_DMLAB_FRAMES = 10_000_000_000
_ATARI_FRAMES = 200_000_000  # Per game. Section 5.3.2.
_SAMPLES = sweeps.IMPALA.num_samples  # Of agents on DMLab-30 without a population. Table D.1.

AGENTS = {agent.name: agent for agent in (
    Agent('IMPALA, shallow', 'dmlab30', False, 'shallow', True, _DMLAB_FRAMES, 1, 1, samples=_SAMPLES),
    Agent('IMPALA-Experts, deep', 'dmlab30', True, 'deep', True, _DMLAB_FRAMES // 30, 1, 1, samples=_SAMPLES),
    Agent('IMPALA, deep', 'dmlab30', False, 'deep', True, _DMLAB_FRAMES, 1, 1, samples=_SAMPLES),
    Agent('IMPALA, deep, PBT', 'dmlab30', False, 'deep', True, _DMLAB_FRAMES, 24, 1),
    Agent('IMPALA, deep, PBT, 8 learners', 'dmlab30', False, 'deep', True, _DMLAB_FRAMES, 24, 8),
    Agent('IMPALA, shallow, experts', 'atari57', True, 'shallow', False, _ATARI_FRAMES, 1, 1),
    Agent('IMPALA, deep, experts', 'atari57', True, 'deep', False, _ATARI_FRAMES, 1, 1),
    Agent('IMPALA, deep, multi-task', 'atari57', False, 'deep', False, 57 * _ATARI_FRAMES, 24, 1),
    Agent('A3C, deep', 'dmlab30', False, 'deep', True, _DMLAB_FRAMES, 1, 1, family='a3c', samples=_SAMPLES,
          actors=210),  # Section 5.3.1: 7 workers per task.
    Agent('A3C, shallow, experts', 'atari57', True, 'shallow', False, _ATARI_FRAMES, 1, 1, family='a3c'),
    Agent('A3C, deep, experts', 'atari57', True, 'deep', False, _ATARI_FRAMES, 1, 1, family='a3c'),
)}


def level_scores(file: str, level: str, columns: Mapping[str, str]) -> dict[str, dict[str, float]]:
  """Reads the scores per level that a paper prints.

  Args:
    file: name of the CSV file.
    level: its column with the levels.
    columns: agent -> its column with the agent's scores.
  Returns:
    Agent -> level -> score. Empty cells are left out.
  """
  lines = tuple(rows(file))
  return {name: {row[level]: float(row[column]) for row in lines if row[column]} for name, column in columns.items()}


# See Paper. In the order of table 3 or 4.
SUMMARIES: dict[str, dict[str, dict[str, float]]] = {
    'dmlab30': {row['model']: {'mean_capped': float(row['test_mean_capped_hns_pct'])}
                for row in rows('impala_table_3.csv')},
    'atari57': {row['agent']: {name: float(row[f'{name}_hns_pct']) for name in ('median', 'mean')
                               if row[f'{name}_hns_pct']}
                for row in rows('impala_table_4.csv')},
}

# See Paper. In the order of table B.1 or C.1.
LEVEL_SCORES: dict[str, dict[str, dict[str, float]]] = {
    'dmlab30': level_scores('impala_table_B1.csv', 'level', {
        'IMPALA-Experts, deep': 'experts', 'IMPALA, deep, PBT': 'impala'}),
    'atari57': level_scores('impala_table_C1.csv', 'game', {
        'ACKTR': 'acktr', 'Reactor, experts': 'reactor', 'IMPALA, deep, multi-task': 'impala_deep_multitask',
        'IMPALA, shallow, experts': 'impala_shallow', 'IMPALA, deep, experts': 'impala_deep'}),
}

IMPALA = Paper(tuple(AGENTS.values()), SUMMARIES, LEVEL_SCORES)
