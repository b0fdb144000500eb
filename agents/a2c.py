"""Batched A2C, the synchronous baseline of the IMPALA paper.

Espeholt et al. 2018, section 5.1, table 1 and figure 4; Clemente et al. 2017. Environments play with the newest
parameters, and the learner learns from what they have just played. So the learning is on-policy and needs no
correction, but the environments and the learner always wait for each other. This file has, in this order, the loss and
the definition. The network is IMPALA's (impala.py), and configs.py has the hyper-parameters.

`batching` says what environments wait for while they play (figure 2). There are always as many environments as unrolls
in a batch. All of them play one unroll, then the learner makes one update, then all of them go on. With several levels,
a batch size that is a multiple of their number gives all of them equal shares.

  sync_step         All environments make each step together, and their actions are computed in one batch.
  sync_trajectory   Each environment makes its steps at its own pace, and its actions are computed alone.
  dynamic_batching  As sync_trajectory, but the actions of environments that need one at the same time are computed in
                    one batch.

Environments that share a process are stepped one after the other. With --num_environment_workers as large as the number
of environments, each has a process of its own, as in the paper.
"""

import dataclasses

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.environments import registry
from scalable_agents.learner import learner_step
from scalable_agents.learner import losses
from scalable_agents.learner import vtrace
from scalable_agents.training import definition
from scalable_agents.training import run_config


def loss(agent: impala.Agent, batch: learner_step.Batch, config: configs.ActorCriticConfig) -> learner_step.Loss:
  """The on-policy actor-critic loss with n-step returns, summed over time and batch.

  The return of a step is G_tm1 = r_t + discount_t G_t. At the unroll's last state, G is the value of that state. G_tm1
  is the target of the value, and G_tm1 - V(x_tm1) is the advantage.

  Args:
    agent, batch: as for `impala.loss`.
    config: ActorCriticConfig; its `entropy_cost` may be a variable.
  """
  unroll, steps = batch.unroll, unroll_lib.steps(batch.unroll)
  output, _ = agent.unroll(acting.inputs_of(unroll), unroll.agent_state)
  v_tm1, v_t = output.baseline[:-1, :, 0], output.baseline[1:, :, 0]                       # [T, B] each.
  r_t = losses.transform_rewards(steps.r_t, config.reward_transform)
  log_pi_tm1 = vtrace.log_probs_from_logits_and_actions(output.policy_logits[:-1], steps.a_tm1)
  # On-policy, the importance weights are 1, and V-trace's targets are the n-step returns (section 4.1, equation 2).
  targets = vtrace.from_importance_weights(
      tf.zeros_like(log_pi_tm1), config.discount * steps.discount_t, r_t, v_tm1, v_t[-1], trusted=steps.real_t)
  return impala.actor_critic_loss(agent, unroll, output, v_tm1, log_pi_tm1, targets, config)


def complete_run(config: configs.A2cConfig, run: run_config.RunConfig) -> run_config.RunConfig:
  """Returns the run's settings with an environment for each unroll of a batch, and with the batching of `config`.

  Raises:
    ValueError: --num_environments or --nodynamic_batching contradicts `config`, or there are more levels than unrolls.
  """
  num_levels = len(registry.expand(config.level_name))
  if config.batch_size < num_levels:
    raise ValueError(f'--batch_size={config.batch_size}: want at least {num_levels}, one unroll per level in each '
                     'batch, and a multiple of it for equal shares')
  if run.num_environments not in ('auto', config.batch_size):
    raise ValueError(f'--num_environments={run.num_environments}: want auto or {config.batch_size}: in A2C, each '
                     'environment plays one unroll of each batch (--batch_size)')
  if not run.dynamic_batching and config.batching != 'sync_trajectory':
    raise ValueError(f'--nodynamic_batching: want --batching=sync_trajectory, got {config.batching}')
  return dataclasses.replace(run, num_environments=config.batch_size,
                             dynamic_batching=run.dynamic_batching and config.batching != 'sync_trajectory')


A2C = dataclasses.replace(
    impala.IMPALA,
    name='a2c',
    config=configs.A2cConfig,
    validate=configs.validate_a2c,
    loss=loss,
    complete_run=complete_run,
    is_on_policy=True,
    make_experience=definition.queue_experience,
    replay_steps=lambda config: 0,
)
