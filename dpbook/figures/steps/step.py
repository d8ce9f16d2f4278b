"""A simulated step to play with: from event to event, or with knobs for its times and its buckets."""

from collections.abc import Callable, Sequence

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

    def draw(compute: float, communication: float, buckets: int) -> Picture:
        def step(strategy: Callable[[Sequence[Layer]], Strategy], count: int) -> Timeline:
            layers = equal_layers(count, compute / 3, compute * 2 / 3, count)
            return simulate_step(layers, strategy(layers), lambda nbytes: communication * nbytes / count)

        naive, overlapped = step(naive_flat, buckets), step(hook, buckets)
        saved = 1 - overlapped.duration / naive.duration
        title = f"With {plural(buckets, 'bucket')} overlap saves {saved:.0%} of the naive step"
        curve = {str(count): step(hook, count).duration for count in COUNTS}
        return stacked(
            draw_until({"naive": naive, "overlapped": overlapped}, title, end=2e-3 * MOST_MS),
            here(curve, str(buckets), "The overlapped step over the number of buckets", 2e-3 * MOST_MS),
        )

    times = {f"{ms} ms": ms / 1e3 for ms in (10, 20, 35, 50, 67, 75, 100, MOST_MS)}
    knobs = [
        Knob("compute", "computation", times, "100 ms"),
        Knob("communication", "communication", times, "35 ms"),
        Knob("buckets", "buckets", {str(count): count for count in COUNTS}, "4"),
    ]
    return Explorer(draw, knobs)


def explore_buckets(
    layers: Sequence[Layer], price: Price, caps: Sequence[int] = CAPS_MIB, first: int | None = FIRST_CAP
) -> Explorer:
    """Turn the bucket cap, in MiB, and see the buckets, the step, and where it lies among those of all caps.

    ``price`` is bytes → seconds of a collective; ``first`` is the cap of the first bucket, as in `overlap.plan`.
    All positions have the same axes: those of the largest bucket and of the longest step.
    """
    tensors = overlap.tensors_of(layers)
    values = {f"{cap:g} MiB": round(cap * MIB) for cap in caps}
    knob = Knob("cap", "bucket cap", values, "25 MiB" if "25 MiB" in values else None)
    plans = {cap: overlap.plan(tensors, cap, first) for cap in values.values()}
    steps = {cap: simulate_step(layers, buckets, price) for cap, buckets in plans.items()}
    curve = {name: steps[cap].duration for name, cap in values.items()}
    longest, widest = max(curve.values()), max(int(buckets.nbytes.max()) for buckets in plans.values())

    def draw(cap: int) -> Picture:
        step, name = steps[cap], next(name for name, value in values.items() if value == cap)
        title = f"The step takes {milliseconds(step.duration)}, {milliseconds(step.exposed())} exposed"
        return stacked(
            framed_plan(plans[cap], cap, None, ROWS, widest, kept=ROWS),
            draw_until({f"cap {name}": step}, title, end=longest),
            here(curve, name, "Step time over the bucket caps", longest),
        )

    return Explorer(draw, [knob])


def _meters(so_far: Timeline, whole: Timeline, rank: int) -> str:
    def ran(kind: str) -> str:
        now = so_far.busy(kind, rank) if so_far.spans else 0.0  # type: ignore[arg-type]
        return f"{milliseconds(now)} of {milliseconds(whole.busy(kind, rank))}"  # type: ignore[arg-type]

    exposed = milliseconds(so_far.exposed(rank) if so_far.spans else 0.0)
    return f"computed {ran('computation')} · communicated {ran('communication')} · exposed so far {exposed}"
