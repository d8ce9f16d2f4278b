"""A fair race of all methods, each at a rate of its own: loss for the same examples, bytes and simulated time.

The rates are chosen on images that decide nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan

import numpy as np

from dpbook.collectives import Link
from dpbook.core import InvalidArgument, check_int, palette
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import draw_lines, finish, in_style, new_figure, seconds_in_words
from dpbook.planning import LINKS
from dpbook.replicas import Array, Method, Model, Momentum, RankGroup, Step, train

Data = tuple[Array, Array]
LOOK = 8
"""Steps from one look at a run to the next."""


@dataclass(frozen=True)
class Entry:
    """What runs: a method and the learning rates to try, rising.

    ``seconds``: how long a step computes, with the wait for other ranks. ``momentum``: the optimizer's, 0 for methods
    that have one of their own. ``late``: whether messages travel while the next step computes.
    """

    method: Method
    rates: Sequence[float]
    seconds: float
    momentum: float = 0.5
    late: bool = False


@dataclass(frozen=True)
class Raced:
    """The runs of an entry; a look is taken after every `LOOK` steps.

    Attributes:
        validation: (rates, seeds), the loss on the images that choose the rate, after the last step.
        test: (looks, seeds), the loss on the test images at the best rate.
        sent: (steps,), bytes of the rank that has sent most in a step, at the best rate with the first seed.
        rounds: (steps,), rounds of messages.
    """

    entry: Entry
    validation: Array = field(repr=False)
    test: Array = field(repr=False)
    sent: Array = field(repr=False)
    rounds: Array = field(repr=False)

    @property
    def best(self) -> int:
        """The index of the rate with the smallest mean loss on the validation images."""
        return int(self.validation.mean(axis=1).argmin())

    @property
    def inside(self) -> bool:
        """Whether a worse rate lies on either side of the best; else the best may not have been tried."""
        return 0 < self.best < len(self.entry.rates) - 1

    @property
    def losses(self) -> Array:
        """The mean test loss at each look, (looks,)."""
        means: Array = self.test.mean(axis=1)
        return means

    @property
    def bytes(self) -> Array:
        """What has been sent until each look, (looks,)."""
        total: Array = self.sent.cumsum()[LOOK - 1 :: LOOK]
        return total

    def clock(self, link: Link, scale: float = 1.0) -> Array:
        """Seconds until each look, (looks,): a step computes, then its rounds follow one another over ``link``.

        Every byte counts ``scale`` times: a model of so many times the parameters.
        """
        messages = self.rounds * link.latency + scale * self.sent / link.bandwidth
        steps = np.maximum(messages, self.entry.seconds) if self.entry.late else messages + self.entry.seconds
        total: Array = steps.cumsum()[LOOK - 1 :: LOOK]
        return total

    def first(self, spent: Array, goal: float) -> float:
        """What had been ``spent`` at the first look with a test loss of at most ``goal``; infinite without one."""
        there = np.flatnonzero(self.losses <= goal)
        return float(spent[there[0]]) if len(there) else float("inf")

    def within(self, spent: Array, budget: float) -> float:
        """The test loss at the last look for which no more than ``budget`` had been ``spent``; NaN before the first."""
        looks = int((spent <= budget * (1 + 1e-12)).sum())
        return float(self.losses[looks - 1]) if looks else float("nan")


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
    """Train every entry with each of its rates and seeds; a seed is that of the parameters and of the order of reading.

    Looks are at rank 0's parameters. Raises `InvalidArgument` unless ``steps`` is a multiple of `LOOK`.
    """
    if check_int("steps", steps, 1) % LOOK:
        raise InvalidArgument("steps", steps, f"a multiple of {LOOK}")

    def run(entry: Entry, lr: float, seed: int) -> tuple[float, list[float], Array, Array]:
        seen: list[Array] = []
        done = train(
            model, training, world, method=_Watched(entry.method, seen.append), steps=steps, lr=lr,
            optimizer=partial(Momentum, momentum=entry.momentum), global_batch=global_batch, seed=seed, meters=(),
        )  # fmt: skip
        curve = [model.loss(params, *test) for params in seen]
        return model.loss(seen[-1], *validation), curve, done.sent.max(axis=1), done.rounds

    found = {}
    for name, entry in entries.items():
        runs = [[run(entry, lr, seed) for seed in range(seeds)] for lr in entry.rates]
        chosen = np.array([[each[0] for each in same] for same in runs])
        best = runs[int(chosen.mean(axis=1).argmin())]
        found[name] = Raced(entry, chosen, np.array([each[1] for each in best]).T, best[0][2], best[0][3])
    return found


@dataclass(frozen=True, repr=False)
class _Watched(Method):
    """A method that shows rank 0's parameters after every `LOOK` steps."""

    method: Method
    look: Callable[[Array], None]

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        for number, step in enumerate(self.method.steps(params, group), start=1):
            if number % LOOK == 0:
                self.look(step.params[0])
            yield step


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


