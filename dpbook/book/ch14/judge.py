"""Checks of exercise 14: bytes of the stages, the hooks of a unit, cuts under a memory limit, a norm, a new cut."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from dpbook.book.ch14 import units
from dpbook.book.ch14.sharded_state import clips, reshards
from dpbook.book.ch14.units import Array, Event, HookTrial
from dpbook.classroom import (
    Answer,
    ParResult,
    Wrong,
    call,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    of_all_checks,
)
from dpbook.core import InvalidArgument, plural
from dpbook.overlap import Sharding, Sizes, Unit, Wires, simulate_sharded
from dpbook.ranks import start

WORLDS = (1, 2, 3, 5)
PROCESSES = 3
PROGRAM_SECONDS = 60.0
"""Time limit for three processes to train, on a busy machine."""
Ranks = Sequence[dict[str, Any]]


def _run(answer: Answer, trial: HookTrial) -> Ranks:
    """Return each rank's record, of ranks that take turns in this process."""
    where = plural(trial.world, "rank")
    ranks: Ranks = call(answer, trial.arguments, through=units.trained_in_turns, where=where, once=True)
    return ranks


def _trials(rng: np.random.Generator) -> Iterator[HookTrial]:
    """Yield the trials that all checks share."""
    drawing = of_all_checks(rng)
    return (HookTrial.draw(drawing, world) for world in WORLDS)


def _judge_weights(trial: HookTrial, ranks: Ranks) -> None:
    """Check that every unit computes with whole and current weights in half precision."""
    for unit in range(trial.unit_count):
        pieces = [rank["shards"][0][unit] for rank in ranks]
        where = f"{plural(trial.world, 'rank')}, shards of unit {unit}, which has {trial.weights[unit].shape}"
        expect_equal([(trial.piece(unit),)] * trial.world, [np.shape(piece) for piece in pieces], f"{where}, shapes")
        expect_equal(trial.weights[unit].ravel(), _joined(trial, unit, pieces), where)
    for rank, record in enumerate(ranks):
        for step, used in enumerate(record["used"]):
            for place, unit in enumerate(trial.order):
                where, shape = trial.where(rank, step, place), trial.weights[unit].shape
                lost = bool(np.isnan(used[place]).any())
                expect(not lost, "weights that are there", "NaN: a row that has been given back", where)
                row = _joined(trial, unit, [of_rank["shards"][step][unit] for of_rank in ranks])
                expect_equal(row.reshape(shape).astype(np.float16), used[place], where)


def _joined(trial: HookTrial, unit: int, pieces: Sequence[Array]) -> Array:
    """Return the pieces of all ranks in a row, without the padding of the last."""
    return np.concatenate(pieces)[: trial.weights[unit].size]


def in_time(answer: Answer, rng: np.random.Generator) -> str:
    for trial in _trials(rng):
        _judge_gathers(trial, _run(answer, trial))
    return f"{plural(len(trial.order), 'gather')}, at most two units whole at a time"


def _judge_gathers(trial: HookTrial, ranks: Ranks) -> None:
    """Check that a gather begins while the unit before computes, and that its row is freed before the next unit."""
    for rank, record in enumerate(ranks):
        for step, log in enumerate(record["logs"]):
            where = f"{plural(trial.world, 'rank')}, step {step + 1} of rank {rank}"
            gathers = [(elements, dtype) for event, _, elements, dtype in log if event == "gather"]
            expected = [(trial.piece(unit), "float16") for unit in trial.order]
            _judge_sequence(expected, gathers, trial.order, f"{where}, gathered")
            for place, at in enumerate(_computes(log)):
                _judge_moment(trial, log[:at], place, trial.where(rank, step, place))
            _judge_rows(trial, log[: log.index(("finish", 0, 0, ""))], set(), f"{where}, at finish()")


