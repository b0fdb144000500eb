"""A preset: an agent with its settings for a suite of levels, as a paper trains it. Each binary runs one.

This module does not import TensorFlow, so that launchers and tables know all presets.
"""

import dataclasses
from typing import Any

from scalable_agents.records import runtime_config
from scalable_agents.training import run_config


@dataclasses.dataclass(frozen=True)
class Preset:
  """An agent and the defaults of the flags of its binary."""
  agent: str                            # 'module:NAME' of its Definition (training/definition.py).
  config: runtime_config.RuntimeConfig  # The hyper-parameters.
  protocol: Any                         # The settings of the environments, a definition.EnvironmentProtocol.
  run: run_config.RunConfig = run_config.RunConfig()  # What does not affect what is learned.
  population_size: int = 24  # Members of a population; IMPALA, appendix F.
