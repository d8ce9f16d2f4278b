"""What a device can hold: memory per rank against its capacity."""

from collections.abc import Iterator, Mapping, Sequence

from dpbook.core import check_float, palette
from dpbook.figures import Picture
from dpbook.figures.card import Card, Key, Scale, axes, check_named, check_title, element, number, rect, text
from dpbook.planning import Memory

PARTS = {
    "weights": Key("weights", palette.COMPUTATION),
    "gradients": Key("gradients", palette.COMMUNICATION),
    "optimizer": Key("optimizer state", palette.PARTIAL),
    "buckets": Key("copy in buckets", palette.tint(palette.COMMUNICATION, 0.45)),
    "activations": Key("activations", palette.COMPLETE),
}
BEFORE = Key("last position", axes.GHOST, "outline")
TOO_MUCH = palette.tint(palette.EXPOSED, 0.12)
"""Where no device has memory any more."""

WIDTH, LEFT, FULL, RIGHT, TOP, ROW, BAR = 760, 90, 380, 560, 92, 30, 19
FITTING, DOUBLING = Scale(0, 1, LEFT, FULL), Scale(1, 64, FULL, RIGHT, log=True)
"""Shares of the capacity: what fits has most of the axis, and beyond it each doubling is as long as the one before."""


def memory_bars(
    memories: Mapping[str, Memory], capacity: float, title: str, last: Sequence[float] | None = None
) -> Picture:
    """Stack what each of up to 8 named setups keeps on a rank, in units of the ``capacity`` (bytes) of its device.

    Up to the capacity a bar is as long as its bytes; beyond it the axis is logarithmic. ``last`` are shares of the
    capacity at the last position, one a setup, for its ghost.
    """
    check_float("capacity", capacity, above=0)
    check_named("memories", memories, 8, Memory, "1 to 8 Memory by name")
    check_title(title)
    bottom = TOP + len(memories) * ROW
    shown = [key for part, key in PARTS.items() if any(getattr(memory, part) for memory in memories.values())]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, [*shown, *([BEFORE] if last else [])]))
    card.add(rect(FULL, TOP - 6, RIGHT - FULL, bottom - TOP + 6, fill=TOO_MUCH))
    shares = {quarters / 4: f"{25 * quarters} %" for quarters in range(5)}
    card.add(*axes.axis_across(FITTING, bottom, shares, "share of the GPU's memory", TOP - 6))
    times = {4.0**power: f"{4**power} ×" for power in (1, 2, 3)}
    card.add(*axes.axis_across(DOUBLING, bottom, times, "too much (logarithmic)", TOP - 6))
    first = next((name for name, memory in memories.items() if memory.total <= capacity), None)
    for row, (name, memory) in enumerate(memories.items()):
        y = TOP + row * ROW
        card.add(text(LEFT - 10, y + 14, name, 12, anchor="end", bold=name == first))
        card.add(*_bar(memory, capacity, y))
        if last:
            card.add(axes.outline(LEFT, y - 3, _place(last[row]) - LEFT, BAR + 6))
        fits = memory.total <= capacity
        verdict = f"{gigabytes(memory.total)} {'✓ fits' if fits else '✗ does not fit'}"
        card.add(text(RIGHT + 16, y + 14, verdict, 12, bold=name == first, fill=None if fits else palette.EXPOSED))
    card.add(rect(FULL - 1, TOP - 6, 2, bottom - TOP + 6, fill=palette.EXPOSED))
    card.add(text(FULL, TOP - 11, gigabytes(capacity, 0), 12, anchor="middle", bold=True, fill=palette.EXPOSED))
    told = "; ".join(f"{name}: {gigabytes(memory.total)}" for name, memory in memories.items())
    return card.picture(bottom + 46, f"Per rank, of {gigabytes(capacity, 0)}: {told}.")


def gigabytes(nbytes: float, digits: int = 1) -> str:
    """``1,120.0 GB``."""
    return f"{nbytes / 1e9:,.{digits}f} GB"


def _place(share: float) -> float:
    return FITTING(share) if share <= 1 else DOUBLING.within(share)


def _bar(memory: Memory, capacity: float, y: float) -> Iterator[str]:
    """The parts side by side, and an arrow where they go on beyond the axis."""
    kept, colour = 0.0, palette.INK
    for part, key in PARTS.items():
        start, kept = kept, kept + getattr(memory, part) / capacity
        if start < min(kept, DOUBLING.high):
            colour = key.colour
            yield rect(_place(start), y, _place(kept) - _place(start), BAR, fill=colour)
    if kept > DOUBLING.high:
        corners = " ".join(f"{number(RIGHT + x)},{number(y + h)}" for x, h in ((0, -3), (11, BAR / 2), (0, BAR + 3)))
        yield element("polygon", points=corners, fill=colour)
