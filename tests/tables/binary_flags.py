"""The flags that a binary stores in config.json, for the tests of tables."""

import dataclasses

from scalable_agents.training import run_flags
from scalable_agents.training.cluster import cluster_config
from scalable_agents.training.population import population_member


def of(*configs, **others):
  """Returns the flags of a run of a binary with these configs, such as the agent's and the protocol, and `others`."""
  flags = {}
  for config in (*configs, population_member.PopulationConfig(), cluster_config.ClusterConfig(), run_flags.RunConfig()):
    flags |= dataclasses.asdict(config)
  return flags | others
