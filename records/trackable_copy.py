"""A copy of everything that a tf.train.Checkpoint saves, which stays as it is while the original goes on changing."""

from typing import Any

import tensorflow as tf

# A class that overrides one of these methods saves values in a way of its own, which a copy would lose.
_SAVING_METHODS = ('_serialize_to_tensors', '_gather_saveables_for_checkpoint')


class _Text(tf.train.experimental.PythonState):
  """The text that a PythonState was serialised to."""

  def __init__(self, text: str | bytes):
    self._text = text

  def serialize(self) -> str | bytes:
    return self._text

  def deserialize(self, string_value: str | bytes):
    raise NotImplementedError('A copy is saved; only the original is restored.')


def copy_children(parent: Any) -> dict[str, Any]:
  """Copies all trackable objects that an object holds, directly or through others, with their present values.

  A checkpoint of the copies has the keys, the object graph and the values that a checkpoint of the originals would have
  now. So it can be restored into the originals.

  On the CPU, this takes about a millisecond per variable, whatever its size: a copy shares its memory with the variable
  until the next update, which writes the new value to other memory and so takes longer. From other devices, the values
  are transferred to the CPU before this function returns. Either way the copies take as much memory as the variables
  until they are deleted.

  Args:
    parent: a trackable object, such as a tf.train.Checkpoint. The objects below it are variables, PythonStates, and
      objects that only hold others. The copy of a distributed variable has the value that TensorFlow would save, which
      is the first replica's if the variable is mirrored. Optimizers must hold their slots as attributes, which those of
      TensorFlow 1 and Keras's legacy ones do not.
  Returns:
    The name of each object that `parent` holds directly -> its copy. An object that is held in several places has one
    copy.
  Raises:
    TypeError: an object saves its values in a way of its own, such as a lookup table.
  """
  nodes = [(parent, tf.__internal__.tracking.AutoTrackable())]  # Objects with their copies, as they are found.
  copies = {id(parent): nodes[0][1]}
  for original, copied in nodes:  # The list grows during the loop.
    for name, child in tf.train.TrackableView.children(original).items():
      if id(child) not in copies:
        copies[id(child)] = _copy_value(child)
        nodes.append((child, copies[id(child)]))
      setattr(copied, name, copies[id(child)])
  return dict(tf.train.TrackableView.children(nodes[0][1]))


def _copy_value(original: Any) -> Any:
  """Copies an object without those that it holds."""
  if isinstance(original, tf.Variable):
    with tf.device('/CPU:0'):
      name = original.name.rpartition(':')[0]  # The object graph of a checkpoint has the names, too.
      return tf.Variable(original.read_value(), trainable=False, name=name)
  if isinstance(original, tf.train.experimental.PythonState):
    return _Text(original.serialize())
  for method in _SAVING_METHODS:
    if getattr(type(original), method) is not getattr(tf.Module, method):
      raise TypeError(f'want variables, PythonStates and objects that hold them, got a {type(original).__name__}')
  return tf.__internal__.tracking.AutoTrackable()
