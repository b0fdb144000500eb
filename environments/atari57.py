"""The Atari-57 suite: its games, with the scores of a random policy and of a human.

The scores are those that the four papers normalise with: no-op starts, a professional human tester. For video_pinball
the papers' own means only come out with a random score of 0.0, where other sources give 16256.9; the file has both
(`random_paper` and `random`), and the papers' is used.
"""

from scalable_agents.environments import suite

SCORES: dict[str, suite.ReferenceScores] = {
    row['game']: suite.ReferenceScores(float(row['random_paper']), float(row['human']))
    for row in suite.rows('atari57_scores.csv')}
LEVELS: tuple[str, ...] = tuple(SCORES)
# Espeholt et al. 2018 (IMPALA), section 5.3.2; it names no cap, the later papers' 30 minutes stand for it.
SUITE = suite.Suite('atari57', LEVELS, LEVELS, SCORES, 'median', test_episodes=200, noop_max=30,
                    max_episode_frames=108_000)
