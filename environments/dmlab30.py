"""The DMLab-30 suite: its levels, with the scores of a random policy and of a human.

Espeholt et al. 2018 (IMPALA), table B.1. The scores are the unrounded scores of the released code, with one exception:
the released code exchanges the scores of the small and the large levels of LaserTag. Here these four levels have the
scores that the paper gives them, because the paper's means follow only from these. Two levels have a test version. Both
versions have the scores of the test version, as in the released code.
"""

from scalable_agents.environments import suite

_ROWS = tuple(suite.rows('dmlab30_scores.csv'))

LEVELS: tuple[str, ...] = tuple(row['level'] for row in _ROWS)
TEST_LEVELS: tuple[str, ...] = tuple(row['test_level'] for row in _ROWS)
SCORES: dict[str, suite.ReferenceScores] = {
    name: suite.ReferenceScores(float(row['random']), float(row['human']))
    for row in _ROWS for name in (row['level'], row['test_level'])}
SUITE = suite.Suite('dmlab30', LEVELS, TEST_LEVELS, SCORES, 'mean_capped', test_episodes=500)  # Section 5.3.1.
