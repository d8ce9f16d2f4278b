"""A simulated step to play with: from event to event, or with knobs for its times and its buckets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpbook import overlap
from dpbook.core import milliseconds, plural
from dpbook.figures.card.explorer import Explorer, Knob
from dpbook.figures.card.picture import Picture, stacked
from dpbook.figures.card.player import Viewer
from dpbook.figures.steps.buckets import framed_plan
from dpbook.figures.steps.curve import here
from dpbook.figures.steps.timelines import check_timelines, draw_until, from_zero, until
from dpbook.overlap import (
    FIRST_CAP,
    MIB,
    Layer,
    Price,
    Strategy,
    Timeline,
    equal_layers,
    hook,
    naive_flat,
    simulate_step,
)

CAPS_MIB = (1, 2, 5, 10, 25, 50, 100, 250, 640)
COUNTS = (1, 2, 3, 4, 5, 8, 10, 20, 50)
ROWS = 8
"""Of the buckets in an explorer, whose picture must not jump when their number changes."""
MOST_MS = 150
"""The longest computation, and the longest communication, that `explore_savings` offers: its axis is twice as long."""


def play_step(timeline: Timeline, *, rank: int = 0) -> Viewer:
    """Step through one rank's timeline, from one moment at which something ends to the next, with meters.

    The meters say how long computation and communication ran so far, and how much of it was exposed. Raises
    `InvalidArgument`.
    """
    check_timelines({"step": timeline}, "step", rank)
    own = from_zero(timeline, rank)
    moments = [0.0, *sorted({span.end for span in own.spans if span.duration > 0} | {own.end})]

    def draw(after: int) -> Picture:
        now = moments[after]
        ended = ", ".join(span.name for span in own.spans if span.end == now and span.duration)
        title = f"{milliseconds(now)} of {milliseconds(own.end)}: {f'{ended} ended' if ended else 'the step begins'}"
        if after == len(moments) - 1:
            exposed = milliseconds(own.exposed(rank))
            title = f"The step took {milliseconds(own.end)}; {exposed} of communication were exposed"
        return draw_until({"step": own}, title, now, meters=_meters(until(own, now), own, rank))

    return Viewer(draw, len(moments) - 1, "event")


def explore_savings() -> Explorer:
    """Turn computation, communication and the number of equal buckets, and see what overlap saves of a naive step.

    Backward is two thirds of the computation, and one bucket goes out at the end of each k-th of it.
    """

    def draw(compute: float, communication: float, buckets: int, before: Mapping[str, Any] | None = None) -> Picture:
        naive, overlapped = (_equal(way, compute, communication, buckets) for way in (naive_flat, hook))
        saved = 1 - overlapped.duration / naive.duration
        title = f"With {plural(buckets, 'bucket')} overlap saves {saved:.0%} of the naive step"
        curve = {str(count): _equal(hook, compute, communication, count).duration for count in COUNTS}
        last = (str(before["buckets"]), _equal(hook, **before).duration) if before else None
        return stacked(
            draw_until({"naive": naive, "overlapped": overlapped}, title, end=2e-3 * MOST_MS),
            here(curve, str(buckets), "The overlapped step over the number of buckets", 2e-3 * MOST_MS, last),
        )

    times = {f"{ms} ms": ms / 1e3 for ms in (10, 20, 35, 50, 67, 75, 100, MOST_MS)}
    knobs = [
        Knob("compute", "computation", times, "100 ms"),
        Knob("communication", "communication", times, "35 ms"),
        Knob("buckets", "buckets", {str(count): count for count in COUNTS}, "4"),
    ]
    return Explorer(draw, knobs)


def _equal(way: Callable[[Sequence[Layer]], Strategy], compute: float, communication: float, buckets: int) -> Timeline:
    """A step of as many equal layers as ``buckets``."""
    layers = equal_layers(buckets, compute / 3, compute * 2 / 3, buckets)
    return simulate_step(layers, way(layers), lambda nbytes: communication * nbytes / buckets)


def explore_buckets(
    layers: Sequence[Layer], price: Price, caps: Sequence[int] = CAPS_MIB, first: int | None = FIRST_CAP
) -> Explorer:
    """Turn the bucket cap, in MiB, and see the buckets, the step, and where it lies among those of all caps.

    ``price`` is bytes → seconds of a collective; ``first`` is the cap of the first bucket, as in `overlap.plan`.
    All positions have the same axes: those of the largest bucket and of the longest step.
    """
    tensors = overlap.tensors_of(layers)
    values = {f"{cap:g} MiB": round(cap * MIB) for cap in caps}
    names = {cap: name for name, cap in values.items()}
    knob = Knob("cap", "bucket cap", values, "25 MiB" if "25 MiB" in values else None)
    plans = {cap: overlap.plan(tensors, cap, first) for cap in values.values()}
    steps = {cap: simulate_step(layers, buckets, price) for cap, buckets in plans.items()}
    curve = {name: steps[cap].duration for name, cap in values.items()}
    longest, widest = max(curve.values()), max(int(buckets.nbytes.max()) for buckets in plans.values())

    def draw(cap: int, before: Mapping[str, int] | None = None) -> Picture:
        step, name = steps[cap], names[cap]
        last = (names[before["cap"]], steps[before["cap"]].duration) if before else None
        title = f"The step takes {milliseconds(step.duration)}, {milliseconds(step.exposed())} exposed"
        return stacked(
            framed_plan(plans[cap], cap, None, ROWS, widest, kept=ROWS),
            draw_until({f"cap {name}": step}, title, end=longest),
            here(curve, name, "Step time over the bucket caps", longest, last),
        )

    return Explorer(draw, [knob])


def _meters(so_far: Timeline, whole: Timeline, rank: int) -> str:
    def ran(kind: str) -> str:
        now = so_far.busy(kind, rank) if so_far.spans else 0.0  # type: ignore[arg-type]
        return f"{milliseconds(now)} of {milliseconds(whole.busy(kind, rank))}"  # type: ignore[arg-type]

    exposed = milliseconds(so_far.exposed(rank) if so_far.spans else 0.0)
    return f"computed {ran('computation')} · communicated {ran('communication')} · exposed so far {exposed}"
