"""Bigger batches: the gradient noise scale, pictures of accumulation, and plots of measurements by batch.

The noise scale is the number of examples from which a batch's gradient is more signal than noise. The mean gradient of
B examples is G plus noise of covariance Σ / B, so its squared norm is |G|² + tr Σ / B on average. Data parallelism
computes gradients of two batch sizes anyway: the local ones, of b examples, and their average, of B = world · b. Two
equations, two unknowns (McCandlish, Kaplan, Amodei and the OpenAI Dota Team, An Empirical Model of Large-Batch
Training, 2018, appendix A).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from dpbook.core import InvalidArgument, check_int, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import LINES, MARGIN, Card, box, draw_lines, finish, in_style, new_figure, text
from dpbook.replicas import Array, Leftover, Model, accumulate


@dataclass(frozen=True)
class NoiseScale:
    """One estimate of signal and noise; both are right on average, but a single one may be negative or far off.

    Attributes:
        signal: |G|², the squared norm of the gradient over all examples there could be; that holds for examples that
            are independent of the weights, and not for those that the weights were trained on.
        noise: tr Σ, the sum over the parameters of the variance between single examples' gradients.
    """

    signal: float
    noise: float

    @property
    def scale(self) -> float:
        """B_simple = tr Σ / |G|², in examples: the batch with as much noise as signal; negative or inf without one."""
        return self.noise / self.signal if self.signal else float("inf")

    def __repr__(self) -> str:
        return f"NoiseScale(|G|² {self.signal:.4g}, tr Σ {self.noise:.4g}: {self.scale:.4g} examples)"


def noise_scale(gradients: Array, local_batch: int) -> NoiseScale:
    """Estimate signal and noise without bias from the gradients of a data-parallel step.

    With |g|² the mean of the local gradients' squared norms and |ḡ|² that of their average:
    tr Σ = (|g|² − |ḡ|²) / (1/b − 1/B) and |G|² = (B |ḡ|² − b |g|²) / (B − b). The ranks all-reduce one more number.

    If the batch is drawn without repetition from a data set, tr Σ is that of the set (with n − 1 in the denominator),
    and |G|² is below the set's own by tr Σ / n on average. This is the |G|² of the distribution that the set was drawn
    from only if the examples are independent of the weights at which the gradients are taken. Weights that were trained
    on them fit them: tr Σ and |G|² are then smaller than on new examples. Late in training, take held-out examples.

    Args:
        gradients: (world, size), each rank's gradient of its mean loss, before the average; 2 ranks or more.
        local_batch: examples of each rank, b. With 1, the gradients are those of single examples.
    """
    b = check_int("local_batch", local_batch, 1)
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or len(gradients) < 2:
        raise InvalidArgument("gradients", gradients, "an array (world, size) of two or more ranks")
    rows = gradients.astype(np.float64)
    global_batch = b * len(rows)
    small = float((rows * rows).sum(axis=1).mean())
    large = float((rows.mean(axis=0) ** 2).sum())
    noise = (small - large) / (1 / b - 1 / global_batch)
    signal = (global_batch * large - b * small) / (global_batch - b)
    return NoiseScale(signal, noise)


def smooth(estimates: Iterable[NoiseScale]) -> Iterator[NoiseScale]:
    """Yield after each step the averages of signal and noise so far, whose quotient estimates the noise scale.

    The quotients of single steps must not be averaged: a signal near 0 makes one of them huge, or negative. The signal
    changes in training, so in a long run the weights of earlier steps should decay.
    """
    signal = noise = 0.0
    for steps, estimate in enumerate(estimates, start=1):
        signal, noise = signal + estimate.signal, noise + estimate.noise
        yield NoiseScale(signal / steps, noise / steps)


def example_gradients(model: Model, params: Array, x: Array, y: Array) -> Array:
    """Return each example's gradient, (n, size), at ``params`` (size,), by n backward passes, for small models."""
    return np.stack([model.gradient(params, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


def variance_by_batch(
    gradients: Array, batches: Sequence[int], draws: int = 200, rng: np.random.Generator | None = None
) -> Array:
    """Measure the variance of a batch's mean gradient for several batch sizes, (len(batches),).

    It is summed over the parameters and expected to be tr Σ / B for a batch of B: the *variance* falls like 1/B, the
    standard deviation, its root, like 1/√B.

    Args:
        gradients: (n, size), single examples' gradients, from which batches are drawn with repetition.
        draws: batches of each size, 2 or more; the relative error is about √(2 / draws) or less.
        rng: random generator; ``default_rng(0)`` by default.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    variances = []
    for batch in batches:
        # A product with the counts of each example in a batch needs no array of shape (draws, B, size).
        counts = rng.multinomial(batch, np.full(len(gradients), 1 / len(gradients)), size=draws)
        variances.append((counts @ gradients / batch).var(axis=0, ddof=1).sum())
    return np.array(variances)


LEFT, TOP, CELL, BOX, ROW = 96, 78, 82, 50, 112


@dataclass(frozen=True)
class AccumulationState:
    """One micro-batch, whose gradient is 1, and the buffer after it; ``added`` is 0 if it is not computed."""

    epoch: int
    index: int
    added: Fraction
    buffer: Fraction
    update: bool


def play_accumulation(micro_batches: int, accumulation: int, leftover: Leftover = "carry", epochs: int = 2) -> Viewer:
    """Step through accumulation if each gradient is 1: an update of 1 is then the mean of its micro-batches.

    Up to 10 micro-batches in an epoch and 3 epochs; raises `InvalidArgument`.
    """
    states = _states(micro_batches, accumulation, leftover, epochs)
    return Viewer(lambda after: _draw(states, after), len(states), "micro-batch")


def draw_accumulation(micro_batches: int, accumulation: int, leftover: Leftover = "carry", epochs: int = 2) -> Picture:
    """Draw the last picture of `play_accumulation`."""
    states = _states(micro_batches, accumulation, leftover, epochs)
    return _draw(states, len(states))


def _states(micro_batches: int, accumulation: int, leftover: Leftover, epochs: int) -> list[AccumulationState]:
    check_int("micro_batches", micro_batches, 1, 10)
    check_int("epochs", epochs, 1, 3)
    buffer, states = Fraction(0), []
    for epoch in range(epochs):
        turns = {turn.index: turn for turn in accumulate(micro_batches, accumulation, leftover)}
        for index in range(micro_batches):
            turn = turns.get(index)
            added = Fraction(1, turn.divisor) if turn else Fraction(0)
            buffer += added
            states.append(AccumulationState(epoch, index, added, buffer, turn is not None and turn.update))
            if states[-1].update:
                buffer = Fraction(0)
    return states


def _draw(states: list[AccumulationState], after: int) -> Picture:
    """Draw the state after so many micro-batches, counted over all epochs."""
    epochs, width = states[-1].epoch + 1, max(640, LEFT + (states[-1].index + 1) * CELL + MARGIN)
    card = Card(width, _headline(states, after), "every gradient is 1, so every update should be 1")
    for epoch in range(epochs):
        y = TOP + epoch * ROW
        card.add(text(MARGIN, y + BOX / 2 + 5, f"epoch {epoch + 1}", 14, bold=True))
        row = [(place, state) for place, state in enumerate(states, start=1) if state.epoch == epoch]
        for place, state in row:
            card.add(*_cell(state, y, shown=place <= after, now=place == after))
        processed = [state for place, state in row if place <= after]
        card.add(*_brackets(processed, y + BOX + 8, ended=row[-1][0] <= after))
    updates = ", ".join(_decimal(state.buffer) for state in states[:after] if state.update)
    return card.picture(TOP + epochs * ROW + MARGIN / 2, f"Updates so far: {updates or 'none'}.")


def _headline(states: list[AccumulationState], after: int) -> str:
    if after == 0:
        return "Before the first micro-batch the buffer is empty"
    if after == len(states):
        return _outcome(states)
    last = states[after - 1]
    place = f"Epoch {last.epoch + 1}, micro-batch {last.index + 1}"
    if not last.added:
        return f"{place}: not computed"
    if last.update:
        return f"{place}: update by {_decimal(last.buffer)}, then the buffer is cleared"
    return f"{place}: the buffer holds {_decimal(last.buffer)}"


def _outcome(states: list[AccumulationState]) -> str:
    """Describe all updates, without repeats, and the micro-batches that are in none."""
    sizes = list(dict.fromkeys(_decimal(state.buffer) for state in states if state.update))
    updates = "Every update is 1" if sizes == ["1"] else f"Updates {' and '.join(sizes)}" if sizes else "No update"
    lost = sum(not state.added for state in states)
    if lost:
        return f"{updates}; {lost} micro-batch{'es are' if lost > 1 else ' is'} not computed"
    return updates if states[-1].update else f"{updates}; {_decimal(states[-1].buffer)} stays behind"


def _cell(state: AccumulationState, y: float, *, shown: bool, now: bool) -> Iterator[str]:
    """Draw a micro-batch's contribution, above the buffer's value after it."""
    x, width = LEFT + state.index * CELL, CELL - 8
    colour = palette.COMPUTATION if state.added else palette.IDLE
    yield box(x, y, width, BOX, colour if shown else None, 0.15, now)
    lines = [(30, "left out", palette.MUTED)]
    if state.added:
        lines = [(21, f"+ {state.added}", palette.INK), (40, f"= {state.buffer}", palette.MUTED)]
    for down, line, fill in lines if shown else []:
        yield text(x + width / 2, y + down, line, 14, anchor="middle", mono=True, fill=fill, room=width - 6)


def _brackets(states: Sequence[AccumulationState], y: float, *, ended: bool) -> Iterator[str]:
    """Draw, below the micro-batches of an epoch, their updates, and the fate of those in no update."""
    group: list[AccumulationState] = []
    for state in states:
        group.append(state)
        if state.update:
            words = ("update by " if len(group) > 1 else "by ") + _decimal(state.buffer)
            colour = palette.COMPLETE if state.buffer == 1 else palette.EXPOSED
        elif ended and state is states[-1]:
            long, short = ("stays in the buffer", "stays") if state.added else ("not computed", "lost")
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
    """Plot up to four named measurements (n,) against ``batches`` (n,) in examples, on a logarithmic axis.

    With ``log`` the measurements, which ``unit`` names, have a logarithmic axis too. Raises `InvalidArgument`.
    """
    sizes = np.asarray(batches, float)
    named = {name: np.asarray(values, float) for name, values in series.items()}
    figure, axes = new_figure(title)
    draw_lines(axes, named, sizes, marker="o")
    axes.set(xscale="log", xlabel="batch (examples)", ylabel=unit, yscale="log" if log else "linear")
    axes.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
    axes.xaxis.minorticks_off()
    if not log:
        axes.set_ylim(bottom=0)
    data = "; ".join(f"{name}: {', '.join(map(_two_digits, values))}" for name, values in named.items())
    return finish(figure, f"{unit.capitalize()} for batches of {', '.join(f'{s:g}' for s in sizes)}. {data}.")


def _two_digits(value: float) -> str:
    """Return a number to two digits, without an exponent, which nobody would read aloud."""
    return f"{float(f'{value:.2g}'):.10g}"


@in_style
def noise_scale_estimates(
    single: Sequence[NoiseScale], smoothed: Sequence[NoiseScale], direct: float, title: str
) -> Picture:
    """Plot the noise scale that single steps give, and their smoothed quotient, beside the ``direct`` one.

    The axis ends at three times ``direct``; single steps beyond it, or below 0, are drawn as triangles at its edge.
    """
    steps, top = np.arange(1, len(single) + 1), 3 * direct
    scales = np.array([estimate.scale for estimate in single])
    figure, axes = new_figure(title)
    above, below = scales > top, scales < 0
    for marker, mask, label in (("o", ~(above | below), "single step"), ("^", above, None), ("v", below, None)):
        if mask.any():  # an empty line would stretch the margin
            place = steps[mask], scales[mask].clip(0, top)
            axes.plot(*place, marker, color=LINES[0][0], markersize=3.6, clip_on=False, label=label)
    smooth = [estimate.scale for estimate in smoothed]
    axes.plot(steps, np.clip(smooth, 0, top), color=LINES[1][0], linewidth=2.2, zorder=3, label="smoothed")
    axes.axhline(direct, color=palette.INK, linestyle=":", linewidth=1.8, zorder=4, label="direct")
    axes.set(xlabel="step", ylabel="noise scale (examples)", ylim=(0, top))
    values = f"Directly measured: {_two_digits(direct)} examples; smoothed over {len(single)} steps: "
    values += f"{_two_digits(smooth[-1])}."
    outside = (above | below).sum()
    return finish(figure, f"{values} {outside} single steps lie below 0 or beyond three times the direct value.")
