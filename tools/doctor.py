"""Says whether this machine can train, and how to mend what is missing: `make doctor`.

One line per check, and below a line that is not `ok` the command that mends it. `warn` marks what only some uses need.
Exits with 1 if something is `wrong` that training needs. Runs before anything is installed, so it imports nothing but
the standard library, and every import that it tries happens in another process, which may crash.
"""

import importlib.metadata
import mmap
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
_CHECKED_APART = ('tensorflow', 'gymnasium', 'imageio-ffmpeg')
_DEBIANS_BAZEL = 'bazel no_version'  # What the one of Debian's package bazel-bootstrap says; it is below 8.
_SECONDS = 120  # For one import in another process, with a cold disk.
_ASK_ROMS = '''
import sys
from ale_py import roms
print(len(roms.get_all_rom_ids()), 'games') if roms.get_rom_path('pong') else sys.exit('Pong is missing or damaged')
'''
# A level whose map is compiled, so that the programs which that takes are asked for, too. Lab's own errors span lines.
_OPEN_LEVEL = '''
import sys
import deepmind_lab
from scalable_agents.environments import dmlab
try:
  environment = dmlab.Dmlab('explore_goal_locations_small', seed=0)
  environment.reset()
  environment.close()
except Exception as error:
  sys.exit(' '.join(str(error).split())[:300])
print('opens a level')
'''


class Result(NamedTuple):
  """One check's answer; `status` is 'ok', 'warn' (only some uses need it) or 'wrong' (training needs it)."""
  status: str
  name: str
  found: str
  mend: str = ''  # The line to run.


class Answer(NamedTuple):
  """What a program in another process printed last, or, if it failed, why."""
  worked: bool
  text: str


def ask(*command):
  """Runs a program.

  Args:
    *command: its words.
  Returns:
    An Answer with the last line of its output, or, on failure, of its errors.
  """
  try:
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace',
        timeout=_SECONDS, check=False, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'})
  except FileNotFoundError:
    return Answer(False, f'{command[0]} not found')
  except (OSError, subprocess.SubprocessError) as error:
    return Answer(False, str(error))
  if done.returncode < 0:
    return Answer(False, f'killed by {signal.Signals(-done.returncode).name}')
  said = done.stderr if done.returncode else done.stdout
  lines = [line for line in said.splitlines() if line.strip()]
  return Answer(not done.returncode, lines[-1].strip() if lines else f'exit code {done.returncode}')


def requirements(root=ROOT):
  """The pinned requirements by name: from `root`'s requirements.txt, or else from the installed package."""
  try:
    lines = (root / 'requirements.txt').read_text(encoding='utf-8').splitlines()
  except OSError:
    try:
      lines = importlib.metadata.requires('scalable_agents') or []
    except importlib.metadata.PackageNotFoundError:
      lines = []
  return {line.split('==')[0]: line for line in lines if '==' in line}


def _install(name, root=ROOT):
  """The line that installs a requirement into the Python that runs this, or that sets up everything."""
  if sys.prefix == sys.base_prefix and (root / 'Makefile').exists():
    return 'make setup'
  return f'{sys.executable} -m pip install {requirements(root).get(name, name)}'


def check_python(version=sys.version_info[:3]):
  """TensorFlow has wheels for these versions, and so have the other pinned requirements."""
  text = '.'.join(map(str, version))
  if (3, 11) <= tuple(version[:2]) <= (3, 13):
    return Result('ok', 'Python', f'{text}, {sys.executable}')
  return Result('wrong', 'Python', f'{text}; want 3.11, 3.12 or 3.13',
                'apt-get install python3.11 python3.11-venv && make setup')


def check_package(name, module, python=sys.executable, required=True, use=''):
  """A Python package: installed, importable, and of the pinned version.

  Args:
    name: of the requirement.
    module: its import name.
    python: the interpreter that should have it.
    required: whether training needs it.
    use: what needs it, for the line that misses it.
  Returns:
    A Result.
  """
  answer = ask(python, '-c', f'import importlib.metadata, {module}; print(importlib.metadata.version({name!r}))')
  want = requirements().get(name, name).partition('==')[2]
  if answer.worked and answer.text == want:
    return Result('ok', name, answer.text)
  found = f'{answer.text}; want {want}' if answer.worked else answer.text
  return Result('wrong' if required else 'warn', name, f'{found} (for {use})' if use else found, _install(name))


