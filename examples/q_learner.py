"""An agent from scratch: Q-learning with a replay, a target network and an epsilon for each actor."""

import dataclasses

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import learner_step
from scalable_agents.learner import q_learning
from scalable_agents.networks import networks
from scalable_agents.networks import torsos
from scalable_agents.records import runtime_config
from scalable_agents.records.settings import setting
from scalable_agents.training import definition


@dataclasses.dataclass(frozen=True)
class Config(runtime_config.RuntimeConfig):
  """The hyper-parameters. Each is a flag."""
  discount: float = setting(0.9, 'Discount per agent step.', at_least=0, at_most=1)
  target_update_interval: int = setting(20, 'Updates between two copies to the target network.', at_least=1)
  new_unrolls: int = setting(4, 'New unrolls that come into the replay before each update.', at_least=1)
  replay_capacity: int = setting(10_000, 'Capacity of the replay, in agent steps.', at_least=1)


class Agent(snt.Module):
  """The online network, which learns and acts, and the target network, an older copy of it."""

  def __init__(self, spec, config):
    super().__init__()
    self.observed, torso = ('pixels', torsos.ShallowTorso) if 'pixels' in spec.observation else (
        'vector', torsos.VectorTorso)
    self.online, self.target = (
        snt.Sequential([torso(seeds), networks.Linear(spec.num_actions, seeds, 'values')])
        for seeds in (networks.Seeds(config.seed), networks.Seeds(config.seed)))
    for network in (self.online, self.target):  # The first call of a layer creates its variables.
      network(acting.example_input(spec.observation).observation[self.observed])

  trainable_variables = acting_variables = property(lambda self: self.online.trainable_variables)

  def initial_state(self, batch_size):
    """Returns the recurrent state at an episode's start: (), because there is no LSTM."""
    return ()

  def prepare(self, observation):
    """Returns the observations as `step` and the loss take them: here, as they are."""
    return observation

  def step(self, inputs, agent_state, seed, selection=acting.Selection()):
    """Selects the actions of B actors, [B] int32, epsilon-greedily. Returns them and the state."""
    values = self.online(inputs.observation[self.observed])
    epsilon = acting.ladder(inputs.actor_place, 0.4, 7)  # [B], from 0.4 to 0.0007.
    return acting.ActionOutput(acting.select_by_value(values, selection, epsilon, seed)), agent_state


def loss(agent, batch, config):
  """Half the squared error of Q(x, a) to the target r + discount max_b Q'(x', b), summed over time and batch."""
  steps = unroll_lib.steps(batch.unroll)
  observation = batch.unroll.environment_output.observation[agent.observed]                            # [T+1, B, ...].
  values = tf.gather(snt.BatchApply(agent.online)(observation[:-1]), steps.a_tm1, batch_dims=2)        # [T, B].
  next_values = tf.reduce_max(snt.BatchApply(agent.target)(observation[1:]), axis=-1)                  # [T, B].
  targets = steps.r_t + config.discount * steps.discount_t * next_values
  total = tf.nn.l2_loss(tf.where(steps.real_t, tf.stop_gradient(targets) - values, 0.))
  return learner_step.Loss(total, {'loss/td': total})


def make_experience(intake, spec, config, seed, unused_parameters, unused_make_agent):
  """Makes the experience: new unrolls go into a replay, and each batch has B unrolls [T+1, B, ...] drawn from it."""
  replay = unroll_replay.UnrollReplay(
      intake.unroll_spec, spec.frame_stacks, config.replay_capacity, config.batch_size, minimum_size=1)
  sizes = mixed_experience.MixedSettings(config.new_unrolls, num_replayed=config.batch_size, learns_new=False)
  return mixed_experience.MixedExperience(intake, replay, sizes, seed)


Q_LEARNER = definition.Definition(name='q_learner', config=Config, network=Agent, loss=loss,
                                  after_update=q_learning.update_target, make_experience=make_experience)
