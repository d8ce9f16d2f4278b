"""Losses of an update as their graphs show them: the backwards of each line, and the means and sums in their losses."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dpbook.runs.audit.journals import Update
from dpbook.runs.watching.journal import Event

TOLERANCE = 1e-4
"""Relative difference up to which two divisors count as equal."""


def by_line(update: Update) -> Iterator[list[tuple[int, Event]]]:
    """Yield, for each loss of the script, its backwards in one update, as pairs of rank and event.

    A loss is identified by its line. Of several backwards after one forward each is a loss of its own.

    The divisors are without a gradient scaler's factor. If another optimizer (a critic's) steps between the backwards
    of a line, only those after its last step belong to the update. Backwards before gradients were cleared do not;
    ``cleared_before`` of each event is their number, for its line.
    """
    lines: dict[str, list[tuple[int, Event]]] = {}
    for rank, events in enumerate(update.before):
        factor, others = 1.0, 0
        known: dict[str, tuple[int, list[tuple[int, Event]]]] = {}
        dropped: Counter[str] = Counter()
        for event in events:
            if event["kind"] == "scaled":
                factor = event["factor"]
            elif event["kind"] == "step":
                others += 1
            elif event["kind"] == "backward":
                line = event["line"]
                if event.get("cleared"):
                    dropped.update({each: len(found) for each, (after, found) in known.items() if after == others})
                    known.clear()
                after, backwards = known.get(line, (others, []))
                backwards = backwards if after == others else []
                unscaled = _unscaled(event, factor) | {"cleared_before": dropped[line]}
                known[line] = others, [*backwards, (rank, unscaled)]
                factor = 1.0
        for line, (_, backwards) in known.items():
            lines.setdefault(line, []).extend(backwards)
    yield from lines.values()


def _unscaled(event: Event, factor: float) -> Event:
    losses = event["losses"]
    return event | {"losses": losses and [part | {"divisor": part["divisor"] * factor} for part in losses]}


def line_of(of_line: list[tuple[int, Event]]) -> str:
    """Return the line of the script of which these are the backwards, as `by_line` distinguishes them."""
    return str(of_line[0][1]["line"])


def parts_of_line(of_line: Sequence[tuple[int, Event]]) -> list[list[dict[str, Any]]]:
    """Return the first mean or sum of every loss of a line, then the second of every loss, and so on.

    Nothing is returned if the losses do not consist of the same number of parts.
    """
    losses = [event["losses"] for _, event in of_line]
    if all(losses) and len({len(loss) for loss in losses}) == 1:
        return [list(part) for part in zip(*losses, strict=True)]
    return []
