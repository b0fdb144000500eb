"""Trains IMPALA on `constant_environment`. benchmark.py starts this program and ends it with a signal.

  python -m scalable_agents.benchmark.constant_training '{"level_name": "dmlab"}' '{"logdir": "/tmp/run"}'
"""

import dataclasses
import json
import sys

from scalable_agents.processes import devices
from scalable_agents.processes import kernels
from scalable_agents.processes import standard_streams

if __name__ == '__main__':
  kernels.choose()  # Before TensorFlow is imported.

from scalable_agents.actor import actor_host
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import registry
from scalable_agents.benchmark import constant_environment
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import run_directory
from scalable_agents.training import definition
from scalable_agents.training import run_config
from scalable_agents.training import train_loop

_ENVIRONMENT = f'{constant_environment.__name__}:{constant_environment.Constant.__name__}'


def train(config: configs.ImpalaConfig, run: run_config.RunConfig):
  """Trains in run.logdir; config.level_name is one of constant_environment.LEVELS."""
  with run_directory.open_run(run.logdir, dataclasses.asdict(config) | dataclasses.asdict(run), ()) as directory:
    devices.configure_tensorflow()
    job = definition.Job(impala.IMPALA, registry.AGENTS['impala'], config, atari57_protocol.Protocol(), run,
                         (config.level_name,))
    host = actor_host.ActorHost(job.levels, {}, run, config.seed, environment=_ENVIRONMENT)
    try:
      train_loop.Trainer(host, job, directory, sys.stderr).train()
    finally:
      host.close()


if __name__ == '__main__':
  standard_streams.make_unfailing()
  train(configs.ImpalaConfig(**json.loads(sys.argv[1])), run_config.RunConfig(**json.loads(sys.argv[2])))
