"""What the tasks of exercise 14 check: bytes as they are counted, hooks by values and order, cuts, and a norm."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch14 import cuts, unit_runs
from dpbook.book.ch14.unit_runs import Event
from dpbook.collectives import Comm, run
from dpbook.core import InvalidArgument, plural
from dpbook.grading import (
    Answer,
    Wrong,
    call,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
)
from dpbook.overlap import Sharding, Sizes, Unit, Wires, simulate_sharded
from dpbook.ranks import start

Array = NDArray[Any]
WORLDS = (1, 2, 3, 5)
PROCESSES = 3
PROGRAM_SECONDS = 60.0
"""For three processes to train, on a machine that has other things to do."""

# 14.1: bytes of the stages


def free(nbytes: float) -> float:
    """What a collective costs where only its bytes are counted."""
    return 0.0


def counted(answer: Answer, rng: np.random.Generator) -> None:
    """The judge adds up what every collective of a simulated step sends."""
    for ranks in (1, 2, 3, 8, 64):
        parameters = [ranks * int(n) for n in rng.integers(1, 10**6, 4)]
        units = [Unit(str(k), 0.0, 0.0, count) for k, count in enumerate(parameters)]
        for stage, micro_batches in ((s, a) for s in range(4) for a in (1, int(rng.integers(2, 9)))):
            weight, gradient = (int(n) for n in rng.choice([2, 4], 2))
            for keep in (False, True) if stage == 3 else (False,):
                how = Sharding(stage, shards=ranks, reshard=not keep)
                step = simulate_sharded(
                    units, how, Wires(free, free, free), sizes=Sizes(weight, gradient, 8), accumulation=micro_batches
                )
                given = stage, sum(parameters), ranks, micro_batches, weight, gradient, keep
                got = expect_number(call(answer, *given), f"stage {stage}")
                expect_close(sum(step.sent.values()), got, 0.5, "bytes that a rank sends")


# 14.2: the hooks of a unit

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
    ranks: Ranks = call(answer, tried.trial, through=unit_runs.trained_in_turns, where=plural(tried.world, "rank"))
    return ranks


def whole(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        tried = Run.draw(rng, world, steps=3)
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
    for world in WORLDS:
        tried = Run.draw(rng, world)
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
    for world in WORLDS:
        tried = Run.draw(rng, world)
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
    runs = [Run.draw(rng, PROCESSES) for _ in range(2)]
    for tried in runs:
        _judge_all(tried, _try(answer, tried))
    given, where = [tried.trial for tried in runs], f"{PROCESSES} real processes"
    found = call(answer, given, through=_in_processes, seconds=math.inf, where=where)
    for tried, ranks in zip(runs, found, strict=True):
        _judge_all(tried, ranks)
    return f"{PROCESSES} processes, which share no memory"


def _judge_all(tried: Run, ranks: Ranks) -> None:
    _judge_weights(tried, ranks)
    _judge_gathers(tried, ranks)
    _judge_gradients(tried, ranks)


# 14.3: units under a memory limit

LAYERS, MODELS = 8, 2
EACH, NEAR, POSSIBLE = 0.9, 1.05, 0.8
"""Shares: of the exposed time of a unit per layer that a cut may have, and of that of the best cut; and how far below a
unit per layer the best cut of a model that is drawn has to be."""


def _all_cuts(count: int) -> Iterator[list[list[int]]]:
    for number in range(count):
        for ends in combinations(range(1, count), number):
            bounds = [0, *ends, count]
            yield [list(range(a, b)) for a, b in pairwise(bounds)]


def _milliseconds(layers: Sequence[cuts.Part], groups: cuts.Groups) -> tuple[float, int]:
    """Exposed, without the last bits; and bytes at the peak."""
    step = cuts.cut_step(layers, groups)
    return round(1e3 * step.timeline.exposed(), 6), step.memory.peak


@lru_cache(maxsize=64)
def _limited(seed: int) -> tuple[int, float, float] | None:
    """Limit in bytes, exposed milliseconds of a unit per layer, and of the best cut within the limit.

    None where the best of all cuts needs no more memory than others, or a unit per layer is hardly worse, or one needs
    no more than as few units as fit, or equal numbers of layers: then a model says little.
    """
    layers, every = cuts.sample_layers(LAYERS, seed), list(_all_cuts(LAYERS))
    tried = [_milliseconds(layers, groups) for groups in every]
    each, (_, most), least = tried[-1][0], min(tried), min(peak for _, peak in tried)
    limit = (most + least) // 2
    fitting = [(exposed, groups) for (exposed, peak), groups in zip(tried, every, strict=True) if peak <= limit]
    best, fewest = min(fitting)[0], min(len(groups) for _, groups in fitting)
    simple = min(exposed for exposed, groups in fitting if len(groups) == fewest or _regular(groups))
    telling = most > 1.03 * least and best <= POSSIBLE * each and simple > NEAR * best
    return (limit, each, best) if telling else None


def _regular(groups: cuts.Groups) -> bool:
    """Whether all units but the last have the same number of layers, and the last no more."""
    sizes = [len(group) for group in groups]
    return len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]


def _models(rng: np.random.Generator) -> Iterator[tuple[int, int, float, float]]:
    """Seeds of models, each with what `_limited` says."""
    left = MODELS
    while left:
        seed = int(rng.integers(10**6))
        if found := _limited(seed):
            left -= 1
            yield seed, *found


def _exposed(answer: Answer, seed: int, limit: int) -> float:
    """Milliseconds exposed by the answer's cut, which must be one, and fit."""
    layers, where = cuts.sample_layers(LAYERS, seed), f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
    by_hand = f"cut(ch14.sample_layers({LAYERS}, seed={seed}), {limit})"
    got = call(answer, layers, limit, seconds=10.0, where=where, by_hand=by_hand)
    expected = "lists of neighbouring layers, in order, each layer once"
    expect(got is not None, expected, "None", where)
    try:
        exposed, peak = _milliseconds(layers, got)
    except (InvalidArgument, TypeError, IndexError) as error:
        raise Wrong(expected, str(error), where, cause="no cut") from None
    expect(peak <= limit, f"a peak of at most {limit:,} bytes", f"{peak:,}", where)
    return exposed


