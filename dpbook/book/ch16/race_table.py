"""The race in numbers: what each method sends, and its loss for the same examples, bytes and time."""

from collections.abc import Mapping, Sequence
from math import isnan

from dpbook.book.ch16.racing import LOOK, Raced
from dpbook.collectives import Link

BYTES, STEPS = 8, 40
"""The budget of bytes is this part of what the exact run sends, that of time is so many of its steps."""


def table(found: Mapping[str, Raced], links: Sequence[Link], scale: float) -> str:
    """A line for each method: its rate, bytes a step beside the exact run's, and test losses.

    Losses are those after all steps, after an eighth of the exact run's bytes, and over each link after the time in
    which the exact run takes 40 steps. What ends earlier is judged by its end, and a dash
    stands for what is not at its first look by then.
    """
    exact = found["exact"]
    allowed = exact.bytes[-1] / BYTES
    heads = ["all steps", f"1/{BYTES} of bytes", *(link.name for link in links)]
    lines = [f"{'':10}{'rate':>6}{'bytes':>8}" + "".join(f"{head:>{len(head) + 2}}" for head in heads)]
    for name, raced in found.items():
        losses = [raced.losses[-1], raced.within(raced.bytes, allowed)]
        for link in links:
            losses.append(raced.within(raced.clock(link, scale), exact.clock(link, scale)[STEPS // LOOK - 1]))
        cells = "".join(f"{_shown(loss):>{len(head) + 2}}" for loss, head in zip(losses, heads, strict=True))
        share = raced.bytes[-1] / exact.bytes[-1]
        lines.append(f"{name:10}{raced.entry.rates[raced.best]:6.2f}{share:8.1%}{cells}")
    return "\n".join(lines)


def _shown(loss: float) -> str:
    return "–" if isnan(loss) else f"{loss:.2f}"
