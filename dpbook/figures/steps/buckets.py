"""Bucket plans: which tensors share a bucket, and what the cap does to the step."""

from collections.abc import Iterator

from dpbook.core import check_type, in_binary, milliseconds, palette, plural
from dpbook.figures.card.card import Card
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import Plot, finish, in_style, new_figure
from dpbook.figures.card.svg import MARGIN, aside, rect, text
from dpbook.overlap import CapSweep, Plan

WIDTH, LEFT, RIGHT, ROW, BAR = 900, 110, 160, 24, 17
MOST_ROWS = 13
"""Of buckets, and of the line that says how many are left out."""
MOST_TENSORS = 200
"""In a bar; beyond it, its tensors are not told apart."""


def draw_plan(plan: Plan, cap: int | None = None, title: str | None = None) -> Picture:
    """Draw each bucket as a bar of its tensors, in the order in which they are launched, against the ``cap`` (bytes).

    Of more than 13 buckets the first 11 and the last are drawn. Raises `InvalidArgument`.
    """
    check_type("plan", plan, Plan, "a Plan, as overlap.plan makes it")
    return framed_plan(plan, cap, title, MOST_ROWS, int(plan.nbytes.max()), min(plan.calls, MOST_ROWS))


def framed_plan(plan: Plan, cap: int | None, title: str | None, rows: int, widest: int, kept: int = 0) -> Picture:
    """Draw a plan in at most so many ``rows``, of which ``kept`` are there in any case, up to ``widest`` bytes."""
    sizes = plan.nbytes.tolist()
    at = f" at a cap of {in_binary(cap)}" if cap else ""
    title = title or f"{plural(len(plan.tensors), 'tensor')} in {plural(plan.calls, 'bucket')}{at}"
    shown = list(range(plan.calls)) if plan.calls <= rows else [*range(rows - 2), plan.calls - 1]
    scale = (WIDTH - LEFT - RIGHT) / max(widest, 1)
    card = Card(WIDTH, title, "first bucket to be launched at the top; every segment is a tensor")
    labels, top = [], card.y
    for place, bucket in enumerate(shown):
        if place and bucket != shown[place - 1] + 1:
            left_out = plural(bucket - shown[place - 1] - 1, "bucket")
            labels.append(aside(LEFT, card.y + 14, f"… {left_out} …", halo=palette.PAPER))
            card.y += ROW
        card.add(*_bars(plan, bucket, card.y, scale))
        nbytes, members = plan.buckets[bucket].nbytes, plural(len(plan.buckets[bucket].tensors), "tensor")
        labels.append(text(LEFT - 10, card.y + 13, f"bucket {bucket + 1}", 12, anchor="end"))
        size = f"{in_binary(nbytes)}, {members}"
        labels.append(text(LEFT + nbytes * scale + 8, card.y + 13, size, 11, halo=palette.PAPER))
        card.y += ROW
    y = max(card.y, top + ROW * kept)
    if cap and cap <= widest:
        x = LEFT + cap * scale
        card.add(rect(x - 1, top - 4, 2, y - top + 2, fill=palette.EXPOSED))
        card.add(text(x, y + 12, f"cap {in_binary(cap)}", 11, anchor="middle", fill=palette.EXPOSED))
    card.add(*labels)
    told = f", from {in_binary(min(sizes))} to {in_binary(max(sizes))}" if plan.calls > 1 else ""
    return card.picture(y + MARGIN + 6, f"{in_binary(plan.total_bytes)} in all{told}.")


def _bars(plan: Plan, bucket: int, y: float, scale: float) -> Iterator[str]:
    widths = [plan.tensors[t].nbytes * scale for t in plan.buckets[bucket].tensors]
    if len(widths) > MOST_TENSORS:
        widths = [sum(widths)]
    x, seen = float(LEFT), 0
    for width in widths:
        fill = palette.COMMUNICATION if seen % 2 == 0 else palette.tint(palette.COMMUNICATION, 0.6)
        seen += width >= 1  # biases between weights would give all weights one colour
        yield rect(x, y, max(width, 0.5), BAR, fill=fill)
        x += width


@in_style
def cap_sweep(sweep: CapSweep, title: str) -> Plot:
    """Plot step time and exposed communication against the bucket cap, and mark the best."""
    check_type("sweep", sweep, CapSweep, "a CapSweep, as overlap.best_cap returns it")
    figure, axes = new_figure(title)
    exposed = {"color": palette.EXPOSED, "linewidth": 2, "label": "exposed communication"}
    axes.step(sweep.caps, 1e3 * sweep.durations, where="post", color=palette.COMPUTATION, linewidth=2.5, label="step")
    axes.step(sweep.caps, 1e3 * sweep.exposed, "--", where="post", **exposed)
    shortest = f"shortest: {milliseconds(sweep.duration)} at {in_binary(sweep.best)}"
    axes.plot([sweep.best], [1e3 * sweep.duration], "o", color=palette.INK, markersize=7, zorder=5, label=shortest)
    axes.set(xscale="log", xlabel="bucket cap (bytes)", ylabel="milliseconds")
    axes.set_ylim(0, 1.35e3 * float(sweep.durations.max()))  # room for the legend
    axes.legend(loc="upper left", ncols=2)
    low, high, best = (in_binary(float(cap)) for cap in (sweep.caps[0], sweep.caps[-1], sweep.best))
    caps, least = plural(len(sweep.caps), "bucket cap"), milliseconds(sweep.duration)
    return finish(figure, f"{title}. Step time over {caps} from {low} to {high}; the shortest, {least}, is at {best}.")
