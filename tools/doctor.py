"""Checks whether this machine can train, and says how to fix what is missing: `make doctor`.

Each check prints one line: `ok`, `warn` for a problem that affects only some uses, or `wrong` for a problem that
prevents training. Below each problem is a command that fixes it. The exit code is 1 if a check is `wrong`.

The program can run before anything is installed. So it imports only the standard library. It tries other imports in
separate processes, which may crash.
"""

from __future__ import annotations  # For the Pythons that are too old, of which it tells.

import importlib.metadata
import mmap
import os
import pathlib
import re
import resource
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import types
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
_CHECKED_APART = ('tensorflow', 'gymnasium', 'imageio-ffmpeg')
_DEBIANS_BAZEL = 'bazel no_version'  # The output of Debian's package bazel-bootstrap. Its version is below 8.
_SECONDS = 120  # The time limit of a separate process, long enough for an import from a slow disk.
_ASK_ROMS = '''
import sys
from ale_py import roms
print(len(roms.get_all_rom_ids()), 'games') if roms.get_rom_path('pong') else sys.exit('Pong is missing or damaged')
'''
# TensorFlow uses CUDA 12, which needs driver 525: https://docs.nvidia.com/deploy/cuda-compatibility. For cards like the
# H100 and newer ones it has no machine code but PTX 8.5, which drivers from 555 on can compile.
_OLDEST_DRIVER, _OLDEST_FOR_PTX, _PTX_CAPABILITY = 525, 555, 9
# The number of GPUs, after XLA has compiled for the first one.
_USE_GPUS = '''
import tensorflow as tf
gpus = tf.config.list_physical_devices('GPU')
for gpu in gpus:
  tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
  with tf.device('/GPU:0'):
    tf.function(lambda x: x @ x, jit_compile=True)(tf.ones([8, 8])).numpy()
print(len(gpus))
'''
# Lab compiles a map for this level, so this also checks the programs for that. Errors of several lines are joined.
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
_MAP_PROGRAMS = ('bash', 'zip')  # Lab's script that compiles a map runs these.


class Result(NamedTuple):
  """The result of a check."""
  status: str     # 'ok', 'warn' (only some uses need it) or 'wrong' (training needs it).
  name: str
  found: str
  fix: str = ''  # A command or a hint that fixes the problem.


class Answer(NamedTuple):
  """The result of a program in a separate process."""
  worked: bool
  text: str  # The last line of its output or, if it failed, the reason.


def ask(*command):
  """Runs a program.

  Args:
    *command: the program and its arguments.
  Returns:
    An Answer with the last line of the program's output. If it failed and printed errors, the last line of these.
  """
  try:
    done = subprocess.run(
        command, cwd=tempfile.gettempdir(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace',
        # Without PYTHONSAFEPATH, `python -c` would import modules that lie in the current folder.
        timeout=_SECONDS, check=False, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'PYTHONSAFEPATH': '1'})
  except FileNotFoundError:
    return Answer(False, f'{command[0]} not found')
  except (OSError, subprocess.SubprocessError) as error:
    return Answer(False, str(error))
  if done.returncode < 0:
    return Answer(False, f'killed by {signal.Signals(-done.returncode).name}')
  said = (done.returncode and done.stderr) or done.stdout
  lines = [line for line in said.splitlines() if line.strip()]
  return Answer(not done.returncode, lines[-1].strip() if lines else f'exit code {done.returncode}')


def requirements(root=ROOT) -> dict[str, str]:
  """Returns the requirements by name: the pins of `root`'s requirements.txt, or the installed package's ranges."""
  try:
    lines = (root / 'requirements.txt').read_text(encoding='utf-8').splitlines()
  except OSError:
    try:
      lines = importlib.metadata.requires('scalable_agents') or []
    except importlib.metadata.PackageNotFoundError:
      lines = []
  return {match[0]: line for line in lines if 'extra ==' not in line and (match := re.match(r'[\w.-]+', line))}


def _versions(requirement):
  """Returns the part of a requirement that is about versions: '>=1.4.0,<2' of 'gymnasium>=1.4.0,<2'; '' if none."""
  return re.sub(r'^[\w.-]+', '', requirement).strip()


def _shown(wanted):
  """Returns versions as in a message: a pin is the version alone."""
  return wanted.removeprefix('==')


def _numbers(version):
  """Returns the numbers of a version, without zeros at the end, which mean nothing."""
  numbers = [int(number) for number in re.findall(r'\d+', re.sub(r'[^\d.].*', '', version))]
  while numbers and not numbers[-1]:
    numbers.pop()
  return numbers


