"""What task 14.2 checks: the hooks of a unit, by the values that they leave and by the order of what they do."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch14 import unit_runs
from dpbook.book.ch14.unit_runs import Event
from dpbook.classroom import Answer, call, expect, expect_close, expect_equal, expect_items, of_all_checks
from dpbook.core import plural
from dpbook.ranks import start

Array = NDArray[Any]
WORLDS = (1, 2, 3, 5)
PROCESSES = 3
PROGRAM_SECONDS = 60.0
"""For three processes to train, on a machine that has other things to do."""


SHAPES = ((3, 4), (7,), (2, 5), (1,), (4, 2), (3, 3))
RATE = 2.0**-10


@dataclass(frozen=True)
class Run:
    """Weights of units, and gradients of each step and rank: see `unit_runs.Trial`."""

    weights: list[Array]
    gradients: list[Array]
    world: int

    @classmethod
    def draw(cls, rng: np.random.Generator, world: int, steps: int = 2) -> "Run":
        """Gradients are whole numbers whose sums halves cannot hold, and fp32 can, exactly."""
        shapes = [SHAPES[k] for k in rng.permutation(len(SHAPES))[: int(rng.integers(4, 7))]]
        weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        gradients = []
        for shape in shapes:
            small = 2 * rng.integers(0, 50, (steps, world, *shape)) + 1
            small[:, 0] += 2 * (1024 - small[:, 0] // 2) - 1  # rank 0 has 2048
            gradients.append(small.astype(np.float16))
        return cls(weights, gradients, world)

    @property
    def trial(self) -> dict[str, Any]:
        return {"weights": self.weights, "gradients": self.gradients, "rate": RATE}

    @property
    def units(self) -> int:
        return len(self.weights)

    @property
    def order(self) -> list[int]:
        """Of the units as they compute: forward, then backward."""
        return [*range(self.units), *reversed(range(self.units))]

    def piece(self, unit: int) -> int:
        """Elements of a rank's piece."""
        return -(-self.weights[unit].size // self.world)

    def mean(self, unit: int, step: int) -> Array:
        mean: Array = self.gradients[unit][step].astype(np.float64).mean(0)
        return mean

    def where(self, rank: int, step: int, place: int) -> str:
        what = "forward" if place < self.units else "backward"
        ranks = plural(self.world, "rank")
        return f"{ranks}, step {step + 1} of rank {rank}, {what} of unit {self.order[place]} (of {self.units})"


Ranks = Sequence[dict[str, Any]]


def _try(answer: Answer, tried: Run) -> Ranks:
    """What each rank found, with ranks that take turns in this process."""
    where = plural(tried.world, "rank")
    ranks: Ranks = call(answer, tried.trial, through=unit_runs.trained_in_turns, where=where, once=True)
    return ranks


def _runs(rng: np.random.Generator) -> Iterator[Run]:
    """Those at which all checks look."""
    drawing = of_all_checks(rng)
    return (Run.draw(drawing, world, steps=3) for world in WORLDS)


def whole(answer: Answer, rng: np.random.Generator) -> None:
    for tried in _runs(rng):
        _judge_weights(tried, _try(answer, tried))


def _judge_weights(tried: Run, ranks: Ranks) -> None:
    """Every unit computes with whole weights, the newest, in half precision."""
    for unit in range(tried.units):
        pieces = [rank["shards"][0][unit] for rank in ranks]
        where = f"{plural(tried.world, 'rank')}, shards of unit {unit}, which has {tried.weights[unit].shape}"
        expect_equal([(tried.piece(unit),)] * tried.world, [np.shape(piece) for piece in pieces], f"{where}, shapes")
        expect_equal(tried.weights[unit].ravel(), _joined(tried, unit, pieces), where)
    for rank, found in enumerate(ranks):
        for step, used in enumerate(found["used"]):
            for place, unit in enumerate(tried.order):
                where, shape = tried.where(rank, step, place), tried.weights[unit].shape
                lost = bool(np.isnan(used[place]).any())
                expect(not lost, "weights that are there", "NaN: a row that has been given back", where)
                row = _joined(tried, unit, [each["shards"][step][unit] for each in ranks])
                expect_equal(row.reshape(shape).astype(np.float16), used[place], where)


def _joined(tried: Run, unit: int, pieces: Sequence[Array]) -> Array:
    """The pieces of all ranks in a row, without what fills up the last."""
    return np.concatenate(pieces)[: tried.weights[unit].size]


def in_time(answer: Answer, rng: np.random.Generator) -> str:
    units = 0
    for tried in _runs(rng):
        _judge_gathers(tried, _try(answer, tried))
        units = tried.units
    return f"{plural(2 * units, 'gather')}, at most two units whole at a time"


def _judge_gathers(tried: Run, ranks: Ranks) -> None:
    """Every gather begins while the unit before computes, and its row is given back before the one after does."""
    for rank, found in enumerate(ranks):
        for step, log in enumerate(found["logs"]):
            where = f"{plural(tried.world, 'rank')}, step {step + 1} of rank {rank}"
            gathers = [(elements, dtype) for what, _, elements, dtype in log if what == "gather"]
            expected = [(tried.piece(unit), "float16") for unit in tried.order]
            _judge_sequence(expected, gathers, tried.order, f"{where}, gathered")
            for place, at in enumerate(_computes(log)):
                _judge_moment(tried, log[:at], place, tried.where(rank, step, place))
            _judge_rows(tried, log[: log.index(("finish", 0, 0, ""))], set(), f"{where}, at finish()")


def _judge_moment(tried: Run, before: Sequence[Event], place: int, where: str) -> None:
    """Before a unit computes: what has begun, been waited for and been given back."""
    last = tried.units if place < tried.units else 2 * tried.units
    due, begun = min(place + 2, last), sum(event[0] == "gather" for event in before)
    expect(begun >= due, f"{plural(due, 'gather')} begun before it computes", f"{begun}", where)
    expect(begun <= due, f"no more than {plural(due, 'gather')} begun before it computes", f"{begun}", where)
    waited = sum(event[0] == "gathered" for event in before)
    expect(waited <= place + 1, "no wait for the weights of a unit that does not compute yet", "one", where)
    elsewhere = any(event[0] == "elsewhere" for event in before[-1:])
    expect(not elsewhere, "weights in the gathered row itself", "in a copy, or in a row given back", where)
    _judge_rows(tried, before, {place, place + 1}, where)


def _judge_rows(tried: Run, before: Sequence[Event], needed: set[int], where: str) -> None:
    """Of the gathers that have begun, those not needed any more have been given back."""
    begun = {number for what, number, *_ in before if what == "gather"}
    freed = {number for what, number, *_ in before if what == "freed"}
    left = sorted({tried.order[number] for number in begun - freed - needed})
    expect(not left, "no row that has done its work", f"that of unit {', '.join(map(str, left))} still whole", where)


def _judge_sequence(
    expected: Sequence[tuple[int, str]], got: Sequence[tuple[int, str]], units: Sequence[int], where: str
) -> None:
    """Two sequences of elements and dtype, one of each unit, are equal; if not, the first difference is told."""
    for k, (unit, asked, found) in enumerate(zip(units, expected, got, strict=False)):
        told, came = (f"{elements:,} × {dtype}" for elements, dtype in (asked, found))
        expect(asked == found, told, came, f"{where} as number {k}, for unit {unit}")
    expect(len(expected) == len(got), f"{len(expected)} in a step", str(len(got)), where)


def _computes(log: Sequence[Event]) -> list[int]:
    return [at for at, event in enumerate(log) if event[0] in ("forward", "backward")]


def reduced(answer: Answer, rng: np.random.Generator) -> None:
    for tried in _runs(rng):
        _judge_gradients(tried, _try(answer, tried))


def _judge_gradients(tried: Run, ranks: Ranks) -> None:
    for rank, found in enumerate(ranks):
        for step, log in enumerate(found["logs"]):
            _judge_reductions(tried, log, f"{plural(tried.world, 'rank')}, step {step + 1} of rank {rank}")
    for step in range(len(ranks[0]["found"])):
        for rank, found in enumerate(ranks):
            expect_items(found["found"][step], tried.units, "a piece of the gradient for each unit", f"rank {rank}")
        for unit in range(tried.units):
            where = f"{plural(tried.world, 'rank')}, step {step + 1}, gradient of unit {unit}, all pieces"
            pieces = [found["found"][step][unit] for found in ranks]
            expect_close(tried.mean(unit, step).ravel(), _joined(tried, unit, pieces).astype(float), 1e-3, where)


def _judge_reductions(tried: Run, log: Sequence[Event], where: str) -> None:
    """One reduction for each unit, in fp32, begun after its backward, and hidden behind the next unit's."""
    got = [(elements, dtype) for what, _, elements, dtype in log if what == "reduce"]
    units = tried.order[tried.units :]
    expected = [(tried.world * tried.piece(unit), "float32") for unit in units]
    _judge_sequence(expected, got, units, f"{where}, reduced")
    begun = [at for at, event in enumerate(log) if event[0] == "reduce"]
    over = {event[1]: at for at, event in enumerate(log) if event[0] == "reduced"}
    computes = [*_computes(log)[tried.units :], log.index(("finish", 0, 0, ""))]
    for k, unit in enumerate(units):
        place = f"{where}, reduction of unit {unit}"
        expect(computes[k] < begun[k] < computes[k + 1], "begun in after_backward of its unit", "elsewhere", place)
        expect(k in over, "waited for", "not waited for", place)
        expect(over[k] > computes[k + 1], "no wait before the next unit computes, or finish()", "one before", place)
        under_way = sum(over.get(j, len(log)) > begun[k] for j in range(k + 1))
        expect(under_way <= 2, "at most two under way", f"{under_way} when it begins", place)


def _in_processes(answer: Callable[..., Any], given: list[dict[str, Any]]) -> Any:
    """For each trial what each rank returned."""
    found = start(unit_runs.train_on_this_rank, [(answer, given)] * PROCESSES, timeout=PROGRAM_SECONDS, echo=False)
    return [list(each) for each in zip(*found, strict=True)]


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Everything once more: in one process first, since processes say less about a mistake."""
    runs = [Run.draw(rng, PROCESSES)] + [tried for tried in _runs(rng) if tried.world == PROCESSES]
    for tried in runs:
        _judge_all(tried, _try(answer, tried))
    if answer.ranks_are_processes:
        return f"{PROCESSES} processes, which share no memory"
    given, where = [tried.trial for tried in runs], f"{PROCESSES} real processes"
    found = call(answer, given, through=_in_processes, seconds=math.inf, where=where)
    for tried, ranks in zip(runs, found, strict=True):
        _judge_all(tried, ranks)
    return f"{PROCESSES} processes, which share no memory"


def _judge_all(tried: Run, ranks: Ranks) -> None:
    _judge_weights(tried, ranks)
    _judge_gathers(tried, ranks)
    _judge_gradients(tried, ranks)
