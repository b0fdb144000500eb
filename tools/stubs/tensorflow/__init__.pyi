"""For pyright: everything in TensorFlow has the type Any.

TensorFlow has no annotations, and the third-party ones that pyright brings lack operators and indices of tensors.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