def fits(answer: Answer, rng: np.random.Generator) -> None:
    for seed, limit, each, _ in _models(rng):
        where = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
        expect_at_most(round(EACH * each, 6), _exposed(answer, seed, limit), "ms exposed", where)


def near_the_best(answer: Answer, rng: np.random.Generator) -> str:
    pars, found = 0.0, 0.0
    for seed, limit, _, best in _models(rng):
        where, exposed = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}", _exposed(answer, seed, limit)
        expect_at_most(round(NEAR * best, 6), exposed, "ms exposed", where)
        pars, found = pars + NEAR * best, found + exposed
    return expect_at_most(round(pars, 3), round(found, 3), f"ms exposed in {MODELS} models")


# 14.4: the norm of sharded gradients


def _clip_on(answer: Callable[..., Any], pieces: list[list[Array]], copies: list[int], limit: float) -> list[Any]:
    """For each rank the norm that it returned, its pieces then, and how often it called ``all_reduce``.

    The list that the answer gets is its own: an array that it puts there changes nothing of the rank's.
    """
    made: list[Any] = [None] * len(pieces)

    def program(comm: Comm, x: Array) -> None:
        calls = []

        def all_reduce(number: float) -> float:
            calls.append(number)
            total, theirs = np.array([float(number)]), np.empty(1)
            for shift in range(1, comm.world_size):
                to, source = (comm.rank + shift) % comm.world_size, (comm.rank - shift) % comm.world_size
                comm.sendrecv(np.array([float(number)]), to, theirs, source)
                total += theirs
            return float(total[0])

        own = pieces[comm.rank]
        made[comm.rank] = answer(list(own), copies, limit, all_reduce), own, len(calls)

    run(program, [np.empty(0)] * len(pieces))
    return made


def _gradients(rng: np.random.Generator, world: int) -> tuple[list[list[Array]], list[int], list[Array]]:
    """For each rank its pieces; on how many ranks each lies; and the whole gradients. Some pieces are empty."""
    dividing = [n for n in range(1, world + 1) if world % n == 0]
    copies = [1, world, *(int(n) for n in rng.choice(dividing, 3))]
    sizes = [int(n) for n in rng.integers(1, 2 * world + 4, len(copies))]
    kinds = rng.permutation(["float16", "float32", "float32", "float16", "float32"])
    wholes = [(rng.normal(size=size) * 3).astype(kind) for size, kind in zip(sizes, kinds, strict=True)]
    split = [np.array_split(each, world // n) for each, n in zip(wholes, copies, strict=True)]
    return [[parts[rank % len(parts)].copy() for parts in split] for rank in range(world)], copies, wholes


def clips(answer: Answer, rng: np.random.Generator, *, above: bool) -> None:
    """With limits above the norm, or below it; values of half precision have squares that it cannot hold."""
    for world in (*WORLDS, 6, 8):
        pieces, copies, wholes = _gradients(rng, world)
        for large in (1, 200):
            given = [[(large * each).astype(each.dtype) for each in rank] for rank in pieces]
            norm = math.sqrt(
                sum(float(np.square((large * each).astype(each.dtype), dtype=float).sum()) for each in wholes)
            )
            limit = norm * (1.5 if above else float(rng.uniform(0.2, 0.8)))
            where = f"{plural(world, 'rank')}, copies {copies}, values around {3 * large}"
            ranks = call(answer, given, copies, limit, through=_clip_on, where=where)
            _judge_clipped(ranks, given, norm, min(1.0, limit / norm), where)


def _judge_clipped(ranks: Any, given: list[list[Array]], norm: float, factor: float, where: str) -> None:
    for rank, (got, pieces, calls) in enumerate(ranks):
        place = f"{where}, rank {rank}"
        expect(calls <= 1, "at most one all_reduce", str(calls), place)
        expect_close(norm, expect_number(got, f"{place}, the norm"), 1e-4 * norm, f"{place}, the norm")
        for k, (before, after) in enumerate(zip(given[rank], pieces, strict=True)):
            exact = factor * before.astype(float)
            bound = 0.0 if factor == 1 else 1e-3 * abs(exact) + 1e-6
            expect_equal(str(before.dtype), str(after.dtype), f"{place}, dtype of piece {k}")
            expect_close(exact, after.astype(float), bound, f"{place}, piece {k}")


clips_below, clips_above = partial(clips, above=False), partial(clips, above=True)
