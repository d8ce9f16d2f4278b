"""The colours of the book, named once.

Chosen so that all of them stay apart for readers with deuteranopia, protanopia or tritanopia (a test simulates it), and
never the only sign: whatever a colour says, a text, a mark or a pattern says too.
"""

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

INK = "#1b2430"
MUTED = "#556070"
"""For what is read second: subtitles, axes, units."""
PAPER = "#ffffff"
PANEL = "#f1f4f8"


def tint(colour: str, share: float) -> str:
    """Mix ``colour`` with paper; a ``share`` of 1 leaves it, 0 is paper."""
    mixed = (share * c + (1 - share) * p for c, p in zip(_channels(colour), _channels(PAPER), strict=True))
    return "#" + "".join(f"{round(255 * value):02x}" for value in mixed)


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
