"""IMPALA, PopArt-IMPALA, R2D2 and LASER in TensorFlow 2."""

__version__ = '0.1.0'  # CHANGELOG.md says what each version brought.


def __getattr__(name: str):
  """Imports the Python interface when it is used, because it needs TensorFlow."""
  if name in ('load', 'train', 'TrainingError'):
    import importlib
    return getattr(importlib.import_module('scalable_agents.agents.python_api'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