def _judge_moment(trial: HookTrial, before: Sequence[Event], place: int, where: str) -> None:
    """Check the gathers that have begun, have ended and were freed before a unit computes."""
    last = trial.unit_count if place < trial.unit_count else 2 * trial.unit_count
    due, begun = min(place + 2, last), sum(event[0] == "gather" for event in before)
    expect(begun >= due, f"{plural(due, 'gather')} begun before it computes", f"{begun}", where)
    expect(begun <= due, f"no more than {plural(due, 'gather')} begun before it computes", f"{begun}", where)
    waited = sum(event[0] == "gathered" for event in before)
    expect(waited <= place + 1, "no wait for the weights of a unit that does not compute yet", "one", where)
    elsewhere = any(event[0] == "elsewhere" for event in before[-1:])
    expect(not elsewhere, "weights in the gathered row itself", "in a copy, or in a row given back", where)
    _judge_rows(trial, before, {place, place + 1}, where)


def _judge_rows(trial: HookTrial, before: Sequence[Event], needed: set[int], where: str) -> None:
    """Check that every gathered row that is no longer needed has been freed."""
    begun = {number for event, number, *_ in before if event == "gather"}
    freed = {number for event, number, *_ in before if event == "freed"}
    kept = sorted({trial.order[number] for number in begun - freed - needed})
    expect(not kept, "no row that has done its work", f"that of unit {', '.join(map(str, kept))} still whole", where)


def _judge_sequence(
    expected: Sequence[tuple[int, str]], got: Sequence[tuple[int, str]], order: Sequence[int], where: str
) -> None:
    """Check that two sequences of elements and dtype, with one item per unit, are equal."""
    expect(len(expected) == len(got), f"{len(expected)} in a step", str(len(got)), where)
    for k, (unit, right, actual) in enumerate(zip(order, expected, got, strict=True)):
        right_text, actual_text = (f"{elements:,} × {dtype}" for elements, dtype in (right, actual))
        expect(right == actual, right_text, actual_text, f"{where} as number {k}, for unit {unit}")


def _computes(log: Sequence[Event]) -> list[int]:
    return [at for at, event in enumerate(log) if event[0] in ("forward", "backward")]


def _judge_gradients(trial: HookTrial, ranks: Ranks) -> None:
    for rank, record in enumerate(ranks):
        for step, log in enumerate(record["logs"]):
            _judge_reductions(trial, log, f"{plural(trial.world, 'rank')}, step {step + 1} of rank {rank}")
    for step in range(len(ranks[0]["found"])):
        for rank, record in enumerate(ranks):
            pieces = record["found"][step]
            expect_items(pieces, trial.unit_count, "a piece of the gradient for each unit", f"rank {rank}")
        for unit in range(trial.unit_count):
            where = f"{plural(trial.world, 'rank')}, step {step + 1}, gradient of unit {unit}, all pieces"
            mean = trial.gradients[unit][step].astype(float).mean(axis=0)
            pieces = [record["found"][step][unit] for record in ranks]
            expect_close(mean.ravel(), _joined(trial, unit, pieces).astype(float), 1e-3, where)


def _judge_reductions(trial: HookTrial, log: Sequence[Event], where: str) -> None:
    """Check one reduction per unit, in fp32, begun after its backward, and hidden behind the next unit's."""
    got = [(elements, dtype) for event, _, elements, dtype in log if event == "reduce"]
    order = trial.order[trial.unit_count :]
    expected = [(trial.world * trial.piece(unit), "float32") for unit in order]
    _judge_sequence(expected, got, order, f"{where}, reduced")
    begun = [at for at, event in enumerate(log) if event[0] == "reduce"]
    ended = {event[1]: at for at, event in enumerate(log) if event[0] == "reduced"}
    computes = [*_computes(log)[trial.unit_count :], log.index(("finish", 0, 0, ""))]
    for k, unit in enumerate(order):
        place = f"{where}, reduction of unit {unit}"
        expect(computes[k] < begun[k] < computes[k + 1], "begun in after_backward of its unit", "elsewhere", place)
        expect(k in ended, "waited for", "not waited for", place)
        expect(ended[k] > computes[k + 1], "no wait before the next unit computes, or finish()", "one before", place)
        under_way = sum(ended.get(j, len(log)) > begun[k] for j in range(k + 1))
        expect(under_way <= 2, "at most two under way", f"{under_way} when it begins", place)


