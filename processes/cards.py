"""Lists the NVIDIA cards of this machine, and finds out why TensorFlow does not see them, without importing TensorFlow.

This file imports only the standard library, because the doctor runs it before anything is installed.
"""

import importlib.metadata
import os
import pathlib
import re
import sys
from typing import NamedTuple

_SYSTEM = pathlib.Path('/')  # The root of the file system.
_ROOT = pathlib.Path(__file__).resolve().parent.parent


class Fault(NamedTuple):
  """Why TensorFlow finds no card."""
  reason: str
  fix: str  # The command or the flag that fixes it.


def models() -> list[str]:
  """Returns the models of this machine's cards."""
  found = []
  for path in _driver_files():
    lines = dict(line.split(':', 1) for line in path.read_text('utf-8', 'replace').splitlines() if ':' in line)
    found.append(lines.get('Model', 'NVIDIA card').strip())
  # In the Windows Subsystem for Linux, the driver belongs to Windows. There is an nvidia-smi, but no file with the
  # model.
  is_windows = all((_SYSTEM / path).exists() for path in ('dev/dxg', 'usr/lib/wsl/lib/nvidia-smi'))
  # Some containers have the devices, but not the driver's files.
  return found or ['NVIDIA card'] * max(len(_devices()), is_windows)


def find_fault(root: pathlib.Path = _ROOT) -> Fault | None:
  """Returns what hides the cards, or which of CUDA's libraries are missing. None if TensorFlow should find the cards.

  Args:
    root: this project's root. Without a Makefile in it, the project was installed with pip.
  """
  # In a container or a job, the driver's files describe all cards of the machine. But only the assigned devices exist
  # there, or can be opened.
  devices = [path for path in _devices() if os.access(path, os.R_OK | os.W_OK)]
  if _driver_files() and not devices:
    return Fault('this container or job was given no card', 'docker run --gpus=all, sbatch --gres=gpu:1')
  if os.environ.get('CUDA_VISIBLE_DEVICES', 'unset') in ('', '-1'):
    return Fault('CUDA_VISIBLE_DEVICES hides it', 'unset CUDA_VISIBLE_DEVICES')
  packages = _cuda_packages()
  missing = {name: files for name in packages if (files := _missing_files(name))}
  pip = f'{sys.executable} -m pip install'
  if missing and not has_cuda_libraries():
    tensorflow = f"'tensorflow[and-cuda]=={importlib.metadata.version('tensorflow')}'"
    return Fault('TensorFlow has no CUDA libraries',
                 'make setup GPU=1' if (root / 'Makefile').exists() else f'{pip} {tensorflow}')
  if missing:
    wanted = ' '.join(f"'{packages[name]}'" for name in missing)
    return Fault(f'CUDA libraries are missing: {", ".join(sum(missing.values(), []))}',
                 f'{pip} --force-reinstall --no-deps {wanted}')
  return None


def has_cuda_libraries() -> bool:
  """Returns whether at least one of the packages with CUDA's libraries is installed."""
  return any(_missing_files(name) != [name] for name in _cuda_packages())


def _driver_files():
  """Returns the driver's file about each card of the machine. The files exist even if TensorFlow sees no card."""
  return sorted(_SYSTEM.glob('proc/driver/nvidia/gpus/*/information'))


def _devices():
  """Returns the paths of the cards' devices, which a container or job may have without permission to open them."""
  return list(_SYSTEM.glob('dev/nvidia[0-9]*'))


def _cuda_packages() -> dict[str, str]:
  """Returns the requirements of CUDA's packages by name, as the installed TensorFlow lists them."""
  try:
    lines = importlib.metadata.requires('tensorflow') or []
  except importlib.metadata.PackageNotFoundError:
    return {}
  wanted = [line.split(';')[0].strip() for line in lines if 'and-cuda' in line]
  return {re.split('[^A-Za-z0-9._-]', line)[0]: line for line in wanted}


def _missing_files(package: str) -> list[str]:
  """Returns the libraries of a package that are not there, or the package's name if it is not installed."""
  try:
    files = importlib.metadata.files(package) or []
  except importlib.metadata.PackageNotFoundError:
    return [package]
  return [file.name for file in files if '.so' in file.name and not os.path.exists(file.locate())]