GOAL = 0.2
"""The test loss at which the title of a race looks for the first."""
SECONDS = 3.0, 4e4
"""Where the axis of the race's time begins and ends, whatever the link."""
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
"""Colour, dashes and width of a method's curve: a colour for what it spends."""
OTHER = (palette.MUTED, "-", 1.6)
"""Of a method of the reader's own."""


@in_style
def curves(series: Mapping[str, Array], x: Array, title: str, *, across: str, up: str, log: str = "") -> Picture:
    """Plot up to four named series over ``x``. ``log`` holds "x" and "y" where the axis is to be logarithmic."""
    figure, axes = new_figure(title)
    draw_lines(axes, series, x)
    axes.set(xlabel=across, ylabel=up)
    axes.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    told = "; ".join(f"{name}: {values[0]:.2g} to {values[-1]:.2g}" for name, values in series.items())
    return finish(figure, f"{title}. {up} by {across}, from {x[0]:.3g} to {x[-1]:.3g}. {told}.")


@in_style
def race_over(found: Mapping[str, Raced], link: Link, scale: float) -> Picture:
    """Draw every method's test loss against simulated time over ``link``; the title names the first at `GOAL`."""
    clocks = {name: raced.clock(link, scale) for name, raced in found.items()}
    firsts = {name: raced.first(clocks[name], GOAL) for name, raced in found.items()}
    quickest = min(firsts, key=lambda name: firsts[name])
    title = f"{link.name}: first at a loss of {GOAL:g} is {quickest}"
    if quickest != "exact" and np.isfinite(firsts.get("exact", np.inf)):
        longer = firsts["exact"] / firsts[quickest]
        title = f"{link.name}: {quickest} is first, exact takes {longer:.1f}×"
    figure, axes = new_figure(title)
    for name, raced in found.items():
        colour, dashes, width = KINDS.get(name, OTHER)
        axes.plot(clocks[name], raced.losses, dashes, color=colour, linewidth=width, label=name)
    axes.axhline(GOAL, color=palette.MUTED, linewidth=0.8)
    axes.set(xlabel="simulated seconds", ylabel="test loss", xscale="log", yscale="log", xlim=SECONDS, ylim=(0.1, 2.5))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    axes.set_xticks([10, 100, 1_000, 10_000], labels=["10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    told = [f"{name} {seconds_in_words(at) if np.isfinite(at) else 'never'}" for name, at in firsts.items()]
    return finish(figure, f"{title}. Test loss against simulated time. When each is at {GOAL:g}: {', '.join(told)}.")


def explore_race(found: Mapping[str, Raced], scale: float, start: str) -> Explorer:
    """The race with a slider for the link, from the slowest to the fastest; ``start`` is the name of one in `LINKS`."""
    links = sorted(LINKS.values(), key=lambda link: link.bandwidth)
    knob = Knob("link", "link", {link.name: link for link in links}, start)
    return Explorer(lambda link: race_over(found, link, scale), [knob])
