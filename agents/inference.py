"""Inference: acts for the environments of a pool with the latest published parameters.

A graph holds the whole loop: no Python runs per batch. Each loop has its own copy of the agent, which it brings up to
date at the start of a batch, so that no batch is computed with a mixture of two versions.
"""

import tensorflow as tf


def make_loop(pool, agent, parameters, seed: int, device: str):
  """Makes a function that acts until the pool is closed, and then raises tf.errors.CancelledError.

  Args:
    pool: actor_pool.ActorPool.
    agent: this loop's copy of the agent; its trainable variables are overwritten.
    parameters: where parameters come from: `latest()` gives their version and the list of them.
    seed: of the sampled actions.
    device: where to compute.
  Returns:
    A tf.function without arguments.
  """
  def act(batch_number, known_version):
    batch = pool.next_batch()
    with tf.control_dependencies([batch.id]):  # Else they would be read before the wait for the batch.
      version, latest = parameters.latest()
    environment_output = batch.environment_output
    with tf.device(device):
      def update():
        for variable, parameter in zip(agent.trainable_variables, latest):
          variable.assign(parameter)
      tf.cond(version == known_version, lambda: None, update)
      agent_output, agent_state = agent.step(
          batch.last_action, environment_output.reward, environment_output.done, environment_output.observation,
          batch.agent_state, tf.stack([tf.constant(seed, tf.int64), batch_number]))
    pool.complete_batch(batch.id, version, agent_output, agent_state)
    return batch_number + 1, version

  @tf.function(autograph=False)
  def loop():
    version, _ = parameters.latest()
    # A resumed run does not draw again what the process before it drew: that began with another version.
    first_number = tf.bitwise.left_shift(version, tf.constant(32, tf.int64))
    tf.while_loop(lambda *unused: True, act, (first_number, tf.constant(-1, tf.int64)), parallel_iterations=1)

  return loop
