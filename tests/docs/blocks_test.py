"""Tests every block of code and every command of the pages. pages.py says how.

Code in Python and commands run, for few environment frames, unless a comment above their block says why not. The blocks
of a page share their names and their folder. All commands check their arguments, as the programs do when they start.
"""

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

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
_SMALL = ('--total_environment_frames=400', '--num_environment_workers=1', '--test_num_episodes=2')
# Programs that take few seconds -> what is added to their arguments.
_SHORT = {'compare_runs': (), 'excerpt': (), 'export': (), 'laser_sweep': (), 'local_cluster': _SMALL,
          'play': ('--view=none', '--num_episodes=1'), 'population': _SMALL, 'train': _SMALL}
_COMMAND = '|'.join(re.escape(name) for name in pages.PROGRAMS + pages.OTHERS)
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
  """Returns what is wrong with a block: it cannot run and does not say why, or it says so without need; else ''."""
  if block.language not in (*_PYTHON, *_NOT_CODE, 'bash'):
    return '' if block.reason else f'{block.language!r}: want python, bash, text or <!-- not run: REASON -->'
  if block.language == 'text' and re.search(
      rf'^\s*(\$ *)?({_COMMAND})\s(.* )?(--\w|//|\w+=)|^\s*\$ ', block.code, re.MULTILINE):
    return 'a command: want bash'
  if block.reason and block.language not in (*_PYTHON, 'bash'):
    return f'nothing would run: remove <!-- not run: {block.reason} -->'
  if block.reason and block.reason not in pages.REASONS:
    return f'{block.reason!r}: want one of pages.REASONS'
  return ''


def _first_turns(calls):
  """Returns the first call of each program in each line. Further ones are further turns of a loop."""
  found = {}
  for call in calls:
    found.setdefault((call.line, commands.program(call.words)[0] or call.words[0]), call)
  return found.values()


def _unseen(block, calls):
  """Returns the lines of a block of bash that bash did not run as a reader would, though they begin with a program."""
  lines = {call.line for call in calls}
  return [line for line, code in enumerate(block.code.splitlines(), block.line)
          if re.match(rf'\s*(\w+=\S* +)?({_COMMAND})\s', code) and line not in lines
          or not block.reason and re.match(rf'\s*\w+=\S* +({_COMMAND})\s', code)]


class PagesTest(parameterized.TestCase):

  @parameterized.parameters(*pages.CHECKED)
  def test_every_block_is_checked_or_says_why_not(self, page):
    text = pages.read(page)
    blocks = pages.blocks(text)
    self.assertLen(re.findall('^ *```', text, re.MULTILINE), 2 * len(blocks))
    self.assertNotRegex(pages.without_code(text), r'(?m)^ *~~~|<pre>|^ *\n {4,}[^-*\s]', 'want ``` around code')
    self.assertEmpty([f'line {block.line}: {fault}' for block in blocks if (fault := _fault(block))])
    calls = pages.calls_in_blocks(page)
    self.assertEmpty([line for block in blocks if block.language == 'bash' for line in _unseen(block, calls)])

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
    for block in pages.blocks(pages.read(page)):
      if block.reason:
        continue
      if block.language in _PYTHON:
        small = re.sub(r'(?<=total_environment_frames=)[\d_]+', '400', block.code)
        exec(compile('\n' * (block.line - 1) + small, source_tree.ROOT / page, 'exec'), names)  # For tracebacks.
        if block.file:
          folder.create_file(block.file, content=block.code)
          self.addCleanup(sys.modules.pop, block.file.removesuffix('.py'), None)
      elif block.language == 'bash':
        calls = [call for call in pages.calls_in_blocks(page) if call.line in block.lines]
        faults += [f'line {call.line}: want <!-- not run: REASON --> above the block: {shlex.join(call.words)}'
                   for call in _first_turns(calls) if not _run(call.words)]
    self.assertEmpty(faults + _faults(pages.calls(page)))


