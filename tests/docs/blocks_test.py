"""Tests every block of code and every command of the pages. pages.py says how.

Code in Python runs, for few environment frames; the blocks of a page share their names. The programs of this project
check the arguments of their commands, as they do when they start. Of the commands, those run that train on `catch` in
runs/catch or on an environment of the reader's own, and those that read such a run: a reader's first hour.
"""

import contextlib
import functools
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests import source_tree
from scalable_agents.tests.docs import commands
from scalable_agents.tests.docs import pages
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tools import reference

_PYTHON = ('python', '{code-cell}')
_NOT_CODE = ('math', 'text', '{eval-rst}', '{include}', '{literalinclude}', '{toctree}')  # Sphinx checks directives.
_FLAGS_OF_OTHERS = {'build', 'config', 'exclusive', 'fix', 'flagfile', 'gpus', 'help', 'no', 'nodes', 'platform',
                    'python', 'replicas'}
_SMALL = ('--total_environment_frames=400', '--num_environments=4', '--num_environment_workers=1', '--batch_size=4',
          '--test_num_episodes=2')
_READERS = {'export': (), 'compare_runs': (), 'play': ('--view=none', '--num_episodes=1')}
_FAULTS = (ValueError, ImportError, errors.UserError, flags.Error)


def setUpModule():
  training.configure_tensorflow()
  os.environ['MPLBACKEND'] = 'agg'


def _faults(calls):
  """Returns the faults of commands."""
  found = []
  for call in calls:
    try:
      commands.check(call.words)
    except _FAULTS as error:
      found.append(f'line {call.line}: {shlex.join(call.words)}: {error}')
  return found


@functools.cache
def _known_flags():
  """Returns the names of all flags that pages may name."""
  names = set(re.findall(r'^\| `--(\w+)` \|', '\n'.join(reference.tables().values()), re.MULTILINE))
  return names | {f'no{name}' for name in names} | _FLAGS_OF_OTHERS


def _fault(block):
  """Returns why a block is not checked though nothing says so, or is marked though it can be checked; else ''."""
  if block.language not in (*_PYTHON, *_NOT_CODE, 'bash'):
    return '' if block.reason else f'{block.language!r}: want python, bash, text or <!-- not run: REASON -->'
  if block.language == 'text' and re.match(rf'({"|".join(pages.PROGRAMS)})\s', block.code):
    return 'a command: want bash'
  if block.reason and block.language not in _PYTHON:
    with contextlib.suppress(ValueError):
      if block.language != 'bash' or not _faults(pages.calls_of([block])):
        return f'it can be checked: remove <!-- not run: {block.reason} -->'
  return ''


class PagesTest(parameterized.TestCase):

  @parameterized.parameters(*pages.CHECKED)
  def test_every_block_is_checked_or_says_why_not(self, page):
    text = pages.read(page)
    blocks = pages.blocks(text)
    self.assertLen(re.findall('^ *```', text, re.MULTILINE), 2 * len(blocks))
    self.assertEmpty([f'line {block.line}: {fault}' for block in blocks if (fault := _fault(block))])

  @parameterized.parameters(*pages.CHECKED)
  def test_every_flag_in_the_text_exists(self, page):
    named = re.findall(r'--([a-z]\w+)', pages.without_code(pages.read(page)))
    self.assertEmpty(set(named) - _known_flags())

  @parameterized.parameters(*pages.CHECKED)
  def test_code_and_commands(self, page):
    signal_handlers.restore_after(self)
    folder = self.create_tempdir()
    self.enter_context(contextlib.chdir(folder.full_path))
    self.enter_context(absltest.mock.patch.object(sys, 'path', [folder.full_path, *sys.path]))
    names, faults = {'__name__': page}, []
    code = [block for block in pages.blocks(pages.read(page)) if block.language in _PYTHON and not block.reason]
    for step in sorted([*code, *pages.calls(page)], key=lambda step: step.line):
      if isinstance(step, pages.Block):
        small = re.sub(r'(?<=total_environment_frames=)[\d_]+', '400', step.code)
        exec(compile('\n' * (step.line - 1) + small, source_tree.ROOT / page, 'exec'), names)  # For tracebacks.
        if step.file:
          folder.create_file(step.file, content=step.code)
          self.addCleanup(sys.modules.pop, step.file.removesuffix('.py'), None)
      else:
        faults += _faults([step])
        _run(*commands.program(step.words))
    self.assertEmpty(faults)


