"""The interface of an agent, a network that acts, and the description of the environments for which it is made."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from scalable_agents.actor import acting


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """Describes the environments of a run, for which an agent is made."""
  num_actions: int                          # A; an action is an int32 from 0 to A - 1.
  observation: Mapping[str, tf.TensorSpec]  # 'pixels' uint8 [H, W, C] or 'vector' float32 [N]; perhaps 'instruction'.
  levels: tuple[str, ...]                   # A level_id is an index into these, in training, evaluation and resume.
  # Name -> k, for each observation that is a stack of k frames; see environments/base.py.
  frame_stacks: Mapping[str, int] = dataclasses.field(default_factory=dict)
  # The settings of the environments that the experience depends on. Agents with a shared replay must agree on them.
  # Empty if the agent is not made for training.
  protocol: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Agent(Protocol):
  """A network that acts: a tf.Module, so that its variables are saved.

  Attributes:
    variables: all variables.
    trainable_variables: the variables that the learner's optimiser updates, always in the same order. The loss must
      depend on each. For a tf.Module these are all trainable variables, unless the agent says otherwise.
    acting_variables: the variables that `step` reads, always in the same order. They are published to the actors.
      Other variables, for example those of a target network, are saved in checkpoints but not published.
  """
  variables: Sequence[tf.Variable]
  trainable_variables: Sequence[tf.Variable]
  acting_variables: Sequence[tf.Variable]

  def initial_state(self, batch_size) -> Any:
    """Returns the initial state of `batch_size` actors: a nest of zeros [batch_size, ...], or () without a state.

    This is the recurrent state. An agent may keep more, such as a count of rows.
    """

  def step(self, inputs: acting.ActorInput, agent_state: Any, seed: tf.Tensor,
           selection: acting.Selection = acting.Selection()) -> tuple[NamedTuple, Any]:
    """Selects actions.

    Args:
      inputs: ActorInput of [B, ...].
      agent_state: nest of [B, ...].
      seed: [2] int64; random numbers are a function of it.
      selection: how actions are selected; the kind is TRAINING or one of Definition.evaluation_policies.
    Returns:
      First, the behaviour output: the agent's own NamedTuple of [B, ...] tensors. Its first field is `action`, int32.
      What Definition.to_send keeps of it is sent to the learner, so this should be only what the loss needs of the
      behaviour policy.
      Second, the new agent_state.
    """
    ...

  def prepare(self, observation: Mapping[str, tf.Tensor]) -> Any:
    """Prepares the observations of a batch, [T+1, B, ...], for the loss. It runs on the host, before they are copied to
    the learner's device.

    Most agents return the observations unchanged. Others compute here what a GPU cannot compute, such as operations on
    strings. An observation that is a stack of frames has only its newest frame here. Return it unchanged: the learner's
    device builds the stacks from it, and the loss gets whole stacks.
    """
