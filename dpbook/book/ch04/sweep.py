"""Steps of SGD that a batch needs at each learning rate, from runs that end when they reach a goal.

The rate is tuned anew for every batch, as in Shallue et al. (Measuring the Effects of Data Parallelism on Neural
Network Training, 2019): a rule that is not compared with the best rate may look right because its base was too small.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TypeAlias

import numpy as np

from dpbook.book.ch04.batches import NoiseScale
from dpbook.core import DATA, check_int, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Card, Key, Scale, finish, in_style, new_figure, text
from dpbook.figures.card import axes as card_axes
from dpbook.replicas import MLP, Array, cross_entropy, permutation

EVALUATION_SHARE = 0.02  # share of further steps between two evaluations; up to the 50th step each is evaluated
CHUNK = 60  # examples whose losses are summed between two comparisons with the goal
Data: TypeAlias = tuple[Array, Array]
Networks: TypeAlias = dict[str, Array]


@dataclass(frozen=True)
class Race:
    """The runs of one batch size, in examples."""

    batch: int
    rates: Array  # (rates,), the learning rates
    steps: Array  # (rates, seeds), steps of a run until the goal; infinite if it did not reach it
    accuracies: Array  # (rates, seeds), on the test images then, from 0 to 1; NaN if it did not reach the goal

    @property
    def medians(self) -> Array:
        """Median steps of each rate over the seeds, (rates,); infinite if half of the runs did not reach the goal.

        A mean would be infinite after a single failure, so that the best rate would fall with the number of seeds.
        """
        return np.median(self.steps, axis=1)

    @property
    def best(self) -> int:
        """Index of the rate that needs the fewest steps."""
        return int(self.medians.argmin())

    @property
    def inside(self) -> bool:
        """Whether a worse rate was tried on either side of the best one; otherwise a better rate may exist."""
        return 0 < self.best < len(self.rates) - 1

    def __repr__(self) -> str:
        best = f"{self.medians[self.best]:.0f} steps at rate {self.rates[self.best]:.2f}"
        return f"Race(batch {self.batch}: {best}, test accuracy {np.nanmean(self.accuracies[self.best]):.0%})"


def race(
    training: Data, validation: Data, test: Data, batch: int, rates: Sequence[float], goal: float, most: int, seeds: int
) -> Race:
    """Train the digits' network with each rate and seed until the mean loss of ``validation`` is below ``goal``.

    All runs are one stack of networks: a step of all of them costs little more than a step of one.

    Args:
        training, validation, test: (images, labels); the test images are classified at the end and decide nothing.
        rates: learning rates, rising.
        most: largest number of steps; a run without the goal by then is abandoned.
        seeds: runs of each rate; a seed sets the parameters and the order of the examples.
    """
    shape = len(rates), seeds
    lr, seed = np.repeat(np.array(rates, float), seeds), np.tile(np.arange(seeds), len(rates))
    steps, accuracies = np.full(lr.shape, np.inf), np.full(lr.shape, np.nan)
    stack, running, next_evaluation = _Stack(64, 32, 10, _of_stacks), np.arange(len(lr)), 1.0
    networks = stack.start(seed)
    every = islice(_batches(len(training[0]), batch, seeds), most)
    for step, read in enumerate(every, start=1):
        rows = read[seed[running]]
        networks = stack.step(networks, lr[running], training[0][rows], training[1][rows])
        if step < next_evaluation:
            continue
        next_evaluation = step * (1 + EVALUATION_SHARE)
        reached = stack.below(goal, networks, *validation)
        steps[running[reached]], accuracies[running[reached]] = step, stack.accuracies(_some(networks, reached), *test)
        networks, running = _some(networks, ~reached), running[~reached]
        if not len(running):
            break
    return Race(batch, np.array(rates, float), steps.reshape(shape), accuracies.reshape(shape))


def _batches(examples: int, batch: int, seeds: int) -> Iterator[Array]:
    """Yield, without end, the examples of each seed in a step, (seeds, batch); incomplete batches are dropped."""
    full = examples - examples % check_int("batch", batch, 1, examples)
    for epoch in count():
        orders = np.stack([permutation(examples, seed, epoch) for seed in range(seeds)])
        yield from np.split(orders[:, :full], full // batch, axis=1)


def _some(networks: Networks, mask: Array) -> Networks:
    return {name: tensors[mask] for name, tensors in networks.items()}


def _of_stacks(output: Array, y: Array) -> tuple[Array, Array]:
    """Return `cross_entropy` of outputs (…, n, classes) and labels (…, n)."""
    losses, slopes = cross_entropy(output.reshape(-1, output.shape[-1]), y.ravel())
    return losses.reshape(y.shape), slopes.reshape(output.shape)


class _Stack(MLP):
    """Many networks at once; ``networks`` holds each tensor as (networks, rows, columns), a bias as one row."""

    def start(self, seeds: Array) -> Networks:
        drawn = [self.views(self.init(np.random.default_rng(int(seed)))) for seed in seeds]
        return {name: np.stack([np.atleast_2d(tensors[name]) for tensors in drawn]) for name in self.shapes}

    def step(self, networks: Networks, lr: Array, x: Array, y: Array) -> Networks:
        """Make one step of SGD for each network, with its rate (networks,) and examples (networks, n, inputs)."""
        # The networks are changed in place: new arrays would take a part of the time of a race.
        sums = self.sum_gradients(networks, x, y)
        rate = lr[:, None, None] / x.shape[1]
        for name, tensors in networks.items():
            update = sums[name].reshape(tensors.shape)
            update *= rate
            tensors -= update
        return networks

    def below(self, goal: float, networks: Networks, x: Array, y: Array) -> Array:
        """Return which networks' mean loss over the same examples is below ``goal``, (networks,)."""
        # No loss is negative: once the sum over some examples is too large, the other examples are skipped. So those
        # come first that have the largest losses in one of the networks.
        sums, most = np.zeros(len(networks["W1"])), goal * len(x)
        near = np.arange(len(sums))
        one = {name: tensors[len(sums) // 2] for name, tensors in networks.items()}
        hardest_first = np.argsort(-self._loss(self._outputs(one, x), y)[0], kind="stable")
        for part in np.split(hardest_first, range(CHUNK, len(x), CHUNK)):
            output = self._outputs(_some(networks, near), x[part])
            sums[near] += self._loss(output, np.broadcast_to(y[part], output.shape[:-1]))[0].sum(axis=-1)
            near = near[sums[near] < most]
            if not len(near):
                break
        return sums < most

    def accuracies(self, networks: Networks, x: Array, y: Array) -> Array:
        shares: Array = (self._outputs(networks, x).argmax(axis=-1) == y).mean(axis=-1)
        return shares


@in_style
def draw_races(races: Sequence[Race], title: str) -> Picture:
    """Draw the median steps of each rate (columns) for each batch (rows); darker cells are nearer to the row's best.

    A dash stands for a rate at which half of the runs did not reach the goal. Numbers beyond a row's best are of runs
    that nearly diverge, and vary between processors. All races have the same rates, and one at which most runs reached
    the goal.
    """
    medians = np.array([race.medians for race in races])
    from matplotlib.patches import Rectangle

    figure, axes = new_figure(title)
    near = medians.min(axis=1, keepdims=True) / medians  # 1 at the best, 0 for runs that were given up
    axes.set(xlim=(-0.5, medians.shape[1] - 0.5), ylim=(len(races) - 0.5, -0.5))
    for (row, column), steps in np.ndenumerate(medians):
        words, weight = f"{steps:.0f}" if np.isfinite(steps) else "–", "bold" if near[row, column] == 1 else "normal"
        colour = palette.tint(palette.COMPLETE, round(0.6 * float(near[row, column]) ** 2, 2))
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, linewidth=0))
        axes.text(column, row, words, ha="center", va="center", weight=weight, color=palette.INK)
    axes.set_xticks(range(medians.shape[1]), labels=[f"{rate:.2g}" for rate in races[0].rates])
    axes.set_yticks(range(len(races)), labels=[f"{race.batch}" for race in races])
    axes.set(xlabel="learning rate", ylabel="batch (examples)")
    axes.grid(visible=False)
    best = "; ".join(
        f"{race.batch}: {race.rates[race.best]:.2g}, {race.medians[race.best]:.0f} steps" for race in races
    )
    return finish(figure, f"The best rate of each batch and the steps that it needs: {best}.", varies=True)