def check_libraries(wanted=None):
  """The requirements that have no check of their own: installed, of the pinned versions.

  Args:
    wanted: as `requirements` has them, which is the default.
  Returns:
    A Result.
  """
  wanted = {name: line.partition('==')[2] for name, line in (wanted or requirements()).items()
            if name not in _CHECKED_APART and 'extra' not in line}
  lacking = {}
  for name, version in wanted.items():
    try:
      found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found = 'missing'
    if found != version:
      lacking[name] = f'{name} is {found}, want {version}'
  if lacking:
    return Result('wrong', 'libraries', '; '.join(lacking.values()), _install(next(iter(lacking))))
  return Result('ok', 'libraries', f'{len(wanted)} others of the pinned versions')


def check_op_library(path=ROOT / 'ops' / '_ops.so', python=sys.executable):
  """The C++ ops: built, and against the TensorFlow that is installed."""
  rebuild = f'rm -f {path} && make setup'
  if not path.exists():
    return Result('wrong', 'op library', f'{path} is not built', 'make setup')
  answer = ask(python, '-c', f'import tensorflow as tf; tf.load_op_library({str(path)!r}); print("loads")')
  if answer.worked:
    return Result('ok', 'op library', f'{path} {answer.text}')
  return Result('wrong', 'op library', f'{path} does not load: {answer.text}', rebuild)


def check_roms(python=sys.executable):
  """The Atari games, which ale-py brings along."""
  answer = ask(python, '-c', _ASK_ROMS)
  if answer.worked:
    return Result('ok', 'Atari ROMs', answer.text)
  mend = _install('ale-py').replace(' install', ' install --force-reinstall')
  return Result('wrong', 'Atari ROMs', answer.text, mend)


def check_dmlab(python=sys.executable, root=ROOT):
  """DeepMind Lab, which is no requirement: it has no wheel on PyPI. Where it is installed, it has to open a level.

  Args:
    python: the interpreter that should have it.
    root: of this project, for docs/suites.md.
  Returns:
    A Result.
  """
  installed = ask(python, '-c', 'import importlib.util as util; print(util.find_spec("deepmind_lab") is not None)')
  if installed.text == 'False':
    return Result(
        'warn', 'DeepMind Lab', 'not installed (for DMLab-30)',
        'build the wheel from source as its documentation says (//python/pip_package:build_pip_package), then: '
        f'{sys.executable} -m pip install deepmind_lab-*.whl')
  answer = ask(python, '-c', _OPEN_LEVEL) if installed.worked else installed
  if answer.worked:
    return Result('ok', 'DeepMind Lab', answer.text)
  return Result('warn', 'DeepMind Lab', f'installed, but opens no level: {answer.text} (for DMLab-30)',
                f'see "What to install" in {root / "docs" / "suites.md"}')


def check_kernels(python=sys.executable, script=ROOT / 'training' / 'kernels.py'):
  """TensorFlow's kernels on the CPU: oneDNN's are on, unless the user has switched them off."""
  answer = ask(python, '-P', str(script))
  if not answer.worked:
    return Result('warn', 'kernels', f'unknown: {answer.text}', _install('tensorflow'))
  if 'oneDNN is off' in answer.text:
    return Result('warn', 'kernels', answer.text, 'unset TF_ENABLE_ONEDNN_OPTS')
  return Result('ok', 'kernels', answer.text)


def check_gpus(python=sys.executable, nvidia_smi='nvidia-smi'):
  """GPUs: none is needed, but those that are there should be seen by TensorFlow."""
  there = ask(nvidia_smi, '--query-gpu=name', '--format=csv,noheader')
  if not there.worked:
    return Result('ok', 'GPUs', 'none: training runs on the CPU')
  seen = ask(python, '-c', 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))')
  if seen.worked and seen.text != '0':
    return Result('ok', 'GPUs', f'{seen.text}, {there.text}')
  return Result('warn', 'GPUs', f'{there.text} is there, but TensorFlow does not see it',
                _install('tensorflow').replace('tensorflow==', 'tensorflow[and-cuda]=='))


