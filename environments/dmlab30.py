"""The DMLab-30 suite: its levels, with the scores of a random policy and of a human.

Espeholt et al. 2018 (IMPALA), table B.1. The scores are the unrounded ones of the released code, except that it has
small and large of the four LaserTag levels exchanged: here they are labelled as in the paper, whose own means only come
out so. Two levels have a version for testing, and the scores of both are those of the test version, as in the release.
"""

from scalable_agents.environments import suite

_ROWS = tuple(suite.rows('dmlab30_scores.csv'))

LEVELS: tuple[str, ...] = tuple(row['level'] for row in _ROWS)
TEST_LEVELS: tuple[str, ...] = tuple(row['test_level'] for row in _ROWS)
SCORES: dict[str, suite.ReferenceScores] = {
    name: suite.ReferenceScores(float(row['random']), float(row['human']))
    for row in _ROWS for name in (row['level'], row['test_level'])}
SUITE = suite.Suite('dmlab30', LEVELS, TEST_LEVELS, SCORES, 'mean_capped', test_episodes=500)  # Section 5.3.1.
