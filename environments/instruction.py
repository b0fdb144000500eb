"""The observation 'instruction': an environment's text for the agent, as a fixed number of bytes."""

from dm_env import specs
import numpy as np

BYTES = 128  # The longest instruction that was observed has 62 bytes.


def spec() -> specs.Array:
  """Returns the spec of the observation 'instruction', uint8 [BYTES]."""
  return specs.Array((BYTES,), np.uint8, name='instruction')


def encode(text: str) -> np.ndarray:
  """Encodes text as UTF-8 in uint8 [BYTES]. Text that is too long is cut between characters. Zeros fill the rest."""
  encoded = text.encode()
  if len(encoded) > BYTES:
    encoded = encoded[:BYTES].decode(errors='ignore').encode()
  return np.frombuffer(encoded.ljust(BYTES, b'\0'), np.uint8)
