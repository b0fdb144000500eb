"""Tests that the old names of modules find the new ones."""

import importlib
import sys
import warnings

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents import moved_modules


class MovedModulesTest(parameterized.TestCase):

  @parameterized.parameters(*moved_modules.MOVED.items())
  def test_both_names_are_the_same_module(self, old, new):
    self.addCleanup(sys.modules.pop, f'scalable_agents.{old}', None)
    moved = importlib.import_module(f'scalable_agents.{new}')
    with self.assertWarnsRegex(DeprecationWarning, f'{old} is scalable_agents.{new} now'):
      self.assertIs(importlib.import_module(f'scalable_agents.{old}'), moved)
    self.assertEqual(moved.__spec__.name, f'scalable_agents.{new}')

  def test_a_module_that_never_was_is_not_found(self):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      with self.assertRaises(ModuleNotFoundError):
        importlib.import_module('scalable_agents.learner.nothing')


if __name__ == '__main__':
  absltest.main()
