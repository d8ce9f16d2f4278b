"""Fair comparison of all methods, each at its best learning rate: loss by examples, bytes and simulated time.

The learning rates are chosen on validation images, which decide nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan

import numpy as np

from dpbook.collectives import Link
from dpbook.core import InvalidArgument, check_int, palette
from dpbook.figures import Explorer, Knob, Picture, progress
from dpbook.figures.card import draw_lines, finish, in_style, new_figure, seconds_in_words
from dpbook.planning import LINKS
from dpbook.replicas import Array, Method, Model, Momentum, RankGroup, Step, train

Data = tuple[Array, Array]
EVALUATION_STEPS = 8
"""Steps between two evaluations of a run."""
MOST_TICKS = 8
"""Ticks of a logarithmic axis; one with no more values has a tick at each."""


@dataclass(frozen=True)
class Entry:
    """Method that takes part in a race, with its settings.

    Attributes:
        method: the method.
        rates: learning rates to try, rising.
        seconds: computation time of a step, including the wait for other ranks.
        momentum: momentum of the optimizer; 0 for methods that have their own.
        late: whether messages travel while the next step computes.
    """

    method: Method
    rates: Sequence[float]
    seconds: float
    momentum: float = 0.5
    late: bool = False


@dataclass(frozen=True)
class Raced:
    """Runs of an entry, evaluated after every `EVALUATION_STEPS` steps.

    Attributes:
        validation: (rates, seeds), loss on the validation images after the last step.
        test: (evaluations, seeds), loss on the test images at the best rate.
        sent: (steps,), bytes of the rank that sends the most in a step, at the best rate with the first seed.
        rounds: (steps,), rounds of messages.
    """

    entry: Entry
    validation: Array = field(repr=False)
    test: Array = field(repr=False)
    sent: Array = field(repr=False)
    rounds: Array = field(repr=False)

    @property
    def best(self) -> int:
        """Index of the rate with the smallest mean loss on the validation images."""
        return int(self.validation.mean(axis=1).argmin())

    @property
    def inside(self) -> bool:
        """Whether a worse rate was tried on either side of the best one; otherwise a better rate may exist."""
        return 0 < self.best < len(self.entry.rates) - 1

    @property
    def losses(self) -> Array:
        """Mean test loss at each evaluation, (evaluations,)."""
        means: Array = self.test.mean(axis=1)
        return means

    @property
    def bytes(self) -> Array:
        """Bytes sent until each evaluation, (evaluations,)."""
        total: Array = self.sent.cumsum()[EVALUATION_STEPS - 1 :: EVALUATION_STEPS]
        return total

    def clock(self, link: Link, scale: float = 1.0) -> Array:
        """Return the seconds until each evaluation, (evaluations,), over ``link``.

        A step computes, then its rounds follow one another. Every byte counts ``scale`` times, as for a model with
        that many times the parameters.
        """
        messages = self.rounds * link.latency + scale * self.sent / link.bandwidth
        steps = np.maximum(messages, self.entry.seconds) if self.entry.late else messages + self.entry.seconds
        total: Array = steps.cumsum()[EVALUATION_STEPS - 1 :: EVALUATION_STEPS]
        return total

    def first(self, spent: Array, goal: float) -> float:
        """Return what was ``spent`` until the first evaluation with a test loss of at most ``goal``; else infinity."""
        there = np.flatnonzero(self.losses <= goal)
        return float(spent[there[0]]) if len(there) else float("inf")

    def within(self, spent: Array, budget: float) -> float:
        """Return the test loss at the last evaluation within ``budget`` of what is ``spent``; NaN before the first."""
        evaluations = int((spent <= budget * (1 + 1e-12)).sum())
        return float(self.losses[evaluations - 1]) if evaluations else float("nan")


def race(
    model: Model,
    training: Data,
    validation: Data,
    test: Data,
    entries: Mapping[str, Entry],
    *,
    world: int,
    steps: int,
    seeds: int,
    global_batch: int,
) -> dict[str, Raced]:
    """Train every entry with each of its rates and seeds; a seed sets the parameters and the order of the examples.

    Evaluations use rank 0's parameters. A progress bar counts the entries. Raises `InvalidArgument` unless ``steps`` is
    a multiple of `EVALUATION_STEPS`.
    """
    if check_int("steps", steps, 1) % EVALUATION_STEPS:
        raise InvalidArgument("steps", steps, f"a multiple of {EVALUATION_STEPS}")

    def run(entry: Entry, lr: float, seed: int) -> tuple[float, list[float], Array, Array]:
        snapshots: list[Array] = []
        result = train(
            model, training, world, method=_WithSnapshots(entry.method, snapshots.append), steps=steps, lr=lr,
            optimizer=partial(Momentum, momentum=entry.momentum), global_batch=global_batch, seed=seed, meters=(),
        )  # fmt: skip
        curve = [model.loss(params, *test) for params in snapshots]
        return model.loss(snapshots[-1], *validation), curve, result.sent.max(axis=1), result.rounds

    raced = {}
    for name, entry in progress(entries.items()):
        runs = [[run(entry, lr, seed) for seed in range(seeds)] for lr in entry.rates]
        losses = np.array([[on_validation for on_validation, *_ in same_rate] for same_rate in runs])
        best = runs[int(losses.mean(axis=1).argmin())]
        raced[name] = Raced(entry, losses, np.array([curve for _, curve, *_ in best]).T, best[0][2], best[0][3])
    return raced


@dataclass(frozen=True, repr=False)
class _WithSnapshots(Method):
    """Method that hands on rank 0's parameters after every `EVALUATION_STEPS` steps."""

    method: Method
    take: Callable[[Array], None]

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        for number, step in enumerate(self.method.steps(params, group), start=1):
            if number % EVALUATION_STEPS == 0:
                self.take(step.params[0])
            yield step


