"""Short synchronous training runs in this process, for tests of learning."""

import dataclasses
import io

from scalable_agents.actor import actor_host
from scalable_agents.environments import registry
from scalable_agents.launch import atari57_protocol
from scalable_agents.records import run_directory
from scalable_agents.tests.training import training
from scalable_agents.training import run_config
from scalable_agents.training import train_loop


def train(test, agent, config, num_environments=16):
  """Trains to the end. Returns the rows of metrics.jsonl.

  Args:
    test: the test case.
    agent: the agent's definition.
    config: the agent's hyper-parameters. The run must be synchronous, or the result depends on the machine's pace.
    num_environments: number of environments.
  """
  agent.validate(config)
  assert config.synchronous
  run = run_config.RunConfig(logdir=test.create_tempdir().full_path, num_environments=num_environments,
                            num_environment_workers=2)
  levels = registry.expand(config.level_name)
  with run_directory.open_run(run.logdir, dataclasses.asdict(config), ()) as directory:
    host = actor_host.ActorHost(levels, atari57_protocol.Protocol().environments(levels, True), run, config.seed)
    train_loop.Trainer(host, training.job(agent, config, run), directory, io.StringIO()).train()
  return training.rows(run.logdir)