def _in_processes(answer: Callable[..., Any], given: list[dict[str, Any]]) -> Any:
    """Return, for each trial, the record of each rank, of ranks that are processes."""
    by_rank = start(units.train_on_this_rank, [(answer, given)] * PROCESSES, timeout=PROGRAM_SECONDS, echo=False)
    return [list(records) for records in zip(*by_rank, strict=True)]


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Check everything again with processes; in one process first, since processes say less about a mistake."""
    trials = [HookTrial.draw(rng, PROCESSES)] + [trial for trial in _trials(rng) if trial.world == PROCESSES]
    for trial in trials:
        _judge_all(trial, _run(answer, trial))
    if not answer.ranks_are_processes:
        given, where = [trial.arguments for trial in trials], f"{PROCESSES} real processes"
        by_trial = call(answer, given, through=_in_processes, seconds=math.inf, where=where)
        for trial, ranks in zip(trials, by_trial, strict=True):
            _judge_all(trial, ranks)
    return f"{PROCESSES} processes, which share no memory"


def _judge_all(trial: HookTrial, ranks: Ranks) -> None:
    _judge_weights(trial, ranks)
    _judge_gathers(trial, ranks)
    _judge_gradients(trial, ranks)


def _judge_trials(answer: Answer, rng: np.random.Generator, judge: Callable[[HookTrial, Ranks], None]) -> None:
    for trial in _trials(rng):
        judge(trial, _run(answer, trial))


whole, reduced = partial(_judge_trials, judge=_judge_weights), partial(_judge_trials, judge=_judge_gradients)


# 14.1: bytes of the stages

FREE = Wires(*3 * [lambda nbytes: 0.0])
"""Links of a step of which only the bytes count."""


def counted(answer: Answer, rng: np.random.Generator) -> None:
    """Compare with the bytes that the collectives of a simulated step send."""

    for ranks in (1, 2, 3, 8, 64):
        parameters = [ranks * int(n) for n in rng.integers(1, 10**6, 4)]
        parts = [Unit(str(k), 0.0, 0.0, count) for k, count in enumerate(parameters)]
        for stage, micro_batches in ((s, a) for s in range(4) for a in (1, int(rng.integers(2, 9)))):
            weight, gradient = (int(n) for n in rng.choice([2, 4], 2))
            for keep in (False, True) if stage == 3 else (False,):
                sharding = Sharding(stage, shards=ranks, reshard=not keep)
                sizes = Sizes(weight, gradient, 8)
                step = simulate_sharded(parts, sharding, FREE, sizes=sizes, accumulation=micro_batches)
                given = stage, sum(parameters), ranks, micro_batches, weight, gradient, keep
                got = expect_number(call(answer, *given), f"stage {stage}")
                part = (ranks - 1) / ranks * sum(parameters)
                scatters, gathers = (2, 1, micro_batches, micro_batches)[stage], (0, 1, 1, 2 * micro_batches)[stage]
                mistakes = {
                    "A half of an all-reduce sends (N − 1)/N of the buffer from each rank, not all of it.": (
                        sum(step.sent.values()) * ranks / max(ranks - 1, 1)
                    ),
                    "Stage 2 reduces in every micro-batch: it has no place for gradients of the whole model.": (
                        part * (gradient + gathers * weight)
                    ),
                    "Stage 3 gathers the weights twice in every micro-batch, unless it keeps them.": (
                        part * (scatters * gradient + micro_batches * weight)
                    ),
                    "Stages 0 and 1 reduce once a step, after the last micro-batch.": (
                        part * (micro_batches * (2 if stage == 0 else 1) * gradient + gathers * weight)
                    ),
                }
                expect_close(sum(step.sent.values()), got, 0.5, "bytes that a rank sends", mistakes=mistakes)


# 14.3: units under a memory limit

LAYERS, MODELS = 8, 2
PAR_OF_FINEST, PAR_OF_BEST, BEST_OF_FINEST = 0.9, 1.05, 0.8
"""Ratios of exposed times: a cut's par relative to a unit per layer and to the best cut, and the best cut relative to a
unit per layer, at most, in a random model."""


def _all_cuts(count: int) -> Iterator[list[list[int]]]:
    for number in range(count):
        for ends in combinations(range(1, count), number):
            bounds = [0, *ends, count]
            yield [list(range(a, b)) for a, b in pairwise(bounds)]


def _milliseconds(layers: Sequence[units.LayerCost], groups: units.Groups) -> tuple[float, int]:
    """Return exposed milliseconds, rounded to hide the last bits, and bytes at the peak."""
    step = units.cut_step(layers, groups)
    return round(1e3 * step.timeline.exposed(), 6), step.memory.peak


@lru_cache(maxsize=64)
def _limited(seed: int) -> tuple[int, float, float] | None:
    """Return a limit in bytes, and the exposed milliseconds of a unit per layer and of the best cut within the limit.

    Return None for a model that says little: the best of all cuts needs no more memory than others, a unit per layer is
    hardly worse, or the fewest units that fit, or units of equal numbers of layers, are as good.
    """
    layers, every = units.sample_layers(LAYERS, seed), list(_all_cuts(LAYERS))
    costs = [_milliseconds(layers, groups) for groups in every]
    finest, (_, most), least = costs[-1][0], min(costs), min(peak for _, peak in costs)
    limit = (most + least) // 2
    fitting = [(exposed, groups) for (exposed, peak), groups in zip(costs, every, strict=True) if peak <= limit]
    best, fewest = min(fitting)[0], min(len(groups) for _, groups in fitting)
    simple = min(exposed for exposed, groups in fitting if len(groups) == fewest or _regular(groups))
    suitable = most > 1.03 * least and best <= BEST_OF_FINEST * finest and simple > PAR_OF_BEST * best
    return (limit, finest, best) if suitable else None


def _regular(groups: units.Groups) -> bool:
    """Return True if all units except the last have equally many layers, and the last has at most as many."""
    sizes = [len(group) for group in groups]
    return len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]


def _models(rng: np.random.Generator) -> Iterator[tuple[int, int, float, float]]:
    """Yield seeds of models, the same for all checks, each with the result of `_limited`."""
    drawing, remaining = of_all_checks(rng), MODELS
    while remaining:
        seed = int(drawing.integers(10**6))
        if limited := _limited(seed):
            remaining -= 1
            yield seed, *limited


def _exposed(answer: Answer, seed: int, limit: int) -> float:
    """Return the milliseconds exposed by the answer's cut, after a check that it is a cut and fits."""
    layers, where = units.sample_layers(LAYERS, seed), f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
    by_hand = f"cut(ch14.sample_layers({LAYERS}, seed={seed}), {limit})"
    got = call(answer, layers, limit, seconds=10.0, where=where, by_hand=by_hand, once=True)
    expected = "lists of neighbouring layers, in order, each layer once"
    expect(got is not None, expected, "None", where)
    try:
        exposed, peak = _milliseconds(layers, got)
    except (InvalidArgument, TypeError, IndexError) as error:
        raise Wrong(expected, str(error), where, cause="no cut") from None
    expect(peak <= limit, f"a peak of at most {limit:,} bytes", f"{peak:,}", where)
    return exposed


def fits(answer: Answer, rng: np.random.Generator) -> None:
    for seed, limit, finest, _ in _models(rng):
        where = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
        expect_at_most(round(PAR_OF_FINEST * finest, 6), _exposed(answer, seed, limit), "ms exposed", where)


def near_the_best(answer: Answer, rng: np.random.Generator) -> ParResult:
    pars, reached = 0.0, 0.0
    for seed, limit, _, best in _models(rng):
        where, exposed = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}", _exposed(answer, seed, limit)
        expect_at_most(round(PAR_OF_BEST * best, 6), exposed, "ms exposed", where)
        pars, reached = pars + PAR_OF_BEST * best, reached + exposed
    return expect_at_most(round(pars, 3), round(reached, 3), f"ms exposed in {MODELS} models")


# 14.4 and 14.5: the norm of sharded gradients, and a checkpoint for another number of ranks

clips_below, clips_above = partial(clips, above=False), partial(clips, above=True)
even, uneven = partial(reshards, dividing=True), partial(reshards, dividing=False)
