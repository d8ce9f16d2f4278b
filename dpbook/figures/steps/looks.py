"""What a span is drawn as: what it is called in the legend, its colour, and the words that may stand in it."""

from collections.abc import Iterator, Sequence

from dpbook.core import palette
from dpbook.overlap import Span

FILLS = {
    "forward": palette.FORWARD,
    "backward": palette.BACKWARD,
    "recompute": palette.COMPUTATION,
    "update": palette.UPDATE,
    "computation": palette.COMPUTATION,
    "all-gather": palette.tint(palette.COMMUNICATION, 0.6),
    "reduce-scatter": palette.COMMUNICATION,
    "communication": palette.COMMUNICATION,
    "wait": palette.tint(palette.COMMUNICATION, 0.3),
    "launch": palette.MUTED,
    "copy": palette.IDLE,
}
"""What a span is, by colour, in the order of the legend; its name, its letter or its lane says it too."""
PHASES = {"forward": "forward", "recompute": "recompute", "backward": "backward", "optimizer": "update"}
"""The first word of a computation's name, and what the legend calls it."""
HALVES = ("all-gather", "reduce-scatter")
"""The first word of a collective's name, where the two halves of an all-reduce are told apart."""
WORDS = {
    "forward": "F: forward", "recompute": "R: forward once more", "backward": "B: backward", "update": "U: update",
    "all-gather": "G: all-gather", "reduce-scatter": "S: reduce-scatter", "wait": "waiting",
}  # fmt: skip
"""What the legend says, where that is not the same word."""
LETTERS = {name: words[0] for name, words in WORDS.items() if words[1] == ":"}
"""What stands for a span that has no room for its name."""


def look(span: Span) -> str:
    """Which of `FILLS` a span is."""
    first = span.name.partition(" ")[0]
    if span.kind == "computation":
        return PHASES.get(first, "computation")
    return first if span.kind == "communication" and first in HALVES else span.kind


def labels(span: Span, calls: Sequence[str] = ()) -> Iterator[str]:
    """What may be written into a span, the longest first; ``calls`` are the numbers of those that it completes."""
    number = number_of(span.name)
    letter = LETTERS.get(look(span), "")
    if calls:
        which = calls[0] if len(calls) == 1 else f"{calls[0]}–{calls[-1]}"
        yield f"{span.name} → {which}"
        yield f"{letter}{number}→{which}"
    yield span.name
    if letter and number:
        yield letter + number
    yield letter or (number if span.kind == "communication" else "")


def number_of(name: str) -> str:
    """The number at the end of a span's name, if there is one: "3" of "all-reduce 3"."""
    last = name.rpartition(" ")[2]
    return last if last.isdigit() else ""
