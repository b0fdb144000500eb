"""Checks a wheel: installs it in a new environment where no compiler is found, runs the doctor and learns `catch`.

  python tools/check_wheel.py dist/scalable_agents-0.1.0-….whl [PYTHON ...]

Each PYTHON is an interpreter, for which pip also installs the requirements. Without one, this program's interpreter is
used, and the new environment borrows its requirements. The doctor checks that their versions are in the wheel's ranges.
The last line is the result, and the exit code is 0 or 1.
"""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

_LEARN = ('impala_atari57', '--level_name=catch', '--torso=shallow', '--batch_size=8', '--unroll_length=10',
          '--optimizer=adam', '--learning_rate=2e-3', '--nolearning_rate_decay', '--num_environments=32',
          '--synchronous', '--total_environment_frames=30000')
_ENOUGH = 0.5  # Mean return of the evaluation. A random policy has -0.6, and the best one 1.


def _install(wheel, python, folder):
  """Installs the wheel in `folder`. Returns the environment's folder of programs."""
  subprocess.run([python or sys.executable, '-m', 'venv', folder], check=True)
  programs = folder / 'bin'
  pip = [programs / 'python', '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
  if python:
    subprocess.run([*pip, wheel], check=True)
  else:
    own, = (folder / 'lib').glob('python*/site-packages')
    (own / 'borrowed.pth').write_text(sysconfig.get_paths()['purelib'] + '\n', encoding='utf-8')
    subprocess.run([*pip, '--no-deps', '--no-index', '--force-reinstall', wheel], check=True)
  return programs


def check(wheel, python, folder):
  """Returns the mean return of an agent that learned `catch` with the installed wheel."""
  programs = _install(wheel, python, folder / 'environment')
  logdir = folder / 'run'
  environment = {'PATH': str(programs), 'HOME': str(folder)}  # No compiler, and none of the user's variables.
  learn = (*_LEARN, f'--logdir={logdir}')
  for arguments in (('doctor',), learn, (*learn, '--mode=test', '--test_num_episodes=50')):
    subprocess.run([programs / 'scalable-agents', *arguments], cwd=folder, env=environment, check=True)
  evaluation = json.loads((logdir / 'evaluation.json').read_text(encoding='utf-8'))
  return evaluation['levels']['catch']['mean']


def main():
  """Checks the wheel with each interpreter, and prints a line for each."""
  if '--help' in sys.argv:
    print(__doc__)
    return
  if len(sys.argv) == 1:
    sys.exit(__doc__)
  wheel, *pythons = sys.argv[1:]
  for python in pythons or [None]:
    with tempfile.TemporaryDirectory() as folder:
      reached = check(os.path.abspath(wheel), python, pathlib.Path(folder))
    print(f'{os.path.basename(wheel)}, {python or sys.executable}: mean return {reached:.2f} on catch '
          f'(wanted: {_ENOUGH})', flush=True)
    if reached < _ENOUGH:
      sys.exit(1)


if __name__ == '__main__':
  main()
