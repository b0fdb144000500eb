"""Inference: selects actions for the environments of a pool with the latest published parameters.

The whole loop is one graph, so no Python runs per batch. Each loop has its own copy of the agent and updates it at the
start of a batch, so that no batch is computed with a mixture of two versions.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_frames

_SMALLEST_BATCH = 8  # On a GPU. Smaller batches are padded.


class PolicyError(Exception):
  """The policy's output is not finite, so no action can be taken. The message is one line."""

  def __init__(self, version: int):
    """Makes the message.

    Args:
      version: the version of the parameters: the number of updates before, skipped ones included.
    """
    super().__init__(f"the agent's outputs are not finite with the parameters of update {version:,}: the training "
                     'has diverged, or an observation is huge')


class Actors(NamedTuple):
  """The ids and places of a pool's actors, as in acting.ActorInput. They are in the order of the pool."""
  ids: np.ndarray     # [N] int32, unique over all processes of the run.
  places: np.ndarray  # [N] float32 in [0, 1].


def is_finite(agent_output) -> tf.Tensor:
  """Whether all numbers of an agent's behaviour output, a nest of [n, ...], are finite: [] bool."""
  return tf.reduce_all([tf.reduce_all(tf.math.is_finite(values)) for values in tf.nest.flatten(agent_output)
                        if values.dtype.is_floating])


def specs(variables) -> list[tf.TensorSpec]:
  """The specs of variables, as a ParameterSnapshot takes them."""
  return [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]


def pad(tensors):
  """Pads a batch with zeros to the next power of two, and to at least _SMALLEST_BATCH.

  Args:
    tensors: a nest of [n, ...].
  Returns:
    The padded nest, and n, [] int32. Only the first n rows of the results are valid.
  """
  size = tf.shape(tf.nest.flatten(tensors)[0])[0]
  powers = tf.constant([1 << power for power in range(31)])
  padded = tf.maximum(powers[tf.searchsorted(powers, [size])[0]], _SMALLEST_BATCH)
  return tf.nest.map_structure(
      lambda tensor: tf.pad(tensor, [[0, padded - size]] + [[0, 0]] * (tensor.shape.rank - 1)), tensors), size


def assign(agent, parameters):
  """Assigns parameters to the acting variables of an agent, in a graph."""
  for variable, parameter in zip(agent.acting_variables, parameters, strict=True):
    variable.assign(parameter)


def make_loop(pool, agent, parameters, seed: int, device: str, actors: Actors,
              selection: acting.Selection = acting.Selection(), frames: actor_frames.ActorFrames | None = None,
              hold: bool = False):
  """Makes a function that acts until the pool is closed, and then raises tf.errors.CancelledError.

  If a behaviour output is not finite, the function raises PolicyError, and no action of that batch is taken. If a
  reward is not finite, the agent gets 0, but the unroll has the reward as it is.

  Args:
    pool: actor_pool.ActorPool.
    agent: this loop's copy of the agent; its acting variables are overwritten.
    parameters: a parameters.ParameterSnapshot.
    seed: seed of random actions.
    device: the device that computes the network.
    actors: the pool's actors.
    selection: how actions are selected.
    frames: stacks of frames on that device. None: whole stacks are copied to it.
    hold: True: each actor acts with the parameters that it holds, see parameters.ParameterSnapshot.hold. All actors of
      a batch must hold the same version. False: all actors act with the latest parameters.
  Returns:
    A function without arguments.
  """
  pads = 'GPU' in device.upper()  # A GPU selects its kernels again for each new batch size, so there are few sizes.

  def act(batch_number, known_version, unused_is_finite):
    batch = pool.next_batch(newest_frames=frames is not None)
    with tf.control_dependencies([batch.id]):  # Without it the parameters could be read before the batch is there.
      version, latest = parameters.hold(batch.actor_id) if hold else parameters.latest()
    # Only the network is computed on the device. TensorFlow runs the kernels of a GPU one after the other. So each
    # number that this code needed from a GPU would have to wait for the learner's kernels.
    is_known = version == known_version
    rows = _inputs(batch, actors), batch.agent_state, tf.cast(batch.actor_id, tf.int64) + 1
    (inputs, agent_state, number), size = pad(rows) if pads else (rows, None)
    batch_seed = tf.stack([tf.constant(seed, tf.int64), batch_number])
    with tf.device(device):
      tf.cond(is_known, lambda: None, lambda: assign(agent, latest))
      if frames:
        inputs = inputs._replace(observation=frames.push(inputs.observation, number, inputs.done))
      outputs = agent.step(inputs, agent_state, batch_seed, selection)
      if pads:
        outputs = tf.nest.map_structure(lambda tensor: tensor[:size], outputs)
      agent_output, agent_state = outputs
      outputs_are_finite = is_finite(agent_output)

    def complete():
      pool.complete_batch(batch.id, version, agent_output, agent_state)
    tf.cond(outputs_are_finite, complete, lambda: None)
    return batch_number + 1, version, outputs_are_finite

  @tf.function(autograph=False)
  def loop():
    with tf.device('/CPU:0'):
      version, _ = parameters.latest()
      # A resumed run starts with another version, so it does not draw the same random numbers again.
      first_number = tf.bitwise.left_shift(version, tf.constant(32, tf.int64))
      _, version, _ = tf.while_loop(lambda batch_number, version, is_finite: is_finite, act,
                                    (first_number, tf.constant(-1, tf.int64), True), parallel_iterations=1)
      return version

  def act_until_closed():
    raise PolicyError(int(loop()))

  return act_until_closed


def _inputs(batch, actors):
  """The agent's input for a batch of the pool."""
  environment_output = batch.environment_output
  return acting.ActorInput(
      tf.gather(actors.ids, batch.actor_id), tf.gather(actors.places, batch.actor_id), batch.last_action,
      acting.finite_rewards(environment_output.reward), environment_output.discount, environment_output.done,
      environment_output.observation)
