"""The learner's step, which all agents share.

It computes the gradient, applies the optimiser, compiles the step with XLA, synchronises several learners, and skips
updates that are not finite.

An agent provides its loss, its optimiser and the hyper-parameters that may change during training. A step consists of:

  1. The agent's loss and its gradient are computed from the batch of this learner.
  2. If there are several learners, they add up their gradients. They also gather the values that `after_update` needs
     from all of them.
  3. If everything is finite, the gradient is clipped and the optimiser updates the variables.
  4. `after_update` returns new values of other variables, for example of a target network or of the statistics of the
     targets, and these are assigned.

If a term of the loss or the gradient is not finite, the agent and the optimiser stay as they are, and the update counts
as skipped.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.learner import frame_stacks
from scalable_agents.learner import optimizers
from scalable_agents.records import errors
from scalable_agents.records import runtime_config

_TERM = 'loss/'  # The names of terms begin with it.
_TOTAL = f'{_TERM}total'


class Batch(NamedTuple):
  """The data of one update. `Learner.prepare` has prepared its observations."""
  unroll: unroll_lib.Unroll     # Time-major tensors: [T+1, B, ...], or [B, ...] for fields without time.
  sample: unroll_lib.Nest = ()  # Nest that the experience adds, such as keys; its class has the shapes.


class Loss(NamedTuple):
  """What an agent's loss function returns for the batch of one learner."""
  total: tf.Tensor                    # [] float32, to be minimised.
  terms: Mapping[str, tf.Tensor]      # 'loss/...' -> [] float32. Several learners add them up, like the totals. If a
                                      # term is not finite, the update is skipped.
  means: Mapping[str, tf.Tensor] = {}  # Name -> [] float32, or [number of levels]: metrics, averaged over learners.
                                      # NaN means no value, as for levels that are not in this learner's batch. What
                                      # must be finite belongs to `terms`.
  feedback: Any = ()                  # Nest of tensors for this learner's experience, for example new priorities.
  gathered: Any = ()                  # Nest of [R, ...]. `after_update` gets the values of all learners.