def check_shared_memory(needed_bytes=64 << 20, wanted_free_bytes=4 << 30, meminfo='/proc/meminfo'):
  """Environments answer through anonymous shared memory; it counts as memory, not as space in /dev/shm.

  Args:
    needed_bytes: what the slots of some hundred environments take.
    wanted_free_bytes: what training Pong with 32 environments takes, with some air.
    meminfo: the kernel's account.
  Returns:
    A Result.
  """
  try:
    descriptor = os.memfd_create('doctor')
    try:
      os.ftruncate(descriptor, needed_bytes)
      with mmap.mmap(descriptor, needed_bytes) as memory:
        memory[::mmap.PAGESIZE] = b'x' * len(range(0, needed_bytes, mmap.PAGESIZE))
    finally:
      os.close(descriptor)
    with open(meminfo, encoding='ascii') as lines:
      free = next(int(line.split()[1]) << 10 for line in lines if line.startswith('MemAvailable:'))
  except (AttributeError, OSError, StopIteration, ValueError) as error:
    return Result('wrong', 'shared memory', f'cannot be made: {error!r}',
                  'use Linux 3.17 or later and free some memory')
  if free < wanted_free_bytes:
    return Result('warn', 'shared memory', f'works, but only {free / 2**30:.1f} GiB of memory are free',
                  'stop other programs, or train with fewer environments: --num_environments=8')
  return Result('ok', 'shared memory', f'works; {free / 2**30:.1f} GiB of memory are free')


def check_open_files(workers=64):
  """Each environment worker takes four descriptors of the training process: memory and socket, and their duplicates."""
  needed = 256 + 4 * workers
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft == resource.RLIM_INFINITY or soft >= needed:
    return Result('ok', 'open files', f'limit {soft}; {workers} environment workers need {needed}')
  if hard == resource.RLIM_INFINITY or hard >= needed:
    mend = f'ulimit -n {needed}'
  else:
    mend = f"echo '* hard nofile {needed}' | sudo tee -a /etc/security/limits.conf, log in again, ulimit -n {needed}"
  return Result('wrong', 'open files', f'limit {soft}; {workers} environment workers need {needed}', mend)


def check_bazel(which=shutil.which, gtest='/usr/include/gtest/gtest.h'):
  """Bazel and googletest, for `make test` and `bazel run`; training works without."""
  lacking = [name for name, there in (('Bazel', which('bazel')), ('googletest', os.path.exists(gtest))) if not there]
  if not lacking:
    answer = subprocess.run([which('bazel'), '--version'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            timeout=_SECONDS, check=False).stdout
    if answer.strip() == _DEBIANS_BAZEL:
      return Result('ok', 'Bazel', "Debian's build")
    major = re.match(r'bazel (\d+)\.', answer)
    if major and int(major[1]) < 8:
      return Result('ok', 'Bazel', answer.strip())
    return Result('warn', 'Bazel', f'{which("bazel")} --version: {answer.strip()!r}; from 8 on it ignores WORKSPACE',
                  'export USE_BAZEL_VERSION=4.2.3, if this is Bazelisk; else: apt-get install bazel-bootstrap')
  return Result('warn', 'Bazel', f'{" and ".join(lacking)} not found (for make test)',
                'apt-get install bazel-bootstrap bazel-rules-java bazel-rules-proto libgtest-dev')


CHECKS = (
    check_python,
    lambda: check_package('tensorflow', 'tensorflow'),
    check_libraries,
    check_op_library,
    check_roms,
    lambda: check_package('gymnasium', 'gymnasium'),
    check_dmlab,
    check_kernels,
    check_gpus,
    check_shared_memory,
    check_open_files,
    check_bazel,
    lambda: check_package('imageio-ffmpeg', 'imageio_ffmpeg', required=False, use='--video'),
)


def main(checks=CHECKS):
  """Runs the checks and prints their results; returns the exit code."""
  wrong = 0
  for check in checks:
    try:
      result = check()
    except Exception as error:  # pylint: disable=broad-except  (A sick machine must not silence the other checks.)
      result = Result('wrong', getattr(check, '__name__', 'check'), f'the check itself failed: {error!r}')
    print(f'{result.status:6}{result.name:16}{result.found}', flush=True)
    if result.mend:
      print(f'{"":6}{"":16}mend: {result.mend}', flush=True)
    wrong += result.status == 'wrong'
  return 1 if wrong else 0


if __name__ == '__main__':
  try:
    sys.exit(main())
  except OSError as failure:  # Of printing: what happens in a check is its result.
    print(f'error: standard output: {failure.strerror}', file=sys.stderr, flush=True)
    os._exit(1)  # Python would try to write the rest.