def fits(version, wanted):
  """Returns whether a version, such as '1.4.0', is wanted: by '==1.4.0', '~=1.4.0', '>=1.4,<2' or '' (all)."""
  found = _numbers(version)
  for sign, bound in re.findall(r'([<>=~]+)\s*([^\s,]+)', wanted):
    least, series = _numbers(bound), [int(number) for number in re.findall(r'\d+', bound)[:-1]]
    if not {'==': version.partition('+')[0] == bound, '>=': found >= least, '<': found < least,
            '~=': found >= least and (found + [0] * len(series))[:len(series)] == series}[sign]:
      return False
  return True


def _install(name: str, root=ROOT):
  """Returns the command that installs a requirement for this Python, or the command that sets up everything."""
  if sys.prefix == sys.base_prefix and (root / 'Makefile').exists():
    return 'make setup'
  return f'{_pip_install()} {shlex.quote(requirements(root).get(name, name))}'


def _pip_install():
  """Returns the beginning of a command that installs packages for this Python."""
  return f'{shlex.quote(sys.executable)} -m pip install'


def check_python(version=sys.version_info[:3]):
  """Checks the Python version. TensorFlow and the other requirements have wheels for 3.11, 3.12 and 3.13."""
  text = '.'.join(map(str, version))
  if (3, 11) <= tuple(version[:2]) <= (3, 13):
    return Result('ok', 'Python', f'{text}, {sys.executable}')
  venv = ROOT / '.venv'  # Which `make setup` would use again.
  remove = f'rm -r {shlex.quote(str(venv))} && ' if pathlib.Path(sys.prefix) == venv else ''
  return Result('wrong', 'Python', f'{text}; want 3.11, 3.12 or 3.13',
                f'{remove}apt-get install python3.11 python3.11-venv && make setup')


def check_package(name: str, module, python=sys.executable, required=True, use=''):
  """Checks that a Python package is installed, can be imported and has a version that is wanted.

  Args:
    name: the requirement's name.
    module: the name to import.
    python: the interpreter that should have the package.
    required: whether training needs the package.
    use: the use that needs the package, for the message.
  Returns:
    A Result.
  """
  answer = ask(python, '-c', f'import importlib.metadata, {module}; print(importlib.metadata.version({name!r}))')
  want = _versions(requirements()[name]) if name in requirements() else None
  if answer.worked and want is not None and fits(answer.text, want):
    return Result('ok', name, answer.text)
  found = f'{answer.text}; want {_shown(want)}' if answer.worked else answer.text
  return Result('wrong' if required else 'warn', name, f'{found} (for {use})' if use else found, _install(name))


def check_libraries(wanted=None):
  """Checks the versions of all requirements that have no check of their own.

  Args:
    wanted: requirements by name. Default: `requirements()`.
  Returns:
    A Result.
  """
  wanted = {name: _versions(line) for name, line in (wanted or requirements()).items() if name not in _CHECKED_APART}
  lacking = {}
  for name, versions in wanted.items():
    try:
      found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found = 'missing'
    if found == 'missing' or not fits(found, versions):
      lacking[name] = f'{name} is {found}, want {_shown(versions)}'
  if lacking:
    return Result('wrong', 'libraries', '; '.join(lacking.values()), _install(next(iter(lacking))))
  return Result('ok', 'libraries', f'{len(wanted)} others have the versions that are wanted')


def _why_build(library, folders=None):
  """Returns why a library must be built; '' if it was built from the sources in `folders` (default: of the ops)."""
  if not library.exists():
    return f'{library} is not built'
  sources = _load(ROOT / 'ops' / 'sources.py')
  return f'{library} is older than this code' if sources.is_stale(str(library), folders or sources.OPS) else ''


def _build_libraries(root):
  """Returns the command that builds the C++ code, or the one that installs a wheel with it if there is no source."""
  if (root / 'Makefile').exists():
    return 'make setup'
  return f'{_pip_install()} --force-reinstall --no-deps scalable_agents-*.whl'


def _build_again(path, root):
  """Returns the command that replaces a library, given its path."""
  return f'rm -f {shlex.quote(str(path))} && {_build_libraries(root)}'


