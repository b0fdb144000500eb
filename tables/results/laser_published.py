"""The LASER paper's agents and their published scores. Schmitt et al. 2020, tables 1 and 2."""

from typing import NamedTuple

from scalable_agents.environments import scores
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs as runs_lib

SHARED_50M, SHARED_200M = 'LASER, shared replay, 50M', 'LASER, shared replay, 200M'
SINGLE_200M = 'LASER, no sweep, 200M'
OWN_50M = 'LASER, own replays, 50M'  # A sweep whose agents have a replay each. The paper prints no scores per game.
RAINBOW = 'Rainbow, 200M'
SHARED_DMLAB, OWN_DMLAB = 'LASER, shared replay', 'LASER, own replays'
PIXEL_POPART = 'PopArt-IMPALA+PixelControl'  # Trained by the authors of LASER, so it is not in the PopArt paper.


class Row(NamedTuple):
  """A number in table 1."""
  agent: str    # In the paper's words.
  suite: str
  frames: int   # Environment frames, per game on Atari-57.
  measure: str  # Field of scores.SuiteScore.
  printed: float
  ours: str | None  # Name of the agent in PAPER; None if it is an agent of another paper.


_OURS = {  # Agent in table 1, suite, millions of frames -> name in PAPER.
    ('LASER: Experience Replay (no sweep)', 'atari57', 200): SINGLE_200M,
    ('LASER: Experience Replay', 'atari57', 50): OWN_50M,
    ('LASER: Shared Experience Replay', 'atari57', 50): SHARED_50M,
    ('LASER: Shared Experience Replay', 'atari57', 200): SHARED_200M,
    ('LASER: Experience Replay', 'dmlab30', 10_000): OWN_DMLAB,
    ('LASER: Shared Experience Replay', 'dmlab30', 10_000): SHARED_DMLAB,
    ('PopArt-IMPALA+PixelControl (their implementation)', 'dmlab30', 10_000): PIXEL_POPART,
}


def _rows() -> list[Row]:
  found = []
  for row in published.rows('laser_table_1.csv'):
    for suite, measure, column in (('atari57', 'median', 'atari_median_hns_pct'),
                                   ('dmlab30', 'median', 'dmlab30_median_hns_pct'),
                                   ('dmlab30', 'mean_capped', 'dmlab30_mean_capped_hns_pct')):
      if row[column]:
        millions = (int(row['atari_env_frames_millions']) if suite == 'atari57'
                    else 1000 * int(row['dmlab30_env_frames_billions']))
        found.append(Row(row['agent'], suite, 1_000_000 * millions, measure, float(row[column]),
                         _OURS.get((row['agent'], suite, millions))))
  return found


ROWS = _rows()
# The agent without a sweep, section 5.1. Its learning rate is annealed, as IMPALA's.
_SINGLE = (('batch_size', 256), ('replay_share', 0.875), ('replay_capacity', 15_000_000), ('learning_rate_decay', True))


_DMLAB_REPETITIONS = 3  # Of a sweep. Appendix A.3.


def _agent(name: str, frames: int, population: int = 9, settings: tuple = ()) -> published.Agent:
  repetitions = 2 if frames == 50_000_000 else 1  # Figure 1.
  return published.Agent(name, 'atari57', True, 'deep_4x', False, frames, population, 1, settings, runs_lib.LASER,
                         seeds=repetitions)


def _dmlab_agent(name: str) -> published.Agent:
  return published.Agent(name, 'dmlab30', False, 'deep', True, 10_000_000_000, 10, 1, (), runs_lib.LASER,
                         seeds=_DMLAB_REPETITIONS)


# Section 5.1: sweeps on DMLab-30 have 10 agents, also those with population-based training.
_PIXEL_POPART = published.Agent(
    PIXEL_POPART, 'dmlab30', False, 'deep', True, 10_000_000_000, 10, 1,
    (*published.POPART_SETTINGS, ('action_set', 'popart'), ('use_pixel_control', True)),
    seeds=_DMLAB_REPETITIONS)


PAPER = published.Paper(
    agents=(  # Their population is the number of agents in the sweep.
        _agent(SHARED_50M, 50_000_000), _agent(SHARED_200M, 200_000_000), _agent(SINGLE_200M, 200_000_000, 1, _SINGLE),
        _agent(OWN_50M, 50_000_000), _dmlab_agent(SHARED_DMLAB), _dmlab_agent(OWN_DMLAB), _PIXEL_POPART),
    summaries={suite: {name: {row.measure: row.printed for row in ROWS if row.ours == name}
                       for name in dict.fromkeys(row.ours for row in ROWS if row.ours and row.suite == suite)}
               for suite in scores.SUITES},
    level_scores={'atari57': published.level_scores('laser_table_2.csv', 'game', {
        SHARED_50M: 'laser_shared_50M', SHARED_200M: 'laser_shared_200M', SINGLE_200M: 'laser_no_sweep_200M',
        RAINBOW: 'rainbow_200M'})})
AGENTS = {agent.name: agent for agent in PAPER.agents}
