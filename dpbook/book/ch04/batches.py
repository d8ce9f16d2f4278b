"""Bigger batches: accumulation turn by turn, a measurement against the batch, and estimates of the noise scale."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from dpbook.book.ch04.noise import NoiseScale
from dpbook.core import InvalidArgument, check_int, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import LINES, MARGIN, Card, box, draw_lines, finish, in_style, new_figure, text
from dpbook.replicas import Leftover, accumulate

LEFT, TOP, CELL, BOX, ROW = 96, 78, 82, 50, 112


@dataclass(frozen=True)
class Moment:
    """One micro-batch, whose gradient is 1, and the buffer after it; ``added`` is 0 where it is not computed."""

    epoch: int
    index: int
    added: Fraction
    buffer: Fraction
    update: bool


def play_accumulation(micro_batches: int, accumulation: int, leftover: Leftover = "carry", epochs: int = 2) -> Viewer:
    """Step through gradient accumulation, micro-batch by micro-batch, if each one's gradient is 1.

    An update is then the mean of its micro-batches if it is 1. Up to 10 micro-batches in an epoch and 3 epochs; raises
    `InvalidArgument`.
    """
    moments = _moments(micro_batches, accumulation, leftover, epochs)
    return Viewer(lambda after: _draw(moments, after), len(moments), "micro-batch")


def draw_accumulation(micro_batches: int, accumulation: int, leftover: Leftover = "carry", epochs: int = 2) -> Picture:
    """The last state of `play_accumulation`: every micro-batch, and every update."""
    moments = _moments(micro_batches, accumulation, leftover, epochs)
    return _draw(moments, len(moments))


def _moments(micro_batches: int, accumulation: int, leftover: Leftover, epochs: int) -> list[Moment]:
    check_int("micro_batches", micro_batches, 1, 10)
    check_int("epochs", epochs, 1, 3)
    buffer, moments = Fraction(0), []
    for epoch in range(epochs):
        turns = {turn.index: turn for turn in accumulate(micro_batches, accumulation, leftover)}
        for index in range(micro_batches):
            turn = turns.get(index)
            added = Fraction(1, turn.divisor) if turn else Fraction(0)
            buffer += added
            moments.append(Moment(epoch, index, added, buffer, turn is not None and turn.update))
            if moments[-1].update:
                buffer = Fraction(0)
    return moments


def _draw(moments: list[Moment], after: int) -> Picture:
    """The state after so many micro-batches, counted over all epochs."""
    epochs, width = moments[-1].epoch + 1, max(640, LEFT + (moments[-1].index + 1) * CELL + MARGIN)
    card = Card(width, _headline(moments, after), "every gradient is 1, so every update should be 1")
    for epoch in range(epochs):
        y = TOP + epoch * ROW
        card.add(text(MARGIN, y + BOX / 2 + 5, f"epoch {epoch + 1}", 14, bold=True))
        own = [(place, moment) for place, moment in enumerate(moments, start=1) if moment.epoch == epoch]
        for place, moment in own:
            card.add(*_cell(moment, y, shown=place <= after, now=place == after))
        done = [moment for place, moment in own if place <= after]
        card.add(*_brackets(done, y + BOX + 8, ended=own[-1][0] <= after))
    told = ", ".join(_decimal(moment.buffer) for moment in moments[:after] if moment.update)
    return card.picture(TOP + epochs * ROW + MARGIN / 2, f"Updates so far: {told or 'none'}.")


def _headline(moments: list[Moment], after: int) -> str:
    if after == 0:
        return "Before the first micro-batch the buffer is empty"
    if after == len(moments):
        return _outcome(moments)
    last = moments[after - 1]
    place = f"Epoch {last.epoch + 1}, micro-batch {last.index + 1}"
    if not last.added:
        return f"{place}: not computed"
    if last.update:
        return f"{place}: update by {_decimal(last.buffer)}, then the buffer is cleared"
    return f"{place}: the buffer holds {_decimal(last.buffer)}"


def _outcome(moments: list[Moment]) -> str:
    """What all the updates were, without repeats, and what became of no update."""
    sizes = list(dict.fromkeys(_decimal(moment.buffer) for moment in moments if moment.update))
    said = "Every update is 1" if sizes == ["1"] else f"Updates {' and '.join(sizes)}" if sizes else "No update"
    lost = sum(not moment.added for moment in moments)
    if lost:
        return f"{said}; {lost} micro-batch{'es are' if lost > 1 else ' is'} not computed"
    return said if moments[-1].update else f"{said}; {_decimal(moments[-1].buffer)} stays behind"


def _cell(moment: Moment, y: float, *, shown: bool, now: bool) -> Iterator[str]:
    """What a micro-batch adds, above what the buffer holds then."""
    x, width = LEFT + moment.index * CELL, CELL - 8
    colour = palette.COMPUTATION if moment.added else palette.IDLE
    yield box(x, y, width, BOX, colour if shown else None, 0.15, now)
    lines = [(30, "left out", palette.MUTED)]
    if moment.added:
        lines = [(21, f"+ {moment.added}", palette.INK), (40, f"= {moment.buffer}", palette.MUTED)]
    for down, line, fill in lines if shown else []:
        yield text(x + width / 2, y + down, line, 14, anchor="middle", mono=True, fill=fill, room=width - 6)


def _brackets(moments: Sequence[Moment], y: float, *, ended: bool) -> Iterator[str]:
    """Below the micro-batches of an epoch: the updates that they go into, and what becomes of those left over."""
    group: list[Moment] = []
    for moment in moments:
        group.append(moment)
        if moment.update:
            words = ("update by " if len(group) > 1 else "by ") + _decimal(moment.buffer)
            colour = palette.COMPLETE if moment.buffer == 1 else palette.EXPOSED
        elif ended and moment is moments[-1]:
            long, short = ("stays in the buffer", "stays") if moment.added else ("not computed", "lost")
            words, colour = long if len(group) > 1 else short, palette.COMMUNICATION
        else:
            continue
        x, width = LEFT + group[0].index * CELL, len(group) * CELL - 8
        yield box(x, y, width, 26, colour, 0.2)
        yield text(x + width / 2, y + 18, words, 13, anchor="middle", bold=True, room=width - 8)
        group = []


def _decimal(value: Fraction) -> str:
    return f"{float(value):.4g}"


@in_style
def against_batch(
    batches: ArrayLike, series: Mapping[str, ArrayLike], title: str, unit: str, *, log: bool = False
) -> Picture:
    """Plot up to four named measurements against the batch size, which has a logarithmic axis.

    ``batches`` (n,) are positive sizes in examples; each gets a tick. ``series`` are measurements (n,) by name, finite;
    with ``log`` they are positive and have a logarithmic axis too. ``title`` states the finding, ``unit`` what was
    measured. Raises `InvalidArgument`.
    """
    sizes = np.asarray(batches, float)
    if sizes.ndim != 1 or not len(sizes) or not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InvalidArgument("batches", batches, "one or more positive sizes in one dimension")
    named = {name: np.asarray(values, float) for name, values in series.items()}
    good = (v.shape == sizes.shape and np.isfinite(v).all() and (not log or (v > 0).all()) for v in named.values())
    if not 1 <= len(named) <= len(LINES) or not all(good):
        raise InvalidArgument("series", series, f"1 to {len(LINES)} finite measurements of each batch by name")
    figure, axes = new_figure(title)
    draw_lines(axes, named, sizes, marker="o")
    axes.set(xscale="log", xlabel="batch (examples)", ylabel=unit, yscale="log" if log else "linear")
    axes.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
    axes.xaxis.minorticks_off()
    if not log:
        axes.set_ylim(bottom=0)
    told = "; ".join(f"{name}: " + ", ".join(f"{value:.2g}" for value in values) for name, values in named.items())
    return finish(figure, f"{title}. {unit.capitalize()} for batches of {', '.join(f'{s:g}' for s in sizes)}. {told}.")


@in_style
def noise_scale_estimates(
    single: Sequence[NoiseScale], smoothed: Sequence[NoiseScale], direct: float, title: str
) -> Picture:
    """Plot the noise scale that single steps give, and their smoothed quotient, beside the ``direct`` one.

    The axis ends at three times ``direct``; single steps beyond it, or below 0, are drawn as triangles at its edge.
    Raises `InvalidArgument`.
    """
    if not 0 < direct < float("inf"):
        raise InvalidArgument("direct", direct, "a positive finite number")
    if not len(single) or len(single) != len(smoothed):
        raise InvalidArgument("smoothed", len(smoothed), f"one for each of one or more single steps, {len(single)}")
    steps, top = np.arange(1, len(single) + 1), 3 * direct
    scales = np.array([estimate.scale for estimate in single])
    figure, axes = new_figure(title)
    above, below = scales > top, scales < 0
    for marker, which, label in (("o", ~(above | below), "single step"), ("^", above, None), ("v", below, None)):
        place = steps[which], scales[which].clip(0, top)
        if which.any():  # an empty line would stretch the margin
            axes.plot(*place, marker, color=LINES[0][0], markersize=3.6, clip_on=False, label=label)
    smooth = [estimate.scale for estimate in smoothed]
    axes.plot(steps, np.clip(smooth, 0, top), color=LINES[1][0], linewidth=2.2, zorder=3, label="smoothed")
    axes.axhline(direct, color=palette.INK, linestyle=":", linewidth=1.8, zorder=4, label="direct")
    axes.set(xlabel="step", ylabel="noise scale (examples)", ylim=(0, top))
    about = [f"{float(f'{value:.2g}'):,.0f}" for value in (direct, smooth[-1])]  # two digits, without an exponent
    told = f"Directly measured: {about[0]} examples; smoothed over {len(single)} steps: {about[1]}."
    outside = (above | below).sum()
    return finish(figure, f"{title}. {told} {outside} single steps lie below 0 or beyond three times the direct value.")
