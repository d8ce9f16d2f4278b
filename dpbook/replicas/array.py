"""What every module of this room calls an array."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def describe(value: object) -> str:
    """Say what an argument is without printing its numbers."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return repr(value)
