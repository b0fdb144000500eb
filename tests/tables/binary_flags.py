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
