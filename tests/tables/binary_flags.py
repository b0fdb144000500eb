"""The flags that a binary stores in config.json, for the tests of tables."""

import dataclasses

from scalable_agents.cluster import cluster_config
from scalable_agents.population import population_config
from scalable_agents.training import run_config


def of(*configs, **others):
  """Returns the flags of a run of a binary with these configs, such as the agent's and the protocol, and `others`."""
  flags = {}
  common = population_config.PopulationConfig(), cluster_config.ClusterConfig(), run_config.RunConfig()
  for config in (*configs, *common):
    flags |= dataclasses.asdict(config)
  return flags | others


# These settings are free for every agent.
FREE = frozenset({*run_config.FREE_FLAGS, 'seed', 'sweep_index', 'job_name', 'learner_addresses', 'task',
                  'learner_timeout_seconds', 'relay_port', 'parameters_from', 'save_replay'})


def others(flags, apart):
  """Returns another value of each of these flags, by name, without those in `apart`."""
  return {name: value + '_' if isinstance(value, str) else not value if isinstance(value, bool) else value * 2 + 1
          for name, value in flags.items() if name not in apart}
