"""Runs the programs for tables, for tests."""

import subprocess
import sys

from scalable_agents.processes import python_path


def start(module: str, *flags: str, folder: str | None = None, **environment: str) -> subprocess.CompletedProcess:
  """Runs a program to its end. Returns its exit code and output.

  Args:
    module: the full name of its module.
    *flags: its flags.
    folder: where it runs; None for the current folder.
    **environment: environment variables.
  """
  return subprocess.run([sys.executable, '-m', module, *flags], capture_output=True, text=True,
                        env=python_path.environment() | environment, cwd=folder, check=False)


def imports_tensorflow(module: str) -> bool:
  """Whether importing a module, given by its full name, imports TensorFlow, which takes seconds."""
  program = f'import sys, {module}; print("tensorflow" in sys.modules)'
  done = subprocess.run([sys.executable, '-c', program], env=python_path.environment(), check=True, capture_output=True,
                        text=True)
  return done.stdout != 'False\n'
