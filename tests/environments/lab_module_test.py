"""Tests which arguments DeepMind Lab rejects, and with which messages, with the fake module or the real one."""

import os
import pickle
import signal
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.processes import python_path
from scalable_agents.tests.environments import lab_module  # noqa: F401  # Finds deepmind_lab.

# isort: split
import deepmind_lab

_LEVEL = 'contributed/dmlab30/rooms_watermaze'
_COMPILED = 'contributed/dmlab30/explore_goal_locations_small'  # Its map is compiled.
_SIZE = {'width': '96', 'height': '72'}
_STEP = np.zeros(7, np.intc)


def _lab(level=_LEVEL, observations=('RGB_INTERLEAVED', 'INSTR'), **config):
  return deepmind_lab.Lab(level, list(observations), config={**_SIZE, **config})


class LabModuleTest(parameterized.TestCase):

  @parameterized.parameters(
      (lambda: _lab('no/such/level'), RuntimeError, 'Failed to init environment - "Level not found: Failed to open'),
      (lambda: _lab(''), RuntimeError, ".*Missing level script must set setting 'levelName'!"),
      (lambda: deepmind_lab.Lab(_LEVEL, [], foo=1), TypeError, "'foo' is an invalid keyword argument for this"),
      (lambda: _lab(fps='x'), RuntimeError, "Failed to apply setting 'fps = x' - .Invalid double arg x"),
      (lambda: _lab(b'x'), TypeError, 'argument 1 must be str, not bytes'),
      (lambda: deepmind_lab.Lab(_LEVEL, ('INSTR',)), TypeError, 'argument 2 must be list, not tuple'),
      (lambda: deepmind_lab.Lab(_LEVEL, [], config=None), TypeError, 'argument 3 must be dict, not None'),
      (lambda: deepmind_lab.Lab(_LEVEL, [], renderer=None), TypeError, 'argument 4 must be str, not None'),
      (lambda: deepmind_lab.Lab(_LEVEL, [], temp_folder=None), TypeError, 'argument 6 must be str, not None'),
      (lambda: deepmind_lab.Lab(_LEVEL, [], renderer='gpu'), RuntimeError, 'Failed to set renderer must be "hardware"'),
      (lambda: _lab(observations=['NOPE']), ValueError, "Unknown observation 'NOPE'."),
      (lambda: _lab(fps=60), TypeError, 'bad argument type for built-in operation'),
      (lambda: _lab(noSuchKey='1'), RuntimeError,
       r'Failed to init environment - ".*Invalid setting: "noSuchKey" = "1"\nstack traceback:\n\t'
       r'(.|\n)*setting_overrides.lua:\d+>"$'),
      (lambda: _lab(logLevel='LOUD'), RuntimeError, ''),
      (lambda: _lab(width='96 '), RuntimeError, ''),
      (lambda: _lab(width='9_6'), RuntimeError, ''),
      (lambda: _lab(width='95'), RuntimeError, '.*\'width\' must be a positive multiple of 4. Actual 95'),
      (lambda: _lab(width='abc'), RuntimeError, ".*'width = abc' - \"Invalid int setting abc"),
      (lambda: _lab(mixerSeed='-1'), RuntimeError, ".*'mixerSeed = -1' - \"Invalid mixerSeed value"),
      (lambda: _lab('contributed/dmlab30/rooms_collect_good_objects_test'), RuntimeError,
       r'[\s\S]*This level must only be used during evaluation.'),
      (lambda: _lab().step(_STEP), RuntimeError, 'Environment in wrong status to advance.'),
      (lambda: _lab().observations(), RuntimeError, r'Environment in wrong status for call to observations\(\)'),
      (lambda: _lab().events(), RuntimeError, r'Environment in wrong status for call to events\(\)'),
      (lambda: _lab().reset(seed=np.int64(1)), ValueError, "'seed' must be int or None, was 'numpy.int64'."),
      (lambda: _lab().reset(seed=2**63), OverflowError, 'Python int too large to convert to C long'),
      (lambda: _lab().reset(seed=-2**63 - 1), OverflowError, 'Python int too large to convert to C long'),
      (lambda: _lab().fps(), AttributeError, ".*has no attribute 'fps'"),
      (lambda: deepmind_lab.Lab(_LEVEL, [], temp_folder='/dev/null/folder').reset(seed=1), RuntimeError, ''),
      (lambda: pickle.dumps(_lab()), TypeError, "cannot pickle 'deepmind_lab.Lab' object"),
      (lambda: type('Mine', (deepmind_lab.Lab,), {}), TypeError, "type 'deepmind_lab.Lab' is not an acceptable base"))
  def test_refused(self, function, error, message):
    with self.assertRaisesRegex(error, f'^{message}'):
      function()

  @parameterized.parameters(
      ([0] * 7, 4, TypeError, 'argument 1 must be numpy.ndarray, not list'),
      (np.zeros(7, np.int64), 4, ValueError, 'action must have dtype np.intc'),
      (np.zeros(6, np.intc), 4, ValueError, r'action must have shape \(7\)'),
      (np.zeros((1, 7), np.int64), 4, ValueError, r'action must have shape \(7\)'),
      (_STEP, 4.0, TypeError, "'float' object cannot be interpreted as an integer"),
      (_STEP, 2**40, OverflowError, 'signed integer is greater than maximum'),
      (_STEP, -2**40, OverflowError, '.*'))
  def test_steps_that_are_refused_leave_the_episode_running(self, action, num_steps, error, message):
    lab = _lab()
    self.assertIs(lab.reset(seed=1), True)
    with self.assertRaisesRegex(error, f'^{message}$'):
      lab.step(action, num_steps=num_steps)
    self.assertTrue(lab.is_running())

  def test_a_cache_that_cannot_fetch(self):
    lab = deepmind_lab.Lab(_COMPILED, [], level_cache=object(), temp_folder=self.create_tempdir().full_path)
    with self.assertRaisesRegex(AttributeError, 'fetch'):
      lab.reset(seed=1)

  def test_values_that_are_accepted(self):
    _lab(width=' 96')
    for seed in (-1, 2**31):
      self.assertIs(_lab(mixerSeed=' 5').reset(seed=seed), True)

  def test_what_comes_back(self):
    lab = _lab()
    self.assertEqual((lab.is_running(), lab.num_steps()), (False, 0))
    lab.reset(seed=2**31)
    self.assertIs(type(lab.step(_STEP, num_steps=4)), float)
    self.assertEqual(lab.num_steps(), 4)
    seen = lab.observations()
    self.assertEqual(list(seen), ['RGB_INTERLEAVED', 'INSTR'])
    self.assertEqual((seen['RGB_INTERLEAVED'].shape, seen['RGB_INTERLEAVED'].dtype), ((72, 96, 3), np.uint8))
    self.assertEqual(seen['INSTR'], '')
    self.assertEqual([(part['min'], part['max']) for part in lab.action_spec()],
                     [(-512, 512)] * 2 + [(-1, 1)] * 2 + [(0, 1)] * 3)
    self.assertEqual((lab.close(), lab.close(), lab.is_running()), (True, False, False))

  @parameterized.parameters('reset()', 'action_spec()', 'observation_spec()')
  def test_some_calls_after_the_end_end_the_process(self, call):
    program = f'import deepmind_lab\nlab = deepmind_lab.Lab({_LEVEL!r}, [])\nlab.close()\nlab.{call}'
    ended = subprocess.run([sys.executable, '-c', program], env=python_path.environment(), check=False,
                           stderr=subprocess.DEVNULL)
    self.assertEqual(ended.returncode, -signal.SIGSEGV)

  def test_a_cache_that_lies_ends_the_process(self):
    folder = os.path.join(self.create_tempdir().full_path, 'lab')
    program = ('import deepmind_lab\n'
               'class Liar:\n'
               '  def fetch(self, key, pk3_path):\n'
               '    open(pk3_path, "w").close()\n'
               '    return True\n'
               'deepmind_lab.Lab("contributed/dmlab30/explore_goal_locations_small", [], level_cache=Liar(), '
               f'temp_folder={folder!r}).reset(seed=1)\n')
    ended = subprocess.run([sys.executable, '-c', program], env=python_path.environment(), check=False,
                           stderr=subprocess.PIPE, text=True)
    self.assertEqual(ended.returncode, 1)
    self.assertIn("Didn't find map 'explore_maze'\n: No such file or directory", ended.stderr)


if __name__ == '__main__':
  absltest.main()