def _run(words):
  """Runs a command for few environment frames, if it is one that can run here. Returns whether it is."""
  module, arguments = commands.program(words)
  name = module.rpartition('.')[2]
  if name in registry.PRESETS:
    environments = 'auto' if name.startswith('a2c') else 4  # A2C has as many as the batch has unrolls.
    # An untrained agent may never press FIRE, and Breakout waits for that until the episode's limit of 108,000 frames.
    limits = ('--max_episode_frames=2_000',) if name.endswith('_atari57') else ()
    training.run_preset(name, *arguments, *_SMALL, *limits, f'--num_environments={environments}',
                        f'--num_kernel_threads={tf.config.threading.get_intra_op_parallelism_threads()}')
  elif name in _SHORT or module.startswith('scalable_agents.tables.'):
    subprocess.run([sys.executable, '-m', module, *arguments, *_SHORT.get(name, ())], env=python_path.environment(),
                   check=True)
  else:
    return False
  return True


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
      'scalable-agents no_such_program', 'scalable-agents doctor --nonsense',
      'python -m scalable_agents.agents.impala_atari57 --batch_size=0',
      'make no_such_target', 'make train NO_SUCH_VARIABLE=1', 'make train ARGS=--no_such_flag',
      'python tests/no_such_test.py', 'bazel test //tests/learner:no_such_test')
  def test_a_wrong_command(self, command):
    with self.assertRaises(_FAULTS):
      commands.check(tuple(command.split()))

  @parameterized.parameters(
      ('```\n1 + 1\n```', "'': want python"), ('```yaml\na: 1\n```', "'yaml': want python"),
      ('```text\nmake train ARGS=--seed=1\n```', 'a command'),
      ('```text\nthis:\n  $ scalable-agents x --seed=1\n```', 'a command'),
      ('<!-- not run: I am tired -->\n```bash\nmake train\n```', "'I am tired': want one of"),
      ('<!-- not run: an output -->\n```text\n1\n```', 'nothing would run'),
      ('```python\n1 + 1\n```', ''), ('```bash\nmake train\n```', ''), ('```text\n1\n```', ''),
      ('<!-- not run: needs Docker -->\n```python\n1 + 1\n```', ''),
      ('<!-- not run: takes hours -->\n```bash\nmake train\n```', ''))
  def test_faults_of_blocks(self, text, fault):
    block, = pages.blocks(text)
    self.assertStartsWith(_fault(block), fault)
    self.assertEqual(bool(_fault(block)), bool(fault))

  @parameterized.parameters('make train', 'pip install .', 'bazel run //tools:throughput -- --seconds=5')
  def test_commands_whose_block_must_say_why_they_do_not_run(self, command):
    self.assertFalse(_run(tuple(command.split())))

  @parameterized.parameters(
      ('if false; then\n  make train\nfi', [2]), ('f() {\n  make train\n}', [2]), ('true ||\n  make train', [2]),
      ('SEED=1 make train', [1]), ('for seed in 1 2; do\n  make train \\\n    ARGS=x\ndone', []))
  def test_commands_that_a_reader_runs_otherwise(self, code, lines):
    block = pages.Block(1, 'bash', f'{code}\n', '', '')
    self.assertEqual(_unseen(block, pages.calls_of([block])), lines)

  def test_the_first_turn_of_each_program_runs(self):
    code = 'for seed in 1 2; do make train ARGS=$seed && scalable-agents doctor; pip install x; done\n'
    self.assertEqual([' '.join(call.words) for call in _first_turns(pages.calls_of([
        pages.Block(1, 'bash', code, '', '')]))], ['make train ARGS=1', 'scalable-agents doctor', 'pip install x'])

  def test_an_indented_block(self):
    block, = pages.blocks('- one\n\n  ```bash\n  make a \\\n    b\n  ```\n')
    self.assertEqual(block, pages.Block(4, 'bash', 'make a \\\n  b\n', '', ''))

  def test_commands_are_what_the_shell_makes_of_them(self):
    shell = [pages.Block(3, 'bash', 'A="x y"\nfor i in 1 2; do make $A "$i"; done\n', '', ''),
             pages.Block(9, 'bash', 'for i in $(seq 0 23); do\n  python "$A$i"; done\n', '', '')]
    self.assertEqual([tuple(call) for call in pages.calls_of(shell)], [
        (4, ('make', 'x', 'y', '1')), (4, ('make', 'x', 'y', '2')),
        (10, ('python', 'x y0')), (10, ('python', 'x y23'))])

  @parameterized.parameters('no_such_program', 'make $NO_SUCH_VARIABLE', 'if make; then', 'exit 0')
  def test_what_the_shell_refuses(self, code):
    with self.assertRaises(ValueError):
      pages.calls_of([pages.Block(1, 'bash', code, '', '')])


if __name__ == '__main__':
  absltest.main()
