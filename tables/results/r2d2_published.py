"""The R2D2 paper's agents and their published scores. Kapturowski et al. 2019, tables 1, 3 and 4."""

from scalable_agents.environments import scores
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs as runs_lib

R2D2, PLUS, FEED_FORWARD = 'R2D2', 'R2D2+', 'R2D2, feed-forward'
ORIGINAL = 'IMPALA, deep (original)'  # The experts of Espeholt et al. 2018.
_SHALLOW, _DEEP = 'IMPALA, shallow (re-run)', 'IMPALA, deep (re-run)'

_FRAMES = 10_000_000_000  # Per level. Caption of table 1, of DMLab-30; for Atari the text has none.
_POLICY = ('test_policy', 'epsilon 0.001')  # The paper does not name an epsilon. This is the default of the binaries.
_ATARI = (('full_action_set', True), ('episode_end_on_life_loss', False), _POLICY)
_ACTIONS = ('action_set', 'popart')
_DMLAB = (_ACTIONS, _POLICY)
# Section 4.2 and the caption of table 1.
_PLUS = (*_DMLAB, ('reward_transform', 'soft_asymmetric'), ('target_update_interval', 400), ('batch_size', 32),
         ('samples_per_period', 0.77))


def _agent(name: str, suite: str, torso: str, use_lstm: bool, settings: tuple, seeds: int = 3) -> published.Agent:
  """Returns an agent with the paper's number of actors, table 2. Caption of table 1: 3 seeds, feed-forward 1 seed."""
  return published.Agent(name, suite, True, torso, use_lstm, _FRAMES, 1, 1, settings, runs_lib.R2D2, seeds=seeds,
                         actors=256)


def _summaries(suite: str) -> dict[str, dict[str, float]]:
  """Returns the numbers of table 1. Agents without numbers for the suite are left out."""
  found = {row['agent']: {name: float(row[f'{suite}_{name}']) for name in scores.SuiteScore._fields
                          if row.get(f'{suite}_{name}')} for row in published.rows('r2d2_table_1.csv')}
  return {agent: printed for agent, printed in found.items() if printed}


PAPER = published.Paper(
    agents=(
        _agent(R2D2, 'atari57', 'dqn', True, _ATARI), _agent(FEED_FORWARD, 'atari57', 'dqn', False, _ATARI, seeds=1),
        _agent(R2D2, 'dmlab30', 'dqn', True, _DMLAB), _agent(PLUS, 'dmlab30', 'deep', True, _PLUS),
        # IMPALA with the larger action set and as many frames. Section 4.2.
        published.Agent(_SHALLOW, 'dmlab30', True, 'shallow', True, _FRAMES, 1, 1, (_ACTIONS,)),
        published.Agent(_DEEP, 'dmlab30', True, 'deep', True, _FRAMES, 1, 1, (_ACTIONS,))),
    summaries={suite: _summaries(suite) for suite in scores.SUITES},
    level_scores={'dmlab30': published.level_scores('r2d2_table_3.csv', 'level', {
                      _SHALLOW: 'impala_shallow_rerun', _DEEP: 'impala_deep_rerun', R2D2: 'r2d2', PLUS: 'r2d2_plus'}),
                  'atari57': published.level_scores('r2d2_table_4.csv', 'game', {
                      'Reactor': 'reactor', 'IMPALA, shallow (original)': 'impala_shallow', ORIGINAL: 'impala_deep',
                      'Ape-X': 'apex', R2D2: 'r2d2'})})

# Table 4 also prints a human's scores.
HUMAN = published.level_scores('r2d2_table_4.csv', 'game', {'human': 'human'})['human']