def _check_library(name, path, load, why_build, root):
  """Checks that a library that exists loads, and is from the present sources.

  Args:
    name: its name in the report.
    path: the library.
    load: the command that loads it, and prints "loads".
    why_build: from `_why_build`.
    root: the folder of the package.
  """
  answer = ask(*load)
  if not answer.worked:
    return Result('wrong', name, f'{path} does not load: {answer.text}', _build_again(path, root))
  if why_build:
    return Result('wrong', name, why_build, _build_libraries(root))
  return Result('ok', name, f'{path} {answer.text}')


def check_op_library(path=ROOT / 'ops' / '_ops.so', python=sys.executable, root=ROOT):
  """Checks that the C++ ops are built, for the installed TensorFlow and from the present sources."""
  why_build = _why_build(path)
  if not path.exists():
    return Result('wrong', 'op library', why_build, _build_libraries(root))
  load = (python, '-c', f'import tensorflow as tf; tf.load_op_library({str(path)!r}); print("loads")')
  return _check_library('op library', path, load, why_build, root)


def check_pixel_library(path=ROOT / 'environments' / '_pixels.so', python=sys.executable, root=ROOT):
  """Checks that the C++ code for Atari's pixels is built. NumPy takes its place otherwise."""
  why_build = _why_build(path, ['environments'])
  if not path.exists():
    return Result('warn', 'pixel library', f'{why_build}: an Atari game takes four times as long',
                  _build_libraries(root))
  load = (python, '-c', f'import ctypes; ctypes.CDLL({str(path)!r}); print("loads")')
  return _check_library('pixel library', path, load, why_build, root)


def check_compiler(library=ROOT / 'ops' / '_ops.so', compiler=None):
  """Checks that there is a compiler for C++17. It is needed only where the C++ ops must be built."""
  # CXX may be a command such as `ccache g++`. Without it, setuptools takes the compiler of this Python.
  command = shlex.split(compiler or os.environ.get('CXX') or sysconfig.get_config_var('CXX') or 'c++')
  version = ask('sh', '-c', 'set -e; text=$("$@" --version); echo "$text" | head -n 1', 'sh', *command)
  compiles = ask(*command, '-std=c++17', '-include', 'optional', '-x', 'c++', '-fsyntax-only', os.devnull)
  if compiles.worked:
    return Result('ok', 'compiler', version.text)
  found = f'{version.text} has no C++17: {compiles.text}' if version.worked else compiles.text
  build = _why_build(library)
  return Result('wrong' if build else 'warn', 'compiler', f'{found} ({build or "only to build the C++ ops again"})',
                'apt-get install g++' + (', unset CXX' if 'CXX' in os.environ else ''))


def check_roms():
  """Checks the Atari games, which are part of ale-py."""
  answer = ask(sys.executable, '-c', _ASK_ROMS)
  if answer.worked:
    return Result('ok', 'Atari ROMs', answer.text)
  # Without --no-deps, pip would also install the newest versions of what ale-py needs.
  fix = _install('ale-py').replace(_pip_install(), f'{_pip_install()} --force-reinstall --no-deps')
  return Result('wrong', 'Atari ROMs', answer.text, fix)


def check_dmlab(python=sys.executable, which=shutil.which):
  """Checks that DeepMind Lab can open a level. It is not a requirement, because it has no wheel on PyPI."""
  installed = ask(python, '-c', 'import importlib.util as util; print(util.find_spec("deepmind_lab") is not None)')
  if installed.text == 'False':
    program = shlex.quote(os.path.join(sysconfig.get_path('scripts'), 'dmlab-gym'))  # It need not be on PATH.
    return Result(
        'warn', 'DeepMind Lab', 'not installed (for DMLab-30)',
        'build the wheel from source as its documentation says (//python/pip_package:build_pip_package), then: '
        f'{_pip_install()} deepmind_lab-*.whl; or, with Python 3.13, uv and Podman or Docker: '
        f'{_pip_install()} dmlab-gym && {program} build')
  answer = ask(python, '-c', _OPEN_LEVEL) if installed.worked else installed
  if answer.worked:
    return Result('ok', 'DeepMind Lab', answer.text)
  lacking = [name for name in _MAP_PROGRAMS if not which(name)]
  if lacking:  # Lab's own message is a drawing of the map.
    return Result('warn', 'DeepMind Lab', f'installed, but compiles no maps without {" and ".join(lacking)} '
                  '(for DMLab-30)', f'apt-get install {" ".join(lacking)}')
  return Result('warn', 'DeepMind Lab', f'installed, but cannot open a level: {answer.text} (for DMLab-30)',
                "see docs/dmlab.md, step 2, and docs/faq.md, 'DeepMind Lab', in the project's repository")


