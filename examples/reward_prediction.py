"""IMPALA with an auxiliary task: it also predicts whether its next action will be rewarded.

Jaderberg et al. 2016 (UNREAL), section 3.2. Differs from the paper: the prediction is made from the features of one
step, and is learned from all steps, where the paper draws rewarded ones more often.
"""

import dataclasses

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.networks import networks
from scalable_agents.records.settings import setting


@dataclasses.dataclass(frozen=True)
class Config(configs.ImpalaConfig):
  """IMPALA's hyper-parameters, and the weight of the auxiliary task. Each is a flag."""
  reward_prediction_cost: float = setting(0.1, 'Weight of the reward prediction in the loss.', at_least=0)


class Agent(impala.Agent):
  """IMPALA's network, and a head for three classes of rewards: negative, none, positive."""

  def __init__(self, spec, config):
    super().__init__(spec, config)
    self.reward_head = networks.Linear(3, networks.Seeds(config.seed + 1), 'reward')
    self.reward_head(tf.zeros([1, self.num_features]))  # The first call of a layer creates its variables.

  @property
  def acting_variables(self):
    """Those of IMPALA: actors do not need the new head."""
    of_head = {id(variable) for variable in self.reward_head.trainable_variables}
    return [variable for variable in super().acting_variables if id(variable) not in of_head]


def loss(agent, batch, config):
  """IMPALA's loss plus the cross-entropy of the predicted classes [T, B], summed over time and batch: a Loss of []."""
  unroll, steps = batch.unroll, unroll_lib.steps(batch.unroll)
  output, _ = agent.unroll(acting.inputs_of(unroll), unroll.agent_state)
  of_impala = impala.loss_of_output(agent, unroll, output, config)
  logits = agent.reward_head(output.features[:-1])        # [T, B, 3], before the action.
  rewards = acting.finite_rewards(steps.r_t)              # An invalid reward only makes IMPALA skip the update.
  classes = 1 + tf.cast(tf.sign(rewards), tf.int32)       # [T, B], what it earned.
  errors = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
  prediction = tf.reduce_sum(errors * tf.cast(steps.real_t, tf.float32))
  return of_impala._replace(total=of_impala.total + config.reward_prediction_cost * prediction,
                            terms={**of_impala.terms, 'loss/reward_prediction': prediction})


REWARD_PREDICTION = dataclasses.replace(
    impala.IMPALA, name='reward_prediction', config=Config, network=Agent, loss=loss)
