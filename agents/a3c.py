"""A3C, the asynchronous baseline of the IMPALA paper.

Mnih et al. 2016, algorithm S3; Espeholt et al. 2018 (IMPALA), sections 5.1 and 5.3, table 1 and figure 4. Each worker
has an environment and its own copy of the parameters, and repeats:

  1. It takes the latest parameters.
  2. It plays one unroll with them.
  3. With the same parameters, it computes the gradient of the loss of its unroll. So nothing has to be corrected.
  4. It sends the gradient to the shared parameters, to which RMSProp applies it. Meanwhile other workers have changed
     them. The metric `policy_lag` counts these updates.

Workers do not wait for each other, unless their environments share a process (--num_environment_workers), and they do
not lock the parameters. The learner's queue holds gradients instead of unrolls, and the learner's thread applies each
gradient as a whole, in the order of arrival, so no update is lost. Workers are on this machine, or in actor hosts on
other machines, which only have another way to the queue.

This file has, in this order, the network, the work of a worker, the update of the shared parameters and the definition.
The loss is that of A2C (a2c.py), and configs.py has the hyper-parameters.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import a2c
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.environments import registry
from scalable_agents.learner import frame_stacks
from scalable_agents.learner import learner_step
from scalable_agents.training import run_config

_WORKERS = 32           # Table 1, single machine.
_WORKERS_PER_LEVEL = 7  # Section 5.3.1, DMLab-30.


class Agent(impala.Agent):
  """IMPALA's network. Unlike an actor of IMPALA, a worker also needs the parameters of the value."""

  @property
  def acting_variables(self) -> list[tf.Variable]:
    """All trainable variables."""
    return list(self.trainable_variables)


class Gradient(NamedTuple):
  """What a worker sends of an unroll. In the learner's batch, each tensor has an axis of 1 after its first one."""
  action: tf.Tensor               # [T+1] int32, by which unrolls from other machines are checked.
  total: tf.Tensor                # [1] float32, the loss.
  terms: Mapping[str, tf.Tensor]  # learner_step.Loss.terms, [1] float32 each.
  gradients: list[tf.Tensor]      # For each trainable variable, the gradient of the loss.


def work(agent: Agent, unroll: unroll_lib.Unroll, config: configs.A3cConfig) -> unroll_lib.Unroll:
  """Computes the gradient of a worker's loss.

  Args:
    agent: the network, with the parameters that acted.
    unroll: one unroll, of [T+1, ...] tensors.
    config: A3cConfig.
  Returns:
    The unroll with a Gradient as its agent_output, and without observations and states.
  """
  environment, device = unroll.environment_output, agent.trainable_variables[0].device
  prepared = environment._replace(observation=agent.prepare(environment.observation))
  batch = unroll_lib.batch_of(unroll._replace(environment_output=prepared))
  with tf.GradientTape() as tape:
    loss = a2c.loss(agent, learner_step.Batch(frame_stacks.with_stacks(batch, device)), config)
  sent = Gradient(unroll.agent_output.action, loss.total[tf.newaxis],
                  {name: term[tf.newaxis] for name, term in loss.terms.items()},
                  [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss.total, agent.trainable_variables)])
  return unroll._replace(agent_state=(), earlier_frames={}, environment_output=environment._replace(observation={}),
                         agent_output=sent)


def loss(agent: Agent, batch: learner_step.Batch, unused_config: configs.A3cConfig) -> learner_step.Loss:
  """A loss of the shared parameters whose value and gradient are those that the worker has sent."""
  sent = batch.unroll.agent_output
  # The gradient of this product is the worker's gradient. Its value is not used: it is subtracted below, exactly.
  product = tf.add_n([tf.reduce_sum(tf.squeeze(gradient, 1) * variable)
                      for gradient, variable in zip(sent.gradients, agent.trainable_variables, strict=True)])
  return learner_step.Loss(sent.total[0, 0] + (product - tf.stop_gradient(product)),
                           {name: term[0, 0] for name, term in sent.terms.items()})


def tuned(config: configs.A3cConfig) -> dict[str, bool]:
  """Returns the hyper-parameters that populations tune, as impala.tuned. Only the workers use the entropy cost."""
  return {name: in_use for name, in_use in impala.tuned(config).items() if name != 'entropy_cost'}


def complete_run(config: configs.A3cConfig, run: run_config.RunConfig) -> run_config.RunConfig:
  """Returns the run's settings with the paper's number of workers, each of which computes its actions alone."""
  num_levels = len(registry.expand(config.level_name))
  num_workers = run.num_environments
  if num_workers == 'auto':
    num_workers = _WORKERS if num_levels == 1 else _WORKERS_PER_LEVEL * num_levels
  # In a synchronous run all workers begin an unroll with the same parameters, so one batch can compute their actions.
  return dataclasses.replace(run, num_environments=num_workers, dynamic_batching=config.synchronous)


A3C = dataclasses.replace(
    a2c.A2C,
    name='a3c',
    config=configs.A3cConfig,
    validate=configs.validate_on_policy,
    network=Agent,
    work=work,
    loss=loss,
    tuned=tuned,
    complete_run=complete_run,
    # While 32 workers make one step each, one or two of them begin an unroll of 20 steps, with the latest parameters.
    steps_between_fetches=lambda config: 1,
    can_have_several_learners=False,
)
