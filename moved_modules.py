"""The old names of modules that have moved. They keep working for one release, with a warning."""

import importlib
import importlib.abc
import importlib.util
import sys
import warnings

_PROJECT = __package__
MOVED = {  # Old name -> new name.
    'learner.episode_replay': 'replay.episode_replay',
    'learner.replay': 'replay.sequence_replay',
    'training.atari57_protocol': 'launch.atari57_protocol',
    'training.dmlab30_protocol': 'launch.dmlab30_protocol',
    'training.experience': 'experience.experience',
    'training.intake': 'experience.intake',
    'training.quiet': 'processes.quiet',
    'training.run_flags': 'processes.run_flags',
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Imports the new module in place of the old one."""

  def find_spec(self, fullname, path=None, target=None):
    """See importlib.abc.MetaPathFinder."""
    if fullname.removeprefix(f'{_PROJECT}.') in MOVED:
      return importlib.util.spec_from_loader(fullname, self)
    return None

  def create_module(self, spec):
    """Returns the new module, under both names."""
    new = f'{_PROJECT}.{MOVED[spec.name.removeprefix(f"{_PROJECT}.")]}'
    warnings.warn(f'{spec.name} is {new} now', DeprecationWarning, stacklevel=2)
    module = importlib.import_module(new)
    self._spec = module.__spec__
    return module

  def exec_module(self, module):
    """Undoes what the import system has changed: the module has run already."""
    module.__spec__ = self._spec


sys.meta_path.append(_Finder())