def check_kernels(python=sys.executable):
  """Checks that TensorFlow uses oneDNN's kernels on the CPU. They are on unless the user has turned them off."""
  answer = ask(python, str(ROOT / 'processes' / 'kernels.py'))
  if not answer.worked:
    return Result('warn', 'kernels', f'unknown: {answer.text}', _install('tensorflow'))
  if 'oneDNN is off' in answer.text:
    return Result('warn', 'kernels', answer.text, 'unset TF_ENABLE_ONEDNN_OPTS')
  return Result('ok', 'kernels', answer.text)


def check_gpus(python=sys.executable, nvidia_smi='nvidia-smi', root=ROOT):
  """Checks the driver, CUDA's libraries, that TensorFlow finds the GPUs and that XLA compiles for them.

  Training needs no GPU.
  """
  cards = _load(ROOT / 'processes' / 'cards.py')  # The module that gives the reason in a program's first lines.
  there, capability = (ask(nvidia_smi, f'--query-gpu={fields}', '--format=csv,noheader')
                       for fields in ('name,driver_version', 'compute_cap'))
  major = re.match(r'\d+', capability.text)
  oldest = _OLDEST_FOR_PTX if major and int(major[0]) >= _PTX_CAPABILITY else _OLDEST_DRIVER
  install_driver = f"install NVIDIA's driver, {oldest} or later; in a container: docker run --gpus=all"
  if not there.worked:
    if there.text.endswith(' not found') and not cards.models() and not cards.has_cuda_libraries():
      return Result('ok', 'GPUs', 'none: training runs on the CPU')
    return Result('warn', 'GPUs', f'none can be used: {there.text}', install_driver)
  name, _, driver = there.text.rpartition(', ')
  card = f'{name}, driver {driver}'
  seen = ask(python, '-c', _USE_GPUS)
  if seen.worked and seen.text != '0':
    return Result('ok', 'GPUs', f'{seen.text}, {card}; XLA compiles for it')
  number = re.match(r'\d+', driver)
  if number and int(number[0]) < oldest:
    return Result('warn', 'GPUs', f'the machine has {card}, which is too old for TensorFlow', install_driver)
  if fault := cards.find_fault(root):
    return Result('warn', 'GPUs', f'the machine has {card}, but {fault.reason}', fault.fix)
  why = 'TensorFlow does not find it' if seen.worked else f'TensorFlow cannot use it: {seen.text}'
  return Result('warn', 'GPUs', f'the machine has {card}, but {why}',
                f'to see TensorFlow\'s reason: {shlex.quote(python)} -c '
                '"import tensorflow as t; t.config.list_physical_devices()"')


def _load(path):
  """Imports a Python file that imports only the standard library."""
  return types.SimpleNamespace(**runpy.run_path(str(path)))


def check_limits(script=ROOT / 'processes' / 'machine.py', wanted_free_bytes=4 << 30):
  """Checks the cores and the memory that the machine and the limits of control groups leave to this process.

  The default of `wanted_free_bytes` is the memory for training Pong with 32 environments, plus a reserve.
  """
  answer = ask(sys.executable, str(script))
  try:
    cores, all_cores, memory, all_memory, free = map(int, answer.text.split())
  except ValueError:
    return Result('warn', 'limits', f'unknown: {answer.text}', _install('psutil'))
  found = (f'{cores} of {all_cores} cores; {memory / 2**30:.1f} of {all_memory / 2**30:.1f} GiB of memory, '
           f'{free / 2**30:.1f} GiB free')
  fixes = []
  if cores < 2 <= all_cores:
    fixes.append('allow more cores: docker run --cpus=2, sbatch --cpus-per-task=2')
  if free < wanted_free_bytes:
    fixes.append('stop other programs, or train with fewer environments: --num_environments=8')
    if memory < all_memory:
      fixes.append('allow more memory: docker run --memory=8g, sbatch --mem=8G')
  return Result('warn' if fixes else 'ok', 'limits', found, '; '.join(fixes))