def _run(module, arguments):
  """Runs a command if it is one of those that run; see the top of this file."""
  name = module.rpartition('.')[2]
  if name in registry.PRESETS and '--logdir=runs/catch' in arguments:
    training.run_preset(name, *arguments, *_SMALL)
  elif name in registry.PRESETS and any(re.match('--level_name=.*:', word) for word in arguments):
    training.run_preset(name, *arguments, *_SMALL, '--logdir=run')
    shutil.rmtree('run')
  elif name in _READERS and any(glob.glob(word.partition('=')[2]) for word in arguments):
    subprocess.run([sys.executable, '-m', module, *arguments, *_READERS[name]], env=python_path.environment(),
                   check=True)


class FaultsTest(parameterized.TestCase):
  """Tests that faults are found."""

  @parameterized.parameters(
      '//agents:impala_atari57 --level_name=no_such_game', '//agents:impala_atari57 --no_such_flag=1',
      '//agents:impala_atari57 --batch_size=0', '//agents:no_such_program', '//tables:impala --tabel=3',
      '//agents:population --agent=impala_atari57 --no_such_flag=1', '//tables:impala word',
      # Flags that are refused together.
      '//agents:impala_dmlab30 --seed=1', '//agents:impala_dmlab30 --level_name=rooms_watermaze --sweep_index=24',
      '//agents:laser_atari57 --level_name=pong --replay_share=0 --nolearn_online', '//tables:impala --runs=runs/x',
      '//agents:r2d2_atari57 --level_name=pong --samples_per_period=50',
      '//agents:laser_sweep --level_name=pong --replay_share=0', '//agents:laser_sweep --level_name=pong --agents=10')
  def test_a_wrong_command_of_bazel(self, command):
    with self.assertRaises(_FAULTS):
      commands.check(('bazel', 'run', *shlex.split(command)))

  @parameterized.parameters(
      'scalable-agents no_such_program', 'python -m scalable_agents.agents.impala_atari57 --batch_size=0',
      'make no_such_target', 'make train NO_SUCH_VARIABLE=1', 'make train ARGS=--no_such_flag',
      'python tests/no_such_test.py', 'bazel test //tests/learner:no_such_test')
  def test_a_wrong_command(self, command):
    with self.assertRaises(_FAULTS):
      commands.check(tuple(command.split()))

  @parameterized.parameters(
      ('```\n1 + 1\n```', "'': want python"), ('```yaml\na: 1\n```', "'yaml': want python"),
      ('```text\nmake train\n```', 'a command'),
      ('<!-- not run: slow -->\n```bash\nmake train\n```', 'it can be checked'),
      ('<!-- not run: an output -->\n```text\n1\n```', 'it can be checked'),
      ('```python\n1 + 1\n```', ''), ('```bash\nmake train\n```', ''), ('```text\n1\n```', ''),
      ('<!-- not run: needs a GPU -->\n```python\n1 + 1\n```', ''),
      ('<!-- not run: in another repository -->\n```bash\nbazel build //:x && other\n```', ''))
  def test_faults_of_blocks(self, text, fault):
    block, = pages.blocks(text)
    self.assertStartsWith(_fault(block), fault)
    self.assertEqual(bool(_fault(block)), bool(fault))

  def test_an_indented_block(self):
    block, = pages.blocks('- one\n\n  ```bash\n  make a \\\n    b\n  ```\n')
    self.assertEqual(block, pages.Block(4, 'bash', 'make a \\\n  b\n', '', ''))

  def test_commands_are_what_the_shell_makes_of_them(self):
    shell = [pages.Block(3, 'bash', 'A="x y"\nfor i in 1 2; do make $A "$i"; done\n', '', ''),
             pages.Block(9, 'bash', 'for i in $(seq 0 23); do\n  python "$A$i"; done\n', '', '')]
    self.assertEqual([tuple(call) for call in pages.calls_of(shell)], [
        (4, ('make', 'x', 'y', '1')), (4, ('make', 'x', 'y', '2')),
        (10, ('python', 'x y0')), (10, ('python', 'x y23'))])

  @parameterized.parameters('no_such_program', 'make $NO_SUCH_VARIABLE', 'if make; then')
  def test_what_the_shell_refuses(self, code):
    with self.assertRaises(ValueError):
      pages.calls_of([pages.Block(1, 'bash', code, '', '')])


if __name__ == '__main__':
  absltest.main()
