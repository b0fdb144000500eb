"""The pages of the documentation: their blocks of code, and the commands in these and between backticks.

Blocks in Python and in bash are run, for few environment frames. A block that cannot run has a comment in the line
above it with one of REASONS: <!-- not run: needs Docker -->. Its commands get only their arguments checked, as do those
between backticks.

Commands are collected by bash: it runs the block with a function in place of each program, which only notes its
arguments. So variables, loops and quotes mean what they mean to a reader. Of a loop over games, levels or seeds, the
arguments of the first and the last turn are checked, and the first turn of each program is run.
"""

import functools
import itertools
import os
import re
import subprocess
import tempfile
from typing import NamedTuple

from scalable_agents import __main__
from scalable_agents.tests import source_tree

ALL = sorted(str(path.relative_to(source_tree.ROOT)) for path in (
    *source_tree.ROOT.glob('*.md'), *(source_tree.ROOT / 'docs').rglob('*.md')))
CHECKED = [page for page in ALL if page != 'CHANGELOG.md']  # That one also names what has been removed since.
PROGRAMS = ('bazel', 'bazelisk', 'make', 'python', 'python3', 'scalable-agents')  # They run something of this project.
OTHERS = ('apt-get', 'bash', 'cat', 'cd', 'docker', 'git', 'kubectl', 'mkdir', 'pip', 'rm', 'sbatch', 'sha256sum',
          'source', 'split', 'tar', 'tensorboard', 'unzip', 'xz', 'zip')
REASONS = ('installs packages', 'needs DeepMind Lab', 'needs Docker', 'needs Kubernetes', 'needs Slurm',
           'needs a trained agent', 'needs several machines', 'needs the internet', 'needs the runs above',
           'needs the runs below', 'needs two processes', 'runs tests', 'runs until Ctrl-C', 'takes minutes',
           'takes half an hour', 'takes hours', 'takes days', 'takes months')
_PROGRAM_NAMES = '|'.join(map(re.escape, __main__.programs()))
_BLOCK = re.compile(r'^(?:<!-- not run: (.+) -->\n)?( *)```(\S*).*\n((?:.*\n)*?)\2```$', re.MULTILINE)
_SPAN = re.compile(r'`([^`]+)`')
_FUNCTIONS = '\n'.join([
    'set -eu',
    # A single write, also by the programs of a pipe, which run at the same time.
    '''note() { printf '%s\\0' "${BASH_LINENO[1]}" $# "$@" >> "$NOTES"; }''',
    '''cut() { /usr/bin/cut "$@" | /usr/bin/sed -n '1p; $p'; }''',
    'seq() { echo "$1 $2"; }',
    'tail() { /usr/bin/tail "$@"; }',
    *(f'{name}() {{ note {name} "$@"; }}' for name in (*PROGRAMS, *OTHERS, 'the_end'))])


class Block(NamedTuple):
  """A block of code."""
  line: int      # Number of the first line of its code.
  language: str  # 'python', 'bash' and so on. That of a directive has braces.
  code: str
  reason: str    # Why it is not run; else ''.
  file: str      # The file into which the reader puts it, if the text before it ends with `FILE.py`: and else ''.

  @property
  def lines(self) -> range:
    """The numbers of its lines."""
    return range(self.line, self.line + self.code.count('\n'))


class Call(NamedTuple):
  """A command that a reader runs."""
  line: int
  words: tuple[str, ...]


def read(page: str) -> str:
  """Returns the text of a page."""
  return (source_tree.ROOT / page).read_text(encoding='utf-8')


def without_code(text: str) -> str:
  """Returns a text without its blocks. The other lines keep their numbers."""
  return _BLOCK.sub(lambda match: '\n' * match[0].count('\n'), text)


def blocks(text: str) -> list[Block]:
  """Returns the blocks of a text. A block may be indented, as part of a list."""
  found = []
  for match in _BLOCK.finditer(text):
    reason, indent, language, code = match.groups('')
    file = re.search(r'`(\w+\.py)`:\s*$', text[:match.start()])
    found.append(Block(text.count('\n', 0, match.start(4)) + 1, language,
                       re.sub(f'^{indent}', '', code, flags=re.MULTILINE), reason, file[1] if file else ''))
  return found


@functools.cache
def calls(page: str) -> list[Call]:
  """Returns the commands in the blocks of a page, and those between backticks."""
  return calls_in_blocks(page) + calls_of(_spans(without_code(read(page))))


@functools.cache
def calls_in_blocks(page: str) -> list[Call]:
  """Returns the commands in the blocks of a page."""
  return calls_of([block for block in blocks(read(page)) if block.language == 'bash'])


def _spans(text):
  """Returns the commands between backticks. NAME and N stand for any name and number."""
  found = []
  for match in _SPAN.finditer(text):
    code = re.sub(r'\bNAME\b', 'impala_atari57', ' '.join(match[1].split())).replace('=N', '=1')
    code = re.sub('^(?=--table=.* --runs=)', 'scalable-agents tables ', code)
    code = re.sub(rf'^(?=({_PROGRAM_NAMES}) .*--)', 'scalable-agents ', code)
    if _without_environment(code).split(' ')[0] in PROGRAMS + OTHERS and '…' not in code:
      found.append(Block(text.count('\n', 0, match.start()) + 1, 'bash', f'{code}\n', '', ''))
  return found


def _without_environment(code):
  """Returns commands without the path of the virtual environment."""
  return re.sub(r'(?<![^\s(])\.?venv/bin/', '', code)


def calls_of(shell: list[Block]) -> list[Call]:
  """Returns the commands that blocks of bash run, one block after the other.

  Raises:
    ValueError: bash reports an error, for example a command that is none of the programs above.
  """
  script = ''
  for block in shell:  # Each line of the script has its number in the page, which bash reports.
    script += '\n' * (block.line - 1 - script.count('\n')) + _without_environment(block.code)
  script += 'the_end'
  with tempfile.TemporaryDirectory() as folder:
    os.symlink(source_tree.ROOT / 'environments', os.path.join(folder, 'environments'))  # Loops read lists of levels.
    notes = os.path.join(folder, 'notes')
    open(notes, 'w').close()
    done = subprocess.run(
        ['/bin/bash', '-c', f'eval "$FUNCTIONS"; {script}'], cwd=folder, text=True, capture_output=True,
        env={'PATH': '', 'FUNCTIONS': _FUNCTIONS, 'NOTES': notes}, check=False)
    if done.returncode or done.stderr:
      raise ValueError(f'exit code {done.returncode}: {done.stderr}')
    with open(notes, encoding='utf-8') as file:
      noted = iter(file.read().replace(f'{folder}/', '').split('\0')[:-1])
  found = [Call(int(line), tuple(itertools.islice(noted, int(next(noted))))) for line in noted]
  if not found or found.pop().words != ('the_end',):
    raise ValueError('a block ends the shell')
  return found
