"""Simulated steps: bucket plans, the cap that is best, and figures that a reader steps through or turns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dpbook import overlap
from dpbook.core import check_type, in_binary, milliseconds, palette, plural
from dpbook.figures.card.picture import Card, Picture, stacked
from dpbook.figures.card.plot import finish, in_style, new_figure
from dpbook.figures.card.svg import MARGIN, Attributes, aside, circle, element, rect, text, text_width
from dpbook.figures.card.viewer import Explorer, Knob, Viewer
from dpbook.figures.steps.timelines import check_timelines, draw_until, from_zero, until
from dpbook.overlap import CAP, MIB, CapSweep, Layer, Plan, Price, Timeline, simulate_step

WIDTH, LEFT, RIGHT, ROW, BAR = 900, 110, 176, 24, 17
"""Pixels: width of the card, room beside the bars, height of a row and of a bar."""
MOST_ROWS = 13
"""Rows of a plan: buckets, and the line that says how many are omitted."""
MOST_TENSORS = 200
"""Tensors of a bar that are drawn one by one; a bar with more is drawn whole."""
CURVE_LEFT, CURVE_RIGHT, CURVE_TOP, CURVE_HEIGHT = 132, 60, 34, 80
"""Pixels: room beside the curve of an explorer, room above it, and its height."""
CAPS_MIB = (1, 2, 5, 10, 25, 50, 100, 250, 640)
ROWS = 8
"""Rows of buckets in an explorer, whose picture must not jump when their number changes."""


def draw_plan(plan: Plan, cap: int | None = None, title: str | None = None) -> Picture:
    """Draw each bucket as a bar of its tensors, in launch order, with the ``cap`` (bytes) as a line.

    Of more than 13 buckets the first 11 and the last are drawn. Raises `InvalidArgument`.
    """
    check_type("plan", plan, Plan, "a Plan, as overlap.plan makes it")
    return framed_plan(plan, cap, title, MOST_ROWS, int(plan.nbytes.max()), min(plan.calls, MOST_ROWS))


def framed_plan(plan: Plan, cap: int | None, title: str | None, rows: int, widest: int, min_rows: int = 0) -> Picture:
    """Draw a plan in ``min_rows`` to ``rows`` rows, on an axis of ``widest`` bytes."""
    sizes = plan.nbytes.tolist()
    at = f" at a cap of {in_binary(cap)}" if cap else ""
    title = title or f"{plural(len(plan.tensors), 'tensor')} in {plural(plan.calls, 'bucket')}{at}"
    shown = list(range(plan.calls)) if plan.calls <= rows else [*range(rows - 2), plan.calls - 1]
    scale = (WIDTH - LEFT - RIGHT) / max(widest, 1)
    card = Card(WIDTH, title, "first bucket to be launched at the top; every segment is a tensor")
    labels, top, at_cap = [], card.y, LEFT + (cap or 0) * scale

    def beside_cap(x: float, words: str) -> float:
        """Return where words at ``x`` begin, so that the line of the cap does not touch them."""
        return at_cap + 8 if x - 8 < at_cap < x + text_width(words, 12) + 4 else x

    for row, bucket in enumerate(shown):
        if row and bucket != shown[row - 1] + 1:
            omitted = f"… {plural(bucket - shown[row - 1] - 1, 'bucket')} …"
            labels.append(aside(beside_cap(LEFT, omitted), card.y + 14, omitted, halo=palette.PAPER))
            card.y += ROW
        card.add(*_bars(plan, bucket, card.y, scale))
        nbytes, members = plan.buckets[bucket].nbytes, plural(len(plan.buckets[bucket].tensors), "tensor")
        labels.append(text(LEFT - 10, card.y + 13, f"bucket {bucket + 1}", anchor="end"))
        size = f"{in_binary(nbytes)}, {members}"
        x = beside_cap(LEFT + nbytes * scale + 8, size)
        labels.append(text(x, card.y + 13, size, halo=palette.PAPER))
        card.y += ROW
    y = max(card.y, top + ROW * min_rows)
    if cap and cap <= widest:
        card.add(rect(at_cap - 1, top - 4, 2, y - top + 2, fill=palette.EXPOSED))
        card.add(text(at_cap, y + 12, f"cap {in_binary(cap)}", anchor="middle", fill=palette.EXPOSED))
    card.add(*labels)
    sizes_in_words = f", from {in_binary(min(sizes))} to {in_binary(max(sizes))}" if plan.calls > 1 else ""
    return card.picture(y + MARGIN + 6, f"{in_binary(plan.total_bytes)} in all{sizes_in_words}.")


def _bars(plan: Plan, bucket: int, y: float, scale: float) -> Iterator[str]:
    """Yield a bar for each tensor of a bucket, in two alternating colours."""
    widths = [plan.tensors[t].nbytes * scale for t in plan.buckets[bucket].tensors]
    if len(widths) > MOST_TENSORS:
        widths = [sum(widths)]
    x, wide = float(LEFT), 0
    for width in widths:
        fill = palette.COMMUNICATION if wide % 2 == 0 else palette.tint(palette.COMMUNICATION, 0.6)
        wide += width >= 1  # counting the biases between them would give all weights one colour
        yield rect(x, y, max(width, 0.5), BAR, fill=fill)
        x += width


@in_style
def cap_sweep(sweep: CapSweep, title: str) -> Picture:
    """Plot step time and exposed communication against the bucket cap, and mark the shortest step."""
    check_type("sweep", sweep, CapSweep, "a CapSweep, as overlap.best_cap returns it")
    figure, axes = new_figure(title)
    exposed = {"color": palette.EXPOSED, "linewidth": 2, "label": "exposed communication"}
    caps = sweep.caps / MIB
    axes.step(caps, 1e3 * sweep.durations, where="post", color=palette.COMPUTATION, linewidth=2.5, label="step")
    axes.step(caps, 1e3 * sweep.exposed, "--", where="post", **exposed)
    shortest = f"shortest: {milliseconds(sweep.duration)} at {in_binary(sweep.best)}"
    best = [sweep.best / MIB], [1e3 * sweep.duration]
    axes.plot(*best, "o", color=palette.INK, markersize=7, zorder=5, label=shortest)
    if caps[0] <= CAP / MIB <= caps[-1]:
        usual = f"DDP's {in_binary(CAP)}"
        axes.axvline(CAP / MIB, color=palette.MUTED, linestyle=":", linewidth=1.5, label=usual)
    axes.set(xscale="log", xlabel="bucket cap (MiB)", ylabel="milliseconds")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(0, 1.1e3 * float(sweep.durations.max()))
    low, high, cap = (in_binary(float(cap)) for cap in (sweep.caps[0], sweep.caps[-1], sweep.best))
    tried, least = plural(len(sweep.caps), "bucket cap"), milliseconds(sweep.duration)
    return finish(figure, f"Step time over {tried} from {low} to {high}; the shortest, {least}, is at {cap}.")


def play_step(timeline: Timeline) -> Viewer:
    """Step through the timeline of rank 0, from the end of one span to the end of the next, with meters.

    The meters count computation, communication, and exposed communication so far. Raises `InvalidArgument`.
    """
    check_timelines({"step": timeline}, 0)
    step = from_zero(timeline, 0)
    moments = [0.0, *sorted({span.end for span in step.spans if span.duration > 0} | {step.end})]

    def draw(after: int) -> Picture:
        now = moments[after]
        ended = ", ".join(span.name for span in step.spans if span.end == now and span.duration)
        title = f"{milliseconds(now)} of {milliseconds(step.end)}: {f'{ended} ended' if ended else 'the step begins'}"
        if after == len(moments) - 1:
            exposed = milliseconds(step.exposed())
            title = f"The step took {milliseconds(step.end)}; {exposed} of communication were exposed"
        return draw_until({"step": step}, title, now, meters=_meters(until(step, now), step))

    return Viewer(draw, len(moments) - 1, "event")


def explore_buckets(layers: Sequence[Layer], price: Price) -> Explorer:
    """Vary the bucket cap, in MiB, and see the buckets, the step, and its place among the steps of all caps.

    ``price`` maps bytes to the seconds of a collective. All positions have the same axes, as long as the largest bucket
    and the longest step.
    """
    tensors = overlap.tensors_of(layers)
    values = {f"{cap:g} MiB": round(cap * MIB) for cap in CAPS_MIB}
    names = {cap: name for name, cap in values.items()}
    knob = Knob("cap", "bucket cap", values, "25 MiB")
    plans = {cap: overlap.plan(tensors, cap) for cap in values.values()}
    steps = {cap: simulate_step(layers, buckets, price) for cap, buckets in plans.items()}
    curve = {name: steps[cap].duration for name, cap in values.items()}
    ends = min(curve.values()), max(curve.values())
    widest = max(int(buckets.nbytes.max()) for buckets in plans.values())

    def draw(cap: int, before: Mapping[str, int] | None = None) -> Picture:
        step, name = steps[cap], names[cap]
        last = (names[before["cap"]], steps[before["cap"]].duration) if before else None
        title = f"The step takes {milliseconds(step.duration)}, {milliseconds(step.exposed())} exposed"
        return stacked(
            framed_plan(plans[cap], cap, None, ROWS, widest, min_rows=ROWS),
            draw_until({f"cap {name}": step}, title, end=ends[1]),
            position_curve(curve, name, "Step time over the bucket caps", milliseconds, ends, min, last),
        )

    return Explorer(draw, [knob])


def _meters(so_far: Timeline, whole: Timeline) -> str:
    def ran(kind: str) -> str:
        now = so_far.busy(kind) if so_far.spans else 0.0  # type: ignore[arg-type]
        return f"{milliseconds(now)} of {milliseconds(whole.busy(kind))}"  # type: ignore[arg-type]

    exposed = milliseconds(so_far.exposed() if so_far.spans else 0.0)
    return f"computed {ran('computation')} · communicated {ran('communication')} · exposed so far {exposed}"


def position_curve(
    curve: Mapping[str, float], chosen: str, title: str, words: Callable[[float], str], ends: tuple[float, float],
    best: Callable[[Iterable[float]], float], last: tuple[str, float] | None = None,
) -> Picture:  # fmt: skip
    """Draw ``curve``, a value by the position of a knob, between the ``ends``.

    The ``chosen`` position and the best are marked. ``words`` writes a value, and ``best`` is `min` or `max`. ``last``
    is the position before, and its value; a ring marks it.
    """
    (low, high), foot = ends, CURVE_TOP + CURVE_HEIGHT
    pitch = (WIDTH - CURVE_LEFT - CURVE_RIGHT) / max(len(curve) - 1, 1)

    def height(value: float) -> float:
        return foot - CURVE_HEIGHT * (min(max(value, low), high) - low) / ((high - low) or 1)

    places = {name: (CURVE_LEFT + k * pitch, height(value)) for k, (name, value) in enumerate(curve.items())}
    body = [text(MARGIN, 18, title, 13, bold=True)]
    for value in (high, low):
        body.append(rect(CURVE_LEFT - 6, height(value), WIDTH - CURVE_LEFT - CURVE_RIGHT + 12, 1, fill=palette.IDLE))
        body.append(aside(CURVE_LEFT - 12, height(value) + 4, words(value), anchor="end"))
    x, y = places[chosen]
    body.append(rect(x - 0.5, CURVE_TOP, 1, CURVE_HEIGHT, fill=palette.INK))
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places.values())
    body.append(element("polyline", points=points, fill="none", stroke=palette.COMPUTATION, stroke_width=2))
    body += [circle(a, b, 3, fill=palette.COMPUTATION) for a, b in places.values()]
    if last:
        ring: Attributes = {"fill": "none", "stroke": palette.MUTED, "stroke_width": 2, "stroke_dasharray": "3 2"}
        body.append(circle(places[last[0]][0], height(last[1]), 7, **ring))
        body.append(aside(WIDTH - MARGIN, 18, "dashed ring: the last position", anchor="end"))
    top = next(name for name, value in curve.items() if value == best(curve.values()))
    body.append(circle(*places[top], 6, fill=palette.PAPER, stroke=palette.COMPLETE_EDGE, stroke_width=3))
    body.append(circle(x, y, 6 if chosen != top else 3, fill=palette.INK))
    for name, (a, _) in places.items():
        now = name == chosen
        body.append(text(a, foot + 17, name, anchor="middle", fill=palette.INK if now else palette.MUTED, bold=now))
    where = f"you are here: {words(curve[chosen])}; the best, {words(curve[top])}, is at {top}"
    body.append(aside(MARGIN + text_width(title, 13, bold=True) + 16, 18, where, 12))
    alt = f"{title}: {', '.join(f'{name} {words(value)}' for name, value in curve.items())}; {where}."
    return Picture(WIDTH, foot + 30, body, alt)
