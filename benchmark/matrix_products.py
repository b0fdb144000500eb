"""The matrix products of a learner's step: which they are, and how long plain products of the same shapes take.

The functions import TensorFlow themselves, as those of benchmark_parts.py do.
"""

import collections
import math
import time
from typing import NamedTuple

_LARGEST_OPERAND = 1 << 26  # Elements of a matrix that `measure` computes with. Larger ones take proportionally longer.


class Product(NamedTuple):
  """A matrix product [m, k] x [k, n] that a step computes, perhaps as a convolution."""
  m: int
  k: int
  n: int
  dtype: str

  @property
  def operations(self) -> int:
    """The number of floating-point operations: a multiplication and an addition are two."""
    return 2 * self.m * self.k * self.n


def of_graph(graph) -> dict[Product, int]:
  """Returns the products that a graph computes, and how often. A convolution is the product of its patches and kernel.

  Operations in the body of a loop count once.

  Args:
    graph: a graph of tf.function in which the shapes of all matrices and images are known.
  """
  found = collections.Counter()
  for operation in _computed(graph):
    shapes = [tuple(tensor.shape) for tensor in (*operation.inputs, *operation.outputs)]
    if operation.type in ('MatMul', 'BatchMatMulV2'):
      transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
      (*batch, rows, columns), _, (*_, width) = shapes
      shape, count = (columns, rows, width) if transposed else (rows, columns, width), math.prod(batch)
    elif operation.type.startswith('Conv2D'):
      # Each has an image of the convolution's output, and a kernel, among its inputs and outputs.
      output = shapes[-1] if operation.type == 'Conv2D' else shapes[2]
      kernel = shapes[-1] if operation.type == 'Conv2DBackpropFilter' else shapes[1]
      positions, patch, channels = math.prod(output[:-1]), math.prod(kernel[:-1]), kernel[-1]
      shape, count = {'Conv2D': (positions, patch, channels), 'Conv2DBackpropFilter': (patch, positions, channels),
                      'Conv2DBackpropInput': (positions, channels, patch)}[operation.type], 1
    else:
      continue
    m, k, n = shape
    found[Product(m, k, n, operation.outputs[0].dtype.name)] += count
  return dict(found)


def _computed(graph):
  """Returns the operations that the outputs of a graph depend on. Others are in the graph but not computed."""
  waiting, seen = [tensor.op for tensor in graph.outputs], set()
  while waiting:
    operation = waiting.pop()
    if operation not in seen:
      seen.add(operation)
      waiting += [tensor.op for tensor in operation.inputs]
  return seen


def of_gradient(definition, learner, batch) -> dict[Product, int]:
  """Returns the products of an agent's loss and its gradient. The rest of a learner's step has none."""
  import tensorflow as tf

  from scalable_agents.learner import frame_stacks
  batch = batch._replace(unroll=frame_stacks.with_stacks(batch.unroll))

  def gradients():
    with tf.GradientTape() as tape:
      total = definition.loss(learner.agent, batch, learner.config).total
    return tape.gradient(total, learner.agent.trainable_variables)

  return of_graph(tf.function(gradients, autograph=False).get_concrete_function().graph)


def measure(card, product, tf32, seconds) -> float:
  """Measures the seconds of a product as a plain matrix product.

  Args:
    card: the device.
    product: a Product. If it is large, a part of it is measured.
    tf32: whether products of float32 numbers are computed in TensorFloat-32.
    seconds: the shortest time to measure.
  """
  import tensorflow as tf
  tf.config.experimental.enable_tensor_float_32_execution(tf32)
  shape, parts = list(product[:3]), 1.
  largest = shape.index(max(shape))
  operand = max(shape[0] * shape[1], shape[1] * shape[2], shape[0] * shape[2])
  if operand > _LARGEST_OPERAND:
    whole, shape[largest] = shape[largest], max(1, shape[largest] * _LARGEST_OPERAND // operand)
    parts = whole / shape[largest]
  m, k, n = shape
  with tf.device(card):
    left, right = (tf.cast(tf.random.stateless_normal(size, [0, 0]), product.dtype) for size in ([m, k], [k, n]))
    tf.linalg.matmul(left, right)[0, 0].numpy()
    calls, elapsed = 1, 0.
    while elapsed < seconds:
      calls *= 2
      began = time.monotonic()
      for _ in range(calls):
        last = tf.linalg.matmul(left, right)
      last[0, 0].numpy()  # A card computes in order, after the calls have returned.
      elapsed = time.monotonic() - began
  return parts * elapsed / calls
