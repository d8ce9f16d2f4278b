"""Fair comparison of all methods, each at its best learning rate: loss by examples, bytes and simulated time.

The learning rates are chosen on validation images, which decide nothing else. The stored races have everything tuned,
for several numbers of ranks: every method has its own learning rate and momentum, chosen with ten seeds; twenty other
seeds then run. `tests/benchmarks/store_races.py` computes them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np

from dpbook.collectives import Link
from dpbook.core import DATA, InvalidArgument, check_int, palette, plural
from dpbook.figures import Explorer, Knob, Picture, progress
from dpbook.figures.card import draw_lines, finish, in_style, new_figure, seconds_in_words
from dpbook.planning import LINKS, Exponential, local_steps, slowest
from dpbook.replicas import Array, Exact, Method, Model, Momentum, RankGroup, Step, train
from dpbook.replicas.inexact import Backup, DiLoCo, LocalSGD, LowPrecision, LowRank, Sign, Stale, TopK

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
        return self.sent.cumsum()[EVALUATION_STEPS - 1 :: EVALUATION_STEPS]

    def clock(self, link: Link, scale: float = 1.0) -> Array:
        """Return the seconds until each evaluation, (evaluations,), over ``link``.

        A step computes, then its rounds follow one another. Every byte counts ``scale`` times, as for a model with
        that many times the parameters.
        """
        messages = self.rounds * link.latency + scale * self.sent / link.bandwidth
        steps = np.maximum(messages, self.entry.seconds) if self.entry.late else messages + self.entry.seconds
        return steps.cumsum()[EVALUATION_STEPS - 1 :: EVALUATION_STEPS]

    def first(self, spent: Array, goal: float) -> float:
        """Return what was ``spent`` until the first evaluation with a test loss of at most ``goal``; else infinity."""
        there = np.flatnonzero(self.losses <= goal)
        return float(spent[there[0]]) if len(there) else float("inf")


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
    first_seed: int = 0,
) -> dict[str, Raced]:
    """Train every entry with each of its rates and seeds; a seed sets the parameters and the order of the examples.

    Evaluations use the last parameters that all ranks had: between two meetings those of the first. A progress bar
    counts the entries. Raises `InvalidArgument` unless ``steps`` is a multiple of `EVALUATION_STEPS`.
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
        runs = [[run(entry, lr, seed) for seed in range(first_seed, first_seed + seeds)] for lr in entry.rates]
        losses = np.array([[on_validation for on_validation, *_ in same_rate] for same_rate in runs])
        best = runs[int(losses.mean(axis=1).argmin())]
        raced[name] = Raced(entry, losses, np.array([curve for _, curve, *_ in best]).T, best[0][2], best[0][3])
    return raced


@dataclass(frozen=True, repr=False)
class _WithSnapshots(Method):
    """Method that hands on the last parameters that all ranks had, after every `EVALUATION_STEPS` steps."""

    method: Method
    take: Callable[[Array], None]

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        common = params[0]
        for number, step in enumerate(self.method.steps(params, group), start=1):
            if np.array_equal(step.params, np.broadcast_to(step.params[0], step.params.shape), equal_nan=True):
                common = step.params[0]
            if number % EVALUATION_STEPS == 0:
                self.take(common)
            yield step


GOAL = 0.2
"""Test loss that the winner of a race reaches first."""
LEAD = 1.25
"""Ratio of times below which a lead does not count: losses are measured every few steps."""
SECONDS = 3.0, 4e4
"""Ends of the time axis of a race, the same for every link."""
KINDS = {
    "exact": (palette.INK, "-", 3.5),
    "bf16": (palette.COMPUTATION, "-", 2.0),
    "int8": (palette.COMPUTATION, "--", 2.0),
    "top-k": (palette.COMMUNICATION, "-", 2.0),
    "sign": (palette.COMMUNICATION, "--", 2.0),
    "sign, two-phase": (palette.COMMUNICATION, "-.", 2.0),
    "low rank": (palette.COMMUNICATION, ":", 2.4),
    "local SGD": (palette.COMPLETE, "-", 2.0),
    "DiLoCo": (palette.COMPLETE, "--", 2.0),
    "DiLoCo 0.9": (palette.COMPLETE, ":", 2.4),
    "stale": (palette.EXPOSED, "-", 1.6),
    "backup": (palette.EXPOSED, "--", 1.6),
}
"""Colour, dashes and width of each method's curve; a colour stands for the kind of exactness that it gives up."""
OTHER = (palette.MUTED, "-", 1.6)  # a reader's own method


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
    return finish(figure, f"{up} by {across}, from {x[0]:.3g} to {x[-1]:.3g}. {ends}.")


