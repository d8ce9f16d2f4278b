"""The colours of the book: its figures, its reports and its pages.

Readers with deuteranopia, protanopia or tritanopia can tell all of them apart (a test simulates it). Colour is never
the only sign: a text, a mark or a pattern always says the same.
"""

from collections.abc import Sequence
from functools import cache

COMPUTATION = "#0a6ebd"
FORWARD = "#8fc1ea"
BACKWARD = "#0b4a80"
UPDATE = "#062647"
"""Phases of computation: one hue in different lightness."""
COMMUNICATION = "#b35e00"
PARTIAL = "#f2c12e"
COMPLETE = "#00a582"
GRADIENT, ACTIVATION = "#003329", "#b59ad6"
"""Whole gradients and activations in a rank's memory; the gradients of its own shard are `COMPLETE`."""
IDLE = "#d5dae1"
EXPOSED = "#b3123f"
FAULT = EXPOSED
"""Time lost and sums that are wrong share the alarm colour; no figure holds both."""
PARTIAL_EDGE, COMPLETE_EDGE, FAULT_EDGE = "#8a6a00", "#00705a", "#6d0a25"
"""Lines and marks on these fills."""
PASS, FAIL = "#1a7f37", "#c62828"
"""The result of a check. White text reads on both; text in these colours reads on paper, in their twins in the dark."""

INK = "#1b2430"
MUTED = "#556070"
"""Colour of secondary text: subtitles, axes, units."""
PAPER = "#ffffff"
PANEL = "#f1f4f8"


def tint(colour: str, share: float) -> str:
    """Return a mix of ``colour`` and paper; a ``share`` of 1 is the colour, 0 is paper."""
    mixed = (share * c + (1 - share) * p for c, p in zip(_channels(colour), _channels(PAPER), strict=True))
    return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)


_Matrix = tuple[tuple[float, float, float], ...]

_CONES_OF_LIGHT: _Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)  # fmt: skip
_LIGHT_OF_CONES: _Matrix = (
    (4.0767416621, -3.3077115913, 0.2309699292), (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)  # fmt: skip
_LAB_OF_CONES: _Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)  # fmt: skip
_CONES_OF_LAB: _Matrix = (
    (1.0, 0.3963377774, 0.2158037573), (1.0, -0.1055613458, -0.0638541728), (1.0, -0.0894841775, -1.2914855480),
)  # fmt: skip
"""The matrices of OKLab and their inverses (B. Ottosson, "A perceptual color space for image processing", 2020)."""


@cache
def dark(colour: str) -> str:
    """Return the twin of ``colour`` for a dark page: the same hue with inverted lightness; paper becomes nearly black.

    Lightness is OKLab's, so colours that differ on paper differ as much in the dark. `COMPLETE` alone has a darker
    twin: a reader with protanopia would mistake the inverted one for `EXPOSED`.
    """
    if colour == COMPLETE:
        return "#006a4e"
    lightness, *hue = _times(_LAB_OF_CONES, [cone ** (1 / 3) for cone in _times(_CONES_OF_LIGHT, linear(colour))])
    inverted = 1.187 - 0.986 * lightness  # paper to 0.2, ink to 0.93
    light = _times(_LIGHT_OF_CONES, [cone**3 for cone in _times(_CONES_OF_LAB, [inverted, *hue])])
    shares = (min(max(value, 0.0), 1.0) for value in light)
    channels = (12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055 for x in shares)  # inverse of `linear`
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Return ink or paper, whichever has more contrast on ``colour``."""
    return max((INK, PAPER), key=lambda text: contrast(text, colour))


def linear(colour: str) -> tuple[float, float, float]:
    """Return the red, green and blue light of an sRGB ``colour``, each from 0 to 1 (IEC 61966-2-1)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return red, green, blue


def _luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _times(matrix: _Matrix, vector: Sequence[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def _channels(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
