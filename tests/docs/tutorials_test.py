"""Tests the examples and the pages that show them: they have at most 40 lines of code each, and they learn."""

import ast
import pathlib
import sys

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import registry
from scalable_agents.processes import python_path
from scalable_agents.tests import source_tree
from scalable_agents.tests.agents import training_runs
from scalable_agents.tests.training import training

_EXAMPLES = source_tree.ROOT / 'examples'
_PAGES = {'grid_world': 'environment', 'corridor': 'environment', 'reward_prediction': 'loss', 'q_learner': 'agent'}


def setUpModule():
  training.configure_tensorflow()


def _code(text):
  """Returns the numbers of the lines of a module that are code: no imports, docstrings, comments or empty lines."""
  tree = ast.parse(text)
  documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
  others = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and ast.get_docstring(node)]
  others += [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
  left_out = {number for node in others for number in range(node.lineno, node.end_lineno + 1)}
  return [number for number, line in enumerate(text.splitlines(), 1)
          if line.strip() and not line.strip().startswith('#') and number not in left_out]


class ExamplesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.enter_context(absltest.mock.patch.object(sys, 'path', [*sys.path, str(_EXAMPLES)]))

  def test_each_is_on_a_page(self):
    self.assertCountEqual(_PAGES, [path.stem for path in _EXAMPLES.glob('*.py')])

  @parameterized.parameters(*_PAGES.items())
  def test_the_page_shows_the_whole_file_of_at_most_40_lines(self, example, page):
    code = pathlib.Path(_EXAMPLES, f'{example}.py').read_text(encoding='utf-8')
    text = (source_tree.ROOT / 'docs' / 'tutorials' / f'{page}.md').read_text(encoding='utf-8')
    self.assertIn(f'`{example}.py`:\n\n```python\n{code}```\n', text)
    self.assertLessEqual(len(_code(code)), 40)

  def test_what_counts_as_code(self):
    text = '"""A."""\nimport a\n\n# B.\nclass C:\n  """D\n\n  e."""\n  f = (1,\n       2)\n'
    self.assertEqual(_code(text), [5, 9, 10])

  def test_the_best_returns_that_the_page_says(self):
    corridor = registry.make('dm_env:corridor:corridor?length=8', seed=0)
    corridor.reset()
    steps = [corridor.step(1) for _ in range(7)]
    self.assertTrue(steps[-1].last())
    self.assertAlmostEqual(sum(step.reward for step in steps), 0.94)
    # The goal is the number of steps of its row and of its column away.
    distances = [row + column for row in range(5) for column in range(5)][1:]
    self.assertAlmostEqual(sum(1 - 0.05 * (distance - 1) for distance in distances) / len(distances), 0.84, places=2)

  def test_the_observations_of_the_corridor_are_as_its_spec_says(self):
    corridor = python_path.load('corridor:corridor')(seed=0)
    for step in (corridor.reset(), *(corridor.step(1) for _ in range(4))):
      corridor.observation_spec().validate(step.observation)
    self.assertTrue(step.last())

  def test_the_grid(self):
    level = 'gymnasium:grid_world:GridWorld-v0'
    registry.check(level)
    grid = registry.make(level, seed=0)
    down, right = (grid.reset().observation['vector'] * 5).round().astype(int)
    steps = [grid.step(action) for action in [2] * down + [0] * right]
    self.assertEqual([step.last() for step in steps], [False] * (len(steps) - 1) + [True])
    self.assertEqual((steps[-1].reward, steps[-1].discount, steps[0].reward), (1., 0., -0.05))
    grid.reset()
    waited = [grid.step(3) for _ in range(50)]  # At the left wall.
    self.assertTrue(waited[-1].last())
    self.assertEqual(waited[-1].discount, 1.)  # A time limit.

  def test_the_rewards_are_predicted(self):
    agent = python_path.load('reward_prediction:REWARD_PREDICTION')
    config = agent.config(level_name='catch', total_environment_frames=20_000, batch_size=8, unroll_length=10,
                          torso='shallow', optimizer='adam', learning_rate=2e-3, learning_rate_decay=False,
                          synchronous=True)
    rows = training_runs.train(self, agent, config, 32, training_runs.returns_more_than(0.9))
    self.assertGreater(rows[-1]['episode_return'], 0.9)
    self.assertLess(rows[-1]['loss/reward_prediction'], 40.)  # Of 80 steps. That of a head that knows nothing: 88.

  def test_the_q_learner_learns_catch(self):
    agent = python_path.load('q_learner:Q_LEARNER')
    config = agent.config(level_name='catch', total_environment_frames=30_000, synchronous=True)
    rows = training_runs.train(self, agent, config, 16, training_runs.returns_more_than(0.7))
    self.assertGreater(rows[-1]['episode_return'], 0.7)
    self.assertLess(rows[-1]['environment_frames'], 25_000)
    self.assertGreater(rows[-1]['unrolls_replayed'], 0)


if __name__ == '__main__':
  absltest.main()