@in_style
def race_over(runs: Mapping[str, Raced], link: Link, scale: float) -> Picture:
    """Draw every method's test loss against simulated time over ``link``; the title names the first at `GOAL`.

    It counts the others that are within `LEAD` of it.
    """
    clocks = {name: raced.clock(link, scale) for name, raced in runs.items()}
    firsts = {name: raced.first(clocks[name], GOAL) for name, raced in runs.items()}
    quickest, *others = leaders(firsts)
    leading = f"{quickest} and {plural(len(others), 'other')} are" if others else f"{quickest} is"
    title = f"{link.name}: {leading} first at a loss of {GOAL:g}"
    if "exact" not in (quickest, *others) and np.isfinite(firsts.get("exact", np.inf)):
        title = f"{link.name}: {leading} first, exact takes {firsts['exact'] / firsts[quickest]:.1f}×"
    figure, axes = new_figure(title)
    for name, raced in runs.items():
        colour, dashes, width = KINDS.get(name, OTHER)
        if name not in ("exact", quickest):
            colour, width = palette.tint(colour, 0.65), width - 0.6
        axes.plot(clocks[name], raced.losses, dashes, color=colour, linewidth=width, label=name)
    labels = {"exact": (1.08, "left", "bottom")} | {quickest: (1 / 1.08, "right", "top")}
    for name, (beside, across, up) in labels.items():
        if np.isfinite(at := firsts.get(name, np.inf)):
            axes.plot([at], [GOAL], "o", color=palette.INK, markersize=6, zorder=5)
            axes.text(at * beside, GOAL * beside, f"{name}, {at:,.3g} s", ha=across, va=up, weight="bold")
    axes.axhline(GOAL, color=palette.MUTED, linewidth=0.8)
    axes.set(xlabel="simulated seconds", ylabel="test loss", xscale="log", yscale="log", xlim=SECONDS, ylim=(0.1, 2.5))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    axes.set_xticks([10, 100, 1_000, 10_000], labels=["10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    times = [f"{name} {seconds_in_words(at) if np.isfinite(at) else 'never'}" for name, at in firsts.items()]
    return finish(figure, f"Test loss against simulated time. When each is at {GOAL:g}: {', '.join(times)}.")


def leaders(seconds: Mapping[str, float]) -> list[str]:
    """Return the names of those that take at most `LEAD` times as long as the quickest, the quickest first."""
    first, *others = sorted(seconds, key=lambda name: seconds[name])
    return [first, *(name for name in others if np.isfinite(at := seconds[name]) and at <= LEAD * seconds[first])]


def explore_race(races: Mapping[int, Mapping[str, Raced]], scale: float, start: str) -> Explorer:
    """Show the races with sliders for the link, from the slowest to the fastest, and the number of ranks.

    ``races`` has the runs by the number of ranks; ``start`` is a name of `LINKS`.
    """
    links = sorted(LINKS.values(), key=lambda link: link.bandwidth)
    knobs = [
        Knob("link", "link", {link.name: link for link in links}, start),
        Knob("ranks", "ranks", {str(world): world for world in races}, str(next(iter(races)))),
    ]
    return Explorer(lambda link, ranks: race_over(taking_part(races[ranks], link, scale), link, scale), knobs)


PERIOD = ", H = "
"""What stands between a method's name and its period, in the names of entries that run with several periods."""


def period_for(runs: Mapping[str, Raced], link: Link, scale: float) -> int:
    """Return the period of the entries nearest to the one at which a meeting costs a tenth of the computation."""
    exact = runs["exact"]
    meeting = exact.rounds[0] * link.alpha + scale * exact.sent[0] * link.beta
    wanted = np.log(meeting / (0.1 * exact.entry.seconds))
    periods = {int(name.partition(PERIOD)[2]) for name in runs if PERIOD in name}
    return min(sorted(periods), key=lambda period: abs(np.log(period) - wanted))


def taking_part(runs: Mapping[str, Raced], link: Link, scale: float) -> dict[str, Raced]:
    """Return ``runs``, but of entries that run with several periods only those with the period that ``link`` needs."""
    if not any(PERIOD in name for name in runs):
        return dict(runs)
    ending = f"{PERIOD}{period_for(runs, link, scale)}"
    return {name.removesuffix(ending): run for name, run in runs.items() if PERIOD not in name or name.endswith(ending)}


def first_by_link(races: Mapping[int, Mapping[str, Raced]], links: Sequence[Link], scale: float) -> str:
    """Return a table of the first method at a test loss of `GOAL`, by link and number of ranks.

    Behind each name stand the number of others within `LEAD` of it, and how many times as long the exact loop takes;
    before the names stand the periods in use.
    """
    lines = [f"{'':24}{'H':>3}   " + "".join(f"{f'{world} ranks':<27}" for world in races)]
    for link in links:
        cells = []
        for runs in races.values():
            raced = taking_part(runs, link, scale)
            seconds = {name: run.first(run.clock(link, scale), GOAL) for name, run in raced.items()}
            first, *others = leaders(seconds)
            name = f"{first} +{len(others)}" if others else first
            cells.append(f"{name:18}{seconds['exact'] / seconds[first]:5.1f}×   ")
        period = period_for(next(iter(races.values())), link, scale)
        lines.append(f"{link.name:24}{period:3}   " + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def behind_exact(runs: Mapping[str, Raced]) -> dict[str, tuple[float, float]]:
    """Return each method's final test loss minus the exact loop's, the mean over the seeds and its standard error."""
    differences = {name: run.test[-1] - runs["exact"].test[-1] for name, run in runs.items()}
    return {name: (float(d.mean()), float(d.std(ddof=1) / np.sqrt(len(d)))) for name, d in differences.items()}


WORLDS = 4, 8, 16
PERIODS = 2, 8, 24, 48
"""Steps between two meetings that were run; each leaves at least two meetings."""
STORED = DATA / "race.json"
COMPUTE = Exponential(0.36, 0.04)
"""Seconds of computation in a step: 8,192 tokens of Qwen3 4B on an H100 at half of its peak take 0.4."""


def entries(world: int) -> dict[str, Entry]:
    """Return the methods that take part, before tuning: the middle one of their rates is where the search begins."""
    everyone = slowest(COMPUTE, world)
    wide, compressing, low = (0.6, 1.2, 2.4), (0.5, 1, 2), (0.18, 0.36, 0.72)
    made = {
        "exact": Entry(Exact(), wide, everyone),
        "bf16": Entry(LowPrecision("bf16"), wide, everyone),
        "int8": Entry(LowPrecision("int8"), wide, everyone),
        "top-k": Entry(TopK(0.01), compressing, everyone),
        "sign": Entry(Sign(), compressing, everyone),
        "sign, two-phase": Entry(Sign(two_phase=True), compressing, everyone),
        "low rank": Entry(LowRank(2), wide, everyone),
        "stale": Entry(Stale(1), low, everyone, momentum=0, late=True),
        "backup": Entry(Backup(1), wide, COMPUTE.arrival(world - 1, world)),
    }
    for period in PERIODS:
        alone = local_steps(COMPUTE, world, period)
        made[f"local SGD, H = {period}"] = Entry(LocalSGD(period), wide, alone)
        made[f"DiLoCo, H = {period}"] = Entry(DiLoCo(period, outer_momentum=0.5), wide, alone)
        made[f"DiLoCo 0.9, H = {period}"] = Entry(DiLoCo(period), wide, alone)
    return made


def with_momentum(entry: Entry, momentum: float) -> Entry:
    """Return ``entry`` with this momentum: of top-k and sign the ranks' own, of the others the optimizer's."""
    if isinstance(entry.method, TopK | Sign):
        return replace(entry, method=replace(entry.method, momentum=momentum), momentum=0)
    return replace(entry, momentum=momentum)


@cache
def stored_races() -> dict[int, dict[str, Raced]]:
    """Return the stored runs by the number of ranks and the name of the entry."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    races: dict[int, dict[str, Raced]] = {}
    for world in WORLDS:
        known, races[world] = entries(world), {}
        for name, run in stored[str(world)].items():
            rates = run["rate"] / 2, run["rate"], run["rate"] * 2
            tuned = replace(with_momentum(known[name], run["momentum"]), rates=rates)
            arrays = (np.array(run[key]) for key in ("validation", "test", "sent", "rounds"))
            races[world][name] = Raced(tuned, *arrays)
    return races
