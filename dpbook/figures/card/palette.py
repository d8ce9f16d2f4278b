"""The colours of the book, named once.

Chosen so that all of them stay apart for readers with deuteranopia, protanopia or tritanopia (a test simulates it), and
never the only sign: whatever a colour says, a text, a mark or a pattern says too.
"""

from functools import cache

import numpy as np

COMPUTATION = "#0a6ebd"
FORWARD = "#8fc1ea"
BACKWARD = "#0b4a80"
UPDATE = "#062647"
"""The phases of computation: one hue, told apart by how light they are."""
COMMUNICATION = "#b35e00"
PARTIAL = "#f2c12e"
COMPLETE = "#00a582"
IDLE = "#d5dae1"
EXPOSED = "#b3123f"
FAULT = EXPOSED
"""Time lost and sums that are wrong share the alarm colour; no figure holds both."""
PARTIAL_EDGE, COMPLETE_EDGE, FAULT_EDGE = "#8a6a00", "#00705a", "#6d0a25"
"""Lines and marks on these fills."""

INK = "#1b2430"
MUTED = "#556070"
"""For what is read second: subtitles, axes, units."""
PAPER = "#ffffff"
PANEL = "#f1f4f8"


def tint(colour: str, share: float) -> str:
    """Mix ``colour`` with paper; a ``share`` of 1 leaves it, 0 is paper."""
    mixed = (share * c + (1 - share) * p for c, p in zip(_channels(colour), _channels(PAPER), strict=True))
    return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)


_CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
_LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip


@cache
def dark(colour: str) -> str:
    """The twin of ``colour`` for a dark page: the same hue, the lightness turned about (paper becomes nearly black).

    Lightness is OKLab's (B. Ottosson, "A perceptual color space for image processing", 2020), so what stands apart on
    paper stands apart in the dark too. Only a complete sum has a darker twin: a reader with protanopia would take that
    one for exposed.
    """
    if colour == COMPLETE:
        return "#006a4e"
    lab = _LAB @ np.cbrt(_CONES @ linear(colour))
    lab[0] = 1.187 - 0.986 * lab[0]  # paper to 0.2, ink to 0.93
    light = np.clip(np.linalg.inv(_CONES) @ np.linalg.inv(_LAB).dot(lab) ** 3, 0, 1)
    encoded = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in encoded.tolist())


def contrast(a: str, b: str) -> float:
    """The contrast ratio of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Ink or paper, whichever reads better on ``colour``."""
    return max((INK, PAPER), key=lambda text: contrast(text, colour))


def linear(colour: str) -> tuple[float, float, float]:
    """The red, green and blue light of an sRGB ``colour``, each from 0 to 1 (IEC 61966-2-1)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return red, green, blue


def _luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
