"""The flags of a preset's binary. They are checked before TensorFlow is imported, which takes seconds.

This module does not import TensorFlow, so `--help` and the message about a wrong flag come at once.
"""

from absl import flags

from scalable_agents.cluster import cluster_config
from scalable_agents.environments import registry
from scalable_agents.launch import preset as preset_lib
from scalable_agents.population import population_config
from scalable_agents.processes import run_flags
from scalable_agents.records import errors


def define(preset: preset_lib.Preset, flag_values: flags.FlagValues = flags.FLAGS):
  """Defines a flag for each setting of a preset, with the preset's value as default.

  The settings of a population and of a cluster are flags too, and are the same for all binaries.
  """
  for defaults in _parts(preset):
    run_flags.define(defaults, flag_values)


def check(preset: preset_lib.Preset):
  """Parses the command line, and checks each flag by itself. launch/program.py checks combinations of flags.

  --help and a flag that cannot be parsed end the process.

  Raises:
    errors.UserError: a value is out of its range, or a level is unknown.
  """
  run_flags.parse()
  for defaults in _parts(preset):
    run_flags.config_from_flags(type(defaults))
  if run_flags.config_from_flags(type(preset.run)).mode == 'test':
    return  # The levels are those of the run in --logdir, which the program reads.
  config = run_flags.config_from_flags(type(preset.config))
  with errors.of_user(ValueError, ImportError, prefix='--level_name: '):
    for level in registry.expand(config.level_name):
      if ':' not in level:  # The check of a user's own environment makes it, so only the program does this, once.
        registry.check(level)


def _parts(preset):
  return (preset.config, preset.protocol, population_config.PopulationConfig(), cluster_config.ClusterConfig(),
          preset.run)
