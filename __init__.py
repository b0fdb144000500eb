"""IMPALA, PopArt-IMPALA, R2D2 and LASER in TensorFlow 2."""

__version__ = '0.1.0'  # CHANGELOG.md says what each version brought.

from scalable_agents import moved_modules as moved_modules  # Old names of modules keep working.
