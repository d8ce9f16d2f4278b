"""Numbers of fewer bits: which values a format has, and how another number is rounded to one of them.

A format has the values m · 2^q with |m| < 2^digits and q at least ``lowest``, up to its largest. A scaled one says its
numbers in units of a power of two that is sent with them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpbook.core import InvalidArgument, check_one_of
from dpbook.replicas.array import Array

SCALE_BYTES = 4
"""Bytes of a message's scale, a float32."""
_EXPONENT = np.int64(0x7FF << 52)  # the bits of a float64 that are left of 2^e ≤ |x| < 2^(e+1) if only 2^e is kept


@dataclass(frozen=True)
class Format:
    """A way to write a number in few bits.

    Attributes:
        name: as in `FORMATS`.
        nbytes: bytes of a number on the wire.
        digits: significant binary digits, the leading one included.
        lowest: the smallest value above 0 is 2^lowest.
        largest: the largest finite value. Without infinities in the format, what is larger is cut off to it.
        infinite: whether what is larger becomes infinite instead.
        scaled: whether every message has a scale of its own, the smallest power of two that makes its largest number
            fit. That costs up to a factor of 2 in resolution against a scale of any value, and loses nothing else:
            numbers that have been rounded stay as they are when they are rounded and sent again.
    """

    name: str
    nbytes: int
    digits: int
    lowest: int
    largest: float
    infinite: bool = False
    scaled: bool = False

    @property
    def header(self) -> int:
        """Bytes that a message has beside its numbers."""
        return SCALE_BYTES if self.scaled else 0

    def round(self, values: ArrayLike, noise: Array | None = None) -> Array:
        """Return float64 ``values`` rounded to the nearest of this format, a tie to the one with an even last digit.

        Args:
            values: of any shape; along the last axis lies one message, which has one scale if the format is scaled.
            noise: numbers from [0, 1), broadcast to the shape. With them a value is rounded up if its distance from
                the value below, in steps from there to the next, plus the noise reaches 1: with uniform noise the
                expected result is the value itself (stochastic rounding).
        """
        exact = np.asarray(values, np.float64)
        scale = self._scale(exact) if self.scaled else 1.0
        return scale * self._round(exact / scale, noise)

    def _round(self, values: Array, noise: Array | None) -> Array:
        power = (values.view(np.int64) & _EXPONENT).view(np.float64)
        step = np.clip(power * 2.0 ** (1 - self.digits), 2.0**self.lowest, 2.0**1000)
        steps = values / step
        below = np.floor(steps)  # and the rest apart from it: 8 + (1 − 2⁻⁵³) would be 9
        whole = np.rint(steps) if noise is None else below + (steps - below + noise >= 1)
        limit = np.inf if self.infinite else self.largest
        rounded = whole * step
        result: Array = np.where(np.abs(rounded) > self.largest, np.copysign(limit, rounded), rounded)
        return result

    def _scale(self, values: Array) -> Array:
        """The smallest power of two (…, 1) that brings all numbers of a message within the format's largest.

        There is none, NaN, if one is not finite: then the whole message is lost, and is seen to be.
        """
        most = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
        fraction, exponent = np.frexp(most / self.largest)
        scale: Array = np.where(np.isfinite(most), np.ldexp(1.0, exponent - (fraction == 0.5)), np.nan)
        return scale


FORMATS = {
    format.name: format
    for format in (
        Format("fp32", 4, 24, -149, (2 - 2.0**-23) * 2.0**127, infinite=True),
        Format("bf16", 2, 8, -133, (2 - 2.0**-7) * 2.0**127, infinite=True),
        Format("fp16", 2, 11, -24, 65504.0, infinite=True),
        Format("e4m3", 1, 4, -9, 448.0, scaled=True),
        Format("e5m2", 1, 3, -16, 57344.0, scaled=True),
        Format("int8", 1, 8, 0, 127.0, scaled=True),
    )
}
"""The formats by name: IEEE 754's binary32 and binary16, bfloat16, the two of 8 bits of Micikevicius et al., "FP8
Formats for Deep Learning" (2022), and integers from −127 to 127. Those of 8 bits are scaled, and saturate."""


def format_of(name: str, given: "str | Format") -> Format:
    """Return the format that ``given`` is or names. Raises `InvalidArgument` about the argument ``name``."""
    if isinstance(given, Format):
        return given
    if not isinstance(given, str):
        raise InvalidArgument(name, given, f"a Format, or one of {', '.join(FORMATS)}")
    check_one_of(name, given, FORMATS)
    return FORMATS[given]


def bf16(values: ArrayLike) -> Array:
    """Return ``values`` rounded to the nearest bfloat16, ties to even, in an array of float32 that holds them.

    Values are rounded to float32 first. Raises `InvalidArgument` for what is not finite.
    """
    array = np.asarray(values, np.float32)
    if not np.isfinite(array).all():
        raise InvalidArgument("values", array, "finite numbers")
    return FORMATS["bf16"].round(array).astype(np.float32)