BYTES_DIVISOR, TIME_STEPS = 8, 40
"""The budget of bytes is the exact run's divided by the first number; the budget of time is this many of its steps."""


def table(runs: Mapping[str, Raced], links: Sequence[Link], scale: float) -> str:
    """Return a table with a line for each method: its rate, its bytes relative to the exact run's, and test losses.

    Losses are those after all steps, after an eighth of the exact run's bytes, and over each link after the time of 40
    steps of the exact run. A run that ends earlier counts with its last loss. A dash stands for a run that has not
    reached its first evaluation.
    """
    exact = runs["exact"]
    allowed = exact.bytes[-1] / BYTES_DIVISOR
    heads = ["all steps", f"1/{BYTES_DIVISOR} of bytes", *(link.name for link in links)]
    lines = [f"{'':10}{'rate':>6}{'bytes':>8}" + "".join(f"{head:>{len(head) + 2}}" for head in heads)]
    for name, raced in runs.items():
        losses = [raced.losses[-1], raced.within(raced.bytes, allowed)]
        for link in links:
            allowed_seconds = exact.clock(link, scale)[TIME_STEPS // EVALUATION_STEPS - 1]
            losses.append(raced.within(raced.clock(link, scale), allowed_seconds))
        cells = "".join(f"{_shown(loss):>{len(head) + 2}}" for loss, head in zip(losses, heads, strict=True))
        share = raced.bytes[-1] / exact.bytes[-1]
        lines.append(f"{name:10}{raced.entry.rates[raced.best]:6.2f}{share:8.1%}{cells}")
    return "\n".join(lines)


def _shown(loss: float) -> str:
    return "–" if isnan(loss) else f"{loss:.2f}"


GOAL = 0.2
"""Test loss that the winner of a race reaches first."""
SECONDS = 3.0, 4e4
"""Ends of the time axis of a race, the same for every link."""
KINDS = {
    "exact": (palette.INK, "-", 3.5),
    "bf16": (palette.COMPUTATION, "-", 2.0),
    "int8": (palette.COMPUTATION, "--", 2.0),
    "top-k": (palette.COMMUNICATION, "-", 2.0),
    "sign": (palette.COMMUNICATION, "--", 2.0),
    "low rank": (palette.COMMUNICATION, ":", 2.4),
    "local SGD": (palette.COMPLETE, "-", 2.0),
    "DiLoCo": (palette.COMPLETE, "--", 2.0),
    "stale": (palette.EXPOSED, "-", 1.6),
    "backup": (palette.EXPOSED, "--", 1.6),
}
"""Colour, dashes and width of each method's curve; a colour stands for the kind of exactness that it gives up."""
OTHER = (palette.MUTED, "-", 1.6)
"""Style of a reader's own method."""


@in_style
def curves(series: Mapping[str, Array], x: Array, title: str, *, across: str, up: str, log: str = "") -> Picture:
    """Plot up to four named series over ``x``. ``log`` holds "x" and "y" where the axis is to be logarithmic."""
    figure, axes = new_figure(title)
    draw_lines(axes, series, x)
    axes.set(xlabel=across, ylabel=up)
    axes.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    if "x" in log and len(x) <= MOST_TICKS:
        axes.set_xticks(x)
        axes.tick_params(axis="x", which="minor", length=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    ends = "; ".join(f"{name}: {values[0]:.2g} to {values[-1]:.2g}" for name, values in series.items())
    return finish(figure, f"{title}. {up} by {across}, from {x[0]:.3g} to {x[-1]:.3g}. {ends}.")


@in_style
def race_over(runs: Mapping[str, Raced], link: Link, scale: float) -> Picture:
    """Draw every method's test loss against simulated time over ``link``; the title names the first at `GOAL`."""
    clocks = {name: raced.clock(link, scale) for name, raced in runs.items()}
    firsts = {name: raced.first(clocks[name], GOAL) for name, raced in runs.items()}
    quickest = min(firsts, key=lambda name: firsts[name])
    title = f"{link.name}: first at a loss of {GOAL:g} is {quickest}"
    if quickest != "exact" and np.isfinite(firsts.get("exact", np.inf)):
        longer = firsts["exact"] / firsts[quickest]
        title = f"{link.name}: {quickest} is first, exact takes {longer:.1f}×"
    figure, axes = new_figure(title)
    for name, raced in runs.items():
        colour, dashes, width = KINDS.get(name, OTHER)
        axes.plot(clocks[name], raced.losses, dashes, color=colour, linewidth=width, label=name)
    axes.axhline(GOAL, color=palette.MUTED, linewidth=0.8)
    axes.set(xlabel="simulated seconds", ylabel="test loss", xscale="log", yscale="log", xlim=SECONDS, ylim=(0.1, 2.5))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    axes.set_xticks([10, 100, 1_000, 10_000], labels=["10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    times = [f"{name} {seconds_in_words(at) if np.isfinite(at) else 'never'}" for name, at in firsts.items()]
    return finish(figure, f"{title}. Test loss against simulated time. When each is at {GOAL:g}: {', '.join(times)}.")


def explore_race(runs: Mapping[str, Raced], scale: float, start: str) -> Explorer:
    """Show the race with a slider for the link, from the slowest to the fastest; ``start`` is a name of `LINKS`."""
    links = sorted(LINKS.values(), key=lambda link: link.bandwidth)
    knob = Knob("link", "link", {link.name: link for link in links}, start)
    return Explorer(lambda link: race_over(runs, link, scale), [knob])
