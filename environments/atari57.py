"""The Atari-57 suite: its games, with the scores of a random policy and of a human.

The papers on IMPALA, PopArt, R2D2 and LASER normalise with these scores. They were measured with no-op starts. The
human was a professional games tester. For video_pinball, other sources state a random score of 16256.9, but the papers'
means follow only from a score of 0.0. The CSV file has both (`random_paper` and `random`). This module uses the score
of the papers.
"""

from scalable_agents.environments import suite

SCORES: dict[str, suite.ReferenceScores] = {
    row['game']: suite.ReferenceScores(float(row['random_paper']), float(row['human']))
    for row in suite.rows('atari57_scores.csv')}
LEVELS: tuple[str, ...] = tuple(SCORES)
MAX_EPISODE_FRAMES = 108_000  # environment frames, 30 minutes: the limit of later papers; IMPALA's states none.
# Espeholt et al. 2018 (IMPALA), section 5.3.2.
SUITE = suite.Suite('atari57', LEVELS, LEVELS, SCORES, 'median', test_episodes=200, noop_max=30,
                    max_episode_frames=MAX_EPISODE_FRAMES)
