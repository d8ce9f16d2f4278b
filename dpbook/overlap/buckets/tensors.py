"""What a plan must know of a parameter's gradient: its shape, dtype and device, and nothing of its values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpbook.core import check_int, check_one_of

ITEMSIZE = {
    **dict.fromkeys(("float64", "int64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
    "complex128": 16,
}
"""Bytes per element, by the name that torch gives a dtype."""


@dataclass(frozen=True)
class Tensor:
    """The specification of a gradient.

    Attributes:
        name: such as "0.weight".
        shape: an int stands for a shape of one dimension.
        dtype: a name in `ITEMSIZE`.
        device: any name; equal names are one device.
    """

    name: str
    shape: tuple[int, ...] | int
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, Sequence) else (self.shape,)
        object.__setattr__(self, "shape", tuple(check_int(f"shape of {self.name}", size, 0) for size in shape))
        check_one_of(f"dtype of {self.name}", self.dtype, sorted(ITEMSIZE))

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar, whose shape is ()."""
        assert isinstance(self.shape, tuple)  # __post_init__ made it one
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Elements × itemsize."""
        return self.elements * ITEMSIZE[self.dtype]