RECORDED = DATA / "measurements" / "critical_batch.json"


@dataclass(frozen=True)
class Branches:
    """All branches of one segment."""

    losses: tuple[float, float]  # held-out losses, in nats per byte, at which a branch begins and ends
    races: list[Race]  # one per batch; the accuracies are NaN
    noise: NoiseScale  # of the gradient on held-out text where the branches begin, averaged over the seeds


def recorded() -> list[Branches]:
    """Return the branches that ship with the package, early segment first."""
    data, segments = json.loads(RECORDED.read_text(encoding="utf-8")), []
    for segment in data["segments"]:
        steps = np.array(segment["steps"], float)  # null in the file, and NaN here: given up, or not tried
        steps[np.isnan(steps)] = np.inf
        rates, unknown = np.array(data["rates"]), np.full(steps.shape[1:], np.nan)
        races = [Race(batch, rates, own, unknown) for batch, own in zip(data["batches"], steps, strict=True)]
        noise = NoiseScale(*np.mean(segment["signal_and_noise"], axis=0).tolist())
        segments.append(Branches(tuple(segment["losses"]), races, noise))
    return segments


WIDTH, HEIGHT, TOP, BOTTOM = 640, 380, 110, 322
BATCH, PRICE = Scale(4, 256, 124, 560, log=True), Scale(1_000, 20_000, BOTTOM, TOP, log=True)
"""Axes of `play_prices`, in sequences."""
SEGMENTS = (Key("", palette.COMPUTATION, "line", 2.5), Key("", palette.COMMUNICATION, "line", 2.5))


