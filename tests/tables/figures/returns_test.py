"""Tests of the picture of training returns: its lines against means by hand."""

from absl.testing import absltest
import numpy as np

from scalable_agents.tables.figures import returns
from scalable_agents.tables.papers import returns_table
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_RANDOM_AND_HUMAN = {'pong': (-20.7, 14.6), 'breakout': (1.7, 30.5)}  # Returns, table C.1.


class ReturnsTest(run_directories.TestCase):

  def _run(self, level, seed, shares):
    """Makes a run with an episode after each of equal distances. `shares`: human-normalised scores."""
    random, human = _RANDOM_AND_HUMAN[level]
    run_directories.laser(self.folder, f'{level}_{seed}', [random + share * (human - random) for share in shares],
                          level_name=level, frames=2_000_000, seed=seed)

  def _panels(self, every=1_000_000):
    panels = pictures.panels(self, returns.picture, returns_table.gather(self.read(), every))
    return {axes.get_title('left'): axes for axes in panels}

  def test_lines_are_means_of_seeds_beside_those_of_others(self):
    for seed, last in enumerate((0.2, 0.4, 0.9)):
      self._run('pong', seed, [0.1] * 100 + [last] * 100)
    axes, = self._panels().values()
    lines = pictures.lines(axes)
    self.assertEqual(list(lines), ['LASER, 3 runs', 'DQN (Dopamine), 5 runs', 'Rainbow (Dopamine), 5 runs'])
    np.testing.assert_allclose(lines['LASER, 3 runs'], [-20.7 + 0.1 * 35.3, -20.7 + 0.5 * 35.3])
    area = axes.collections[0].get_paths()[0].vertices
    at_end = area[area[:, 0] == 2_000_000, 1]
    np.testing.assert_allclose((at_end.min(), at_end.max()), (-20.7 + 0.2 * 35.3, -20.7 + 0.9 * 35.3))
    self.assertLen({line.get_linestyle() for line in axes.lines}, 3)

  def test_the_interquartile_mean_of_levels_has_a_panel(self):
    for level, shares in (('pong', (0.1, 0.3)), ('breakout', (0.2, 0.6))):
      for seed, share in enumerate(shares):
        self._run(level, seed, [share] * 200)
    *_, axes = self._panels(500_000).values()
    self.assertEqual((axes.get_title('left'), axes.get_ylabel()),
                     ('interquartile mean of the levels', 'human-normalised score (%)'))
    # The middle half of 10, 20, 30 and 60 %.
    np.testing.assert_allclose(pictures.lines(axes)['LASER, 2 runs'], [25.] * 4)

  def test_a_line_ends_with_its_runs(self):
    self._run('pong', 1, [0.5] * 200)
    run_directories.laser(self.folder, 'long', [1.] * 300, level_name='pong', frames=3_000_000, seed=1,
                          learning_rate=1e-4)
    axes, = self._panels().values()
    self.assertEqual(sorted(len(values) for label, values in pictures.lines(axes).items() if 'LASER' in label), [2, 3])


if __name__ == '__main__':
  absltest.main()
