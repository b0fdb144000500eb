"""The Atari-57 suite: its games, with the scores of a random policy and of a human.

The four papers use these scores for normalisation. They were measured with no-op starts; the human was a professional
tester. For video_pinball, other sources state a random score of 16256.9, but the papers' means follow only from a score
of 0.0. The file has both (`random_paper` and `random`). The papers' score is used.
"""

from scalable_agents.environments import suite

SCORES: dict[str, suite.ReferenceScores] = {
    row['game']: suite.ReferenceScores(float(row['random_paper']), float(row['human']))
    for row in suite.rows('atari57_scores.csv')}
LEVELS: tuple[str, ...] = tuple(SCORES)
# Espeholt et al. 2018 (IMPALA), section 5.3.2. It states no limit on frames; the 30 minutes are those of later papers.
SUITE = suite.Suite('atari57', LEVELS, LEVELS, SCORES, 'median', test_episodes=200, noop_max=30,
                    max_episode_frames=108_000)