def check_shared_memory():
  """Checks shared memory.

  Environments write observations to anonymous shared memory. It counts as memory, not as space in /dev/shm.
  """
  needed_bytes = 64 << 20  # Enough for some hundred environments.
  try:
    descriptor = os.memfd_create('doctor')
    try:
      os.ftruncate(descriptor, needed_bytes)
      with mmap.mmap(descriptor, needed_bytes) as memory:
        memory[::mmap.PAGESIZE] = b'x' * len(range(0, needed_bytes, mmap.PAGESIZE))
    finally:
      os.close(descriptor)
  except (AttributeError, OSError, ValueError) as error:
    return Result('wrong', 'shared memory', f'cannot be made: {error!r}',
                  'use Linux 3.17 or later and free some memory')
  return Result('ok', 'shared memory', 'works; /dev/shm is not needed')


def check_open_files():
  """Checks the limit of open files.

  Training raises the soft limit itself. It has five file descriptors for each environment worker; see
  actor/environment_workers.py.
  """
  workers = 64
  needed = 256 + 5 * workers
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  found = f'{workers} environment workers need {needed}'
  if hard == resource.RLIM_INFINITY or hard >= needed:
    return Result('ok', 'open files', found)
  return Result('wrong', 'open files', f'limit {hard}; {found}',
                f"echo '* hard nofile {needed}' | sudo tee -a /etc/security/limits.conf, then log in again")


def check_bazel(which=shutil.which, gtest='/usr/include/gtest/gtest.h', root=ROOT):
  """Checks Bazel and googletest, which `make test` and `bazel run` need. Training works without them."""
  if ' ' in str(root) and (root / 'Makefile').exists():  # An installed package has nothing that Bazel could build.
    return Result('warn', 'Bazel', f'Bazel does not work in a folder whose path has a space: {root} (for make test)',
                  'move the folder to a path without spaces, and then: make setup')
  lacking = [name for name, there in (('Bazel', which('bazel')), ('googletest', os.path.exists(gtest))) if not there]
  if not lacking:
    try:
      answer = subprocess.run([which('bazel'), '--version'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, timeout=_SECONDS, check=False).stdout
    except (OSError, subprocess.SubprocessError) as error:  # Bazelisk first downloads a Bazel.
      return Result('warn', 'Bazel', str(error), 'apt-get install bazel-bootstrap')
    if answer.strip() == _DEBIANS_BAZEL:
      return Result('ok', 'Bazel', "Debian's build")
    major = re.match(r'bazel (\d+)\.', answer)
    if major and int(major[1]) < 8:
      return Result('ok', 'Bazel', answer.strip())
    found = f'{which("bazel")} --version: {answer.strip()!r}'
    if major:  # It ignores WORKSPACE.
      return Result('warn', 'Bazel', f'{found}; Bazel 8 and later read MODULE.bazel, which has not been tried',
                    'bazel test --config=modules //..., or with Bazelisk: export USE_BAZEL_VERSION=4.2.3')
    return Result('warn', 'Bazel', found, 'apt-get install bazel-bootstrap')
  return Result('warn', 'Bazel', f'{" and ".join(lacking)} not found (for make test)',
                'apt-get install bazel-bootstrap bazel-rules-java bazel-rules-proto libgtest-dev')


CHECKS = (
    check_python,
    lambda: check_package('tensorflow', 'tensorflow'),
    check_libraries,
    check_op_library,
    check_pixel_library,
    check_compiler,
    check_roms,
    lambda: check_package('gymnasium', 'gymnasium'),
    check_dmlab,
    check_kernels,
    check_gpus,
    check_limits,
    check_shared_memory,
    check_open_files,
    check_bazel,
    lambda: check_package('imageio-ffmpeg', 'imageio_ffmpeg', required=False, use='--video'),
)


def main(checks=CHECKS):
  """Runs the checks and prints their results. Returns the exit code."""
  wrong = 0
  for check in checks:
    try:
      result = check()
    except Exception as error:  # The other checks must run in any case.
      result = Result('wrong', getattr(check, '__name__', 'check'), f'the check itself failed: {error!r}')
    print(f'{result.status:6}{result.name:16}{result.found}', flush=True)
    if result.fix:
      print(f'{"":6}{"":16}fix: {result.fix}', flush=True)
    wrong += result.status == 'wrong'
  return 1 if wrong else 0


if __name__ == '__main__':
  try:
    if '--help' in sys.argv:
      print(__doc__, flush=True)
    else:
      sys.exit(__doc__ if len(sys.argv) > 1 else main())
  except KeyboardInterrupt:
    sys.exit(130)  # The exit code of a shell after Ctrl-C.
  except OSError as failure:  # Printing failed. Errors within a check become its result.
    print(f'error: standard output: {failure.strerror}', file=sys.stderr, flush=True)
    os._exit(1)  # A normal exit would try to write the rest of the output.
