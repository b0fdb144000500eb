"""Instructions, an environment's words to the agent, as what all of them observe has them: bytes of fixed length."""

from dm_env import specs
import numpy as np

BYTES = 128  # The longest instruction seen has 62.


def spec() -> specs.Array:
  """The spec of an observation 'instruction'."""
  return specs.Array((BYTES,), np.uint8, name='instruction')


def encode(text: str) -> np.ndarray:
  """Text as uint8 [BYTES]: UTF-8, cut between characters where it is too long, filled up with zeros."""
  encoded = text.encode()
  if len(encoded) > BYTES:
    encoded = encoded[:BYTES].decode(errors='ignore').encode()
  return np.frombuffer(encoded.ljust(BYTES, b'\0'), np.uint8)