class Learner(tf.Module):
  """The agent's parameters, their optimiser and the counters; `step` learns from one batch.

  If it is made and stepped under a tf.distribute.Strategy, it is one of several learners. They make each update
  together: each has a batch of its own, and all apply the sum of their gradients, as if they learned from one large
  batch. Espeholt et al. 2018 (IMPALA), section 3 and figure 1.
  """

  def __init__(self, agent: agent_lib.Agent, loss: Callable[..., Loss], make_optimizer: Callable[..., Any],
               config: runtime_config.RuntimeConfig, tuned: Mapping[str, bool], xla: str = 'auto',
               device: str | None = None,
               after_update: Callable[[Any, tf.Tensor], Sequence[tuple[tf.Variable, tf.Tensor]]] | None = None):
    """Creates the optimiser's slots.

    Args:
      agent: the agent.
      loss: called with the agent, a Batch and the config, in which settings that are tuned are variables.
      make_optimizer: called with the trainable variables and that config; makes an optimiser, see
        Definition.make_optimizer.
      config: the agent's dataclass of hyper-parameters.
      tuned: names of the settings that may change between two steps, and whether each is in use with this config.
      xla: 'always' compiles the step and 'never' does not. 'auto' compiles it except on a CPU: there oneDNN's
        convolutions are three times as fast as XLA's, and compiling only the rest of the step gains nothing.
      device: where to learn, for example '/GPU:0'; None for the device of the agent's variables. Under a strategy,
        the strategy chooses the device.
      after_update: called in the graph after the optimiser's update. Its arguments are Loss.gathered of all learners,
        concatenated in the order of the learners, and the number of updates including this one, [] int64. It returns
        pairs of a variable and its new value. The variables must belong to the agent, so that they are saved.
    """
    super().__init__('learner')
    self.agent = agent
    self.config = config
    self._loss = loss
    self._after_update = after_update
    self._packing = _Packing()
    self._tuned_names = [name for name, in_use in tuned.items() if in_use]
    self._num_learners = tf.distribute.get_strategy().num_replicas_in_sync
    self._device = device or agent.trainable_variables[0].device
    with self._on_device():
      self.environment_frames, self.update_steps, self.skipped_updates = (
          tf.Variable(0, dtype=tf.int64, trainable=False, name=name,
                      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
          for name in ('environment_frames', 'update_steps', 'skipped_updates'))
      for name in tuned:
        setattr(self, name, tf.Variable(getattr(config, name), dtype=tf.float32, trainable=False, name=name))
      self._live_config = dataclasses.replace(config, **{name: getattr(self, name) for name in tuned})
      self.optimizer = make_optimizer(agent.trainable_variables, self._live_config)
    compiled = {'always': True, 'never': False, 'auto': 'CPU' not in self._device.upper()}[xla]
    # AutoGraph would convert all Sonnet code that a step calls. That took four fifths of the time for tracing.
    compile_ = functools.partial(tf.function, autograph=False, jit_compile=compiled)
    self._with_stacks = functools.partial(frame_stacks.with_stacks, device=self._device, compiled=compiled)
    self._compiled_gradients = compile_(self._gradients)
    # Several learners communicate in the middle of the step, which XLA cannot compile.
    self._compiled_step = compile_(self._step) if self._num_learners == 1 else self._step

  def prepare(self, batch: Batch) -> Batch:
    """Prepares the observations of a batch with Agent.prepare, on the host: only the result is copied to the device.

    Raises:
      errors.UserError: Agent.prepare changes an observation that is a stack of frames.
    """
    with tf.device('/CPU:0'):
      environment = batch.unroll.environment_output
      observation = self.agent.prepare(environment.observation)
      for name in batch.unroll.earlier_frames:
        came, left = environment.observation[name], observation.get(name)
        if left is None or (left.dtype, left.shape) != (came.dtype, came.shape):
          raise errors.UserError(f"the agent's prepare() changes {name!r}, which is a stack of frames: prepare it in "
                                 'the loss, which gets the whole stack')
      environment = environment._replace(observation=observation)
      return batch._replace(unroll=batch.unroll._replace(environment_output=environment))

  def step(self, batch: Batch) -> tuple[tf.Tensor, Any]:
    """Makes one update.

    With several learners, this is one replica's part of the update. Call it then in a graph, inside `strategy.run`.

    Args:
      batch: has an Unroll of [T+1, B, ...] tensors.
    Returns:
      The metrics for `read`, [n] float32, which are the same for all learners. Second, Loss.feedback; zeros if the
      update was skipped, since the feedback may not be finite, either.
    """
    with self._on_device():
      return self._compiled_step(batch)

  def read(self, metrics: tf.Tensor) -> dict[str, np.ndarray]:
    """Waits for an update, and returns its metrics by name: float32 number, or array [number of levels].

    All metrics are one vector, because a copy of one number from a GPU takes about as long as a copy of all. The names
    are those of the total and the terms of the loss, those of Loss.means, and:

      'grad_norm': the global norm of the gradient, before clipping.
      'learning_rate': of this update.
      'update_skipped': 1 if a term of the loss or the gradient was not finite, so that nothing was learned; else 0.
      'culprit': the index of the first trainable variable whose gradient was not finite, for `culprit`; 0 if none.
      'policy_lag': the mean number of updates by which the parameters that acted were older than the learner's.
    """
    with tf.device('/CPU:0'):
      return self._packing.unpack(tf.identity(metrics).numpy())

  def version(self) -> tf.Tensor:
    """The version of the parameters: the number of updates, skipped ones included. [] int64."""
    return self.update_steps + self.skipped_updates

  @property
  def hyper_parameters(self) -> dict[str, tf.Variable]:
    """Name -> variable of each setting that may be changed between two steps and is in use."""
    return {name: getattr(self, name) for name in self._tuned_names}

  def culprit(self, metrics: Mapping[str, Any]) -> str | None:
    """Returns the name of the first term of the loss, or else gradient, that was not finite; None if all were finite.

    Args:
      metrics: from `read`.
    """
    if not metrics['update_skipped']:
      return None
    terms = [name for name, value in metrics.items() if name.startswith(_TERM) and not np.isfinite(value)]
    gradient = f'gradient of {self.agent.trainable_variables[int(metrics["culprit"])].name}'
    return next((name for name in terms if name != _TOTAL), gradient)

  def _on_device(self):
    return tf.device(self._device) if self._num_learners == 1 else contextlib.nullcontext()

  def _gradients(self, batch):
    """Returns gradients, terms and means, which several learners combine, then feedback and the values to gather."""
    variables = self.agent.trainable_variables
    batch = batch._replace(unroll=self._with_stacks(batch.unroll))
    with tf.GradientTape() as tape:
      result = self._loss(self.agent, batch, self._live_config)
    terms = {_TOTAL: result.total, **result.terms}
    for name, value in terms.items():
      if value.shape.rank != 0:
        raise ValueError(f'{name}: want a scalar, got shape {value.shape}')
      if not name.startswith(_TERM):
        raise ValueError(f'{name}: want a name of a term that begins with {_TERM!r}')
    # Actors may be ahead of the learner: they may have acted for an earlier learner process, which died.
    lag = tf.reduce_mean(tf.cast(tf.maximum(self.version() - batch.unroll.parameter_version[1:], 0), tf.float32))
    # Gradients are made dense: the IndexedSlices of an embedding would make XLA compile the step again for each batch.
    gradients = list(map(tf.convert_to_tensor, _checked_gradients(tape, result.total, variables)))
    return gradients, terms, {**result.means, 'policy_lag': lag}, result.feedback, result.gathered

  def _step(self, batch):
    gradients, terms, means, feedback, gathered = self._compiled_gradients(batch)
    if self._num_learners > 1:
      context = tf.distribute.get_replica_context()
      has_value = {name: tf.cast(~tf.math.is_nan(value), tf.float32) for name, value in means.items()}
      sums = {name: tf.where(tf.math.is_nan(value), 0., value) for name, value in means.items()}
      gradients, terms, sums, counts = context.all_reduce(
          tf.distribute.ReduceOp.SUM, (gradients, terms, sums, has_value))
      means = {name: sums[name] / counts[name] for name in means}
      gathered = tf.nest.map_structure(lambda values: context.all_gather(values, axis=0), gathered)
    half_squares = tf.stack([tf.nn.l2_loss(g) for g in gradients])
    grad_norm = tf.sqrt(2.0 * tf.reduce_sum(half_squares))
    finite_gradients = tf.math.is_finite(half_squares)
    finite = tf.reduce_all(finite_gradients) & tf.reduce_all(
        [tf.math.is_finite(term) for name, term in terms.items() if name != _TOTAL])
    learning_rate = self._learning_rate()
    tf.cond(finite, lambda: self._apply(gradients, grad_norm, learning_rate, gathered), lambda: None)
    self.update_steps.assign_add(tf.cast(finite, tf.int64))
    self.skipped_updates.assign_add(tf.cast(~finite, tf.int64))
    metrics = self._packing.pack({
        **terms,
        'grad_norm': grad_norm,
        'learning_rate': learning_rate,
        'update_skipped': 1.0 - tf.cast(finite, tf.float32),
        'culprit': tf.argmin(tf.cast(finite_gradients, tf.float32), output_type=tf.int32),
        **means,
    })
    return metrics, tf.nest.map_structure(lambda value: tf.where(finite, value, tf.zeros_like(value)), feedback)

  def _learning_rate(self):
    learning_rate = tf.convert_to_tensor(self._live_config.learning_rate)
    if not self.config.learning_rate_decay:
      return learning_rate
    return optimizers.linear_decay(learning_rate, self.environment_frames, self.config.total_environment_frames)

  def _apply(self, gradients, grad_norm, learning_rate, gathered):
    """Makes the update."""
    if self.config.clip_gradient_norm:  # If it is 0, clipping is off for the whole run, and the norm is not tuned.
      gradients = optimizers.clip_by_global_norm(gradients, grad_norm, self._live_config.clip_gradient_norm)
    self.optimizer.apply(gradients, learning_rate)
    pairs = self._after_update(gathered, self.update_steps + 1) if self._after_update else []
    of_agent = set(map(id, self.agent.variables))
    for variable, value in pairs:
      if id(variable) not in of_agent:
        raise ValueError(f'after_update: {variable.name} is not a variable of the agent, so it would not be saved')
      # A raw op, because tf.distribute does not allow `assign` here when there are several learners.
      tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.convert_to_tensor(value, variable.dtype))


class _Packing:
  """Packs named tensors into one vector. It learns their names and shapes when a step is traced."""

  def __init__(self):
    self._shapes = {}

  def pack(self, tensors):
    """Packs name -> tensor of a known shape. Returns [n] float32."""
    self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return tf.concat([tf.reshape(tf.cast(tensor, tf.float32), [-1]) for tensor in tensors.values()], axis=0)

  def unpack(self, vector):
    """Returns name -> number or array."""
    ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
    parts = np.split(vector, ends[:-1])
    return {name: part.reshape(shape)[()] for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}


def _checked_gradients(tape, total, variables):
  """Returns the gradients of the loss. Raises ValueError if it does not depend on one of the variables."""
  gradients = tape.gradient(total, variables)
  for variable, gradient in zip(variables, gradients, strict=True):
    if gradient is None:
      raise ValueError(f'the loss does not depend on {variable.name}: leave it out of trainable_variables')
  return gradients