def play_prices(named: Mapping[str, Branches]) -> Viewer:
    """Step through the batches of two segments, by name: what each costs in sequences at its best rate, and its steps.

    The first picture has the whole first segment, the last one compares the largest batch with the smallest one.
    """
    keys = {name: key._replace(label=name) for name, key in zip(named, SEGMENTS, strict=True)}
    reached = [
        (name, race.batch, float(race.medians[race.best]))
        for name, branches in named.items()
        for race in branches.races
    ]
    opening = len(next(iter(named.values())).races)

    def draw(step: int) -> Picture:
        after = opening + step
        name, batch, steps = reached[min(after, len(reached)) - 1]
        title = f"{name}, batch {batch}: {steps:,.4g} steps, {steps * batch:,.0f} sequences"
        if step == 0:
            title = f"What a larger batch costs, {' and '.join(named)}"
        if after > len(reached):
            prices_of = {of: [steps * batch for one, batch, steps in reached if one == of] for of in named}
            grown = (f"{paid[-1] / paid[0]:.1f} times the price {of}" for of, paid in prices_of.items())
            title = f"From batch {reached[0][1]} to {reached[-1][1]}: {', '.join(grown)}"
        card = Card(WIDTH, title, "sequences until the branch ends, and the steps above each point")
        card.legend(card_axes.mark(key) for key in keys.values())
        prices = {price: f"{price:,.0f}" for price in (1e3, 2e3, 5e3, 1e4, 2e4)}
        card.add(*card_axes.axis_up(PRICE, BATCH.start - 24, prices, WIDTH - MARGIN))
        batches = {float(batch): f"{batch}" for _, batch, _ in reached}
        card.add(*card_axes.axis_across(BATCH, BOTTOM, batches, "batch (sequences, logarithmic)", TOP))
        for name, key in keys.items():
            shown = [(BATCH(batch), PRICE(steps * batch), steps) for of, batch, steps in reached[:after] if of == name]
            card.add(card_axes.curve([(x, y) for x, y, _ in shown], key) if shown else "")
            for x, y, steps in shown:
                card.add(
                    card_axes.ring(x, y, key.colour),
                    text(x, y - 12, f"{steps:,.4g}", 12, anchor="middle", fill=key.colour),
                )
        costs = "; ".join(f"{of}, {batch}: {steps * batch:,.0f}" for of, batch, steps in reached[:after])
        return card.picture(HEIGHT, f"Sequences for each batch: {costs}.")

    return Viewer(draw, len(reached) - opening + 1, "batch")
