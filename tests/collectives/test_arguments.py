"""Does everything that takes a schedule, a program or ranks say so when it gets something else?"""

import numpy as np
import pytest

from dpbook import collectives
from dpbook.collectives import (
    EvenSplit,
    FixedBounds,
    LazyRounds,
    Round,
    Schedule,
    bandwidth_lower_bound,
    beside,
    complete_everywhere,
    complete_on,
    count,
    embed,
    find_fault,
    frames,
    from_json,
    interpret,
    partial,
    record,
    relabel,
    ring,
    run,
    simulate,
    to_json,
    verify,
)
from dpbook.core.errors import InvalidArgument, ScheduleError
from tests.cases import each

READERS = {
    "simulate": lambda s: simulate(s, np.zeros((2, 2))),
    "frames": lambda s: list(frames(s, np.zeros((2, 2)))),
    "interpret": lambda s: list(interpret(s, None)),
    "count": lambda s: count(s, 4),
    "verify": verify,
    "find_fault": find_fault,
    "to_json": to_json,
    "then": lambda s: ring(2).then(s),
    "beside": beside,
    "beside another": lambda s: beside(ring(2), s),
    "embed": lambda s: embed(s, 4, [0, 1]),
    "relabel": relabel,
}


@each("value", [None, 3, "ring", ring, [Round.of(0, 1, 0, True)]])
@each("reader", READERS)
def test_what_is_no_schedule_is_refused(reader, value):
    with pytest.raises(InvalidArgument, match=r"^schedule must be a Schedule, such as collectives.ring\(4\), got "):
        READERS[reader](value)


@each("reader", ["simulate", "frames", "count", "verify", "find_fault", "to_json"])
def test_a_lazy_round_that_is_none_is_refused_when_it_is_made(reader):
    schedule = Schedule(2, 1, LazyRounds(2, lambda i: Round.of(0, 1, 0, True) if i == 0 else 7))
    with pytest.raises(InvalidArgument, match=r"^round 2 must be a Round, got 7"):
        READERS[reader](schedule)


@each(
    ("call", "message"),
    [
        (lambda: Schedule(2, 1, [1]), r"round 1 must be a Round, got 1"),
        (lambda: Schedule(2, 1, [Round.of(0, 1, 0, True), None]), r"round 2 must be a Round, got None"),
        (lambda: Schedule(2, 1, 5), r"rounds must be a sequence of Round, got 5"),
        (lambda: Schedule(2, 1, [], bounds=5), r"bounds must be a rule for 1 chunk, got 5"),
        (lambda: Schedule(2, 1, [], before=5), r"before must be a holding per chunk.*got 5"),
        (lambda: Schedule(2, 1, [], after=(5,)), r"after must be a holding per chunk.*got \(5,\)"),
        (lambda: LazyRounds(-1, print), r"length must be an integer of at least 0, got -1"),
        (lambda: LazyRounds(1, 5), r"make must be a function from a round's index to the Round, got 5"),
        (lambda: complete_on([9], 4), r"rank must be an integer from 0 to 3, got 9"),
        (lambda: complete_on([-1], 4), r"rank must be an integer from 0 to 3, got -1"),
        (lambda: complete_on([0.5], 4), r"rank must be an integer from 0 to 3, got 0.5"),
        (lambda: complete_on(2, 4), r"ranks must be a collection of ranks, got 2"),
        (lambda: complete_on([0], 0), r"world must be an integer of at least 1, got 0"),
        (lambda: partial("4"), r"world must be an integer of at least 1, got '4'"),
        (lambda: complete_everywhere(-2), r"world must be an integer of at least 1, got -2"),
        (lambda: bandwidth_lower_bound(4, -1), r"nbytes must be a finite number of at least 0, got -1"),
        (lambda: bandwidth_lower_bound(4, "x"), r"nbytes must be a finite number of at least 0, got 'x'"),
        (lambda: simulate(ring(4), [1, 2, 3, 4]), r"buffer of rank 0 must be a 1-D array, got array\(1\)"),
        (lambda: simulate(ring(2), [np.zeros(2), 1]), r"buffer of rank 1 must be a 1-D array, got array\(1\)"),
        (lambda: simulate(ring(2), [[0, 1], [0]]), r"buffer of rank 1 must be like that of rank 0, 2 × int64, got"),
        (lambda: simulate(ring(2), [[0, [1]], [0]]), r"buffers must be one 1-D array per rank, got"),
        (lambda: simulate(ring(2), 5), r"buffers must be one 1-D array per rank, got 5"),
        (lambda: simulate(ring(2), [[0]]), r"buffers must be one buffer per rank, 2, got '1 buffer'"),
        (lambda: run(5, np.zeros((2, 2))), r"program must be a rank program.*got 5"),
        (lambda: run(print, 5), r"buffers must be one 1-D array per rank, got 5"),
        (lambda: run(print, [[1, [2]]]), r"buffers must be one 1-D array per rank, got"),
        (lambda: run(print, np.zeros((2, 2)), timeout="x"), r"timeout must be a finite number above 0, got 'x'"),
        (lambda: record(5, 2, 4), r"program must be a rank program.*got 5"),
        (lambda: record(print, 2, 4, timeout=None), r"timeout must be a finite number above 0, got None"),
        (lambda: from_json(4), r"text must be JSON as written by to_json, got"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(call, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()


def test_a_list_of_rounds_may_change_after_the_schedule_is_made():
    rounds = [Round.of(0, 1, 0, True), Round.of(1, 0, 0, False)]
    schedule = Schedule(2, 1, rounds)
    verify(schedule)
    rounds.append(Round.of(7, 0, 0, True))
    assert simulate(schedule, np.array([[1], [2]])).buffers.tolist() == [[3], [3]]


def test_lazy_rounds_stay_lazy():
    made = []
    Schedule(2, 1, LazyRounds(3, made.append))
    assert made == []


@pytest.mark.parametrize(("bounds", "size"), [(EvenSplit(3), None), (FixedBounds((0, 2, 7)), 7)])
def test_bounds_know_the_only_size_that_they_cut(bounds, size):
    assert bounds.size == size


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_algorithms_promise_an_all_reduce(world):
    assert all(make(world).is_all_reduce for make in collectives.ALGORITHMS.values())


@pytest.mark.parametrize("make", [collectives.reduce_scatter, collectives.all_gather, collectives.reduce])
def test_the_parts_of_an_algorithm_do_not(make):
    assert not make(3).is_all_reduce


def test_a_schedule_that_cannot_follow_is_still_distinguished_from_what_is_no_schedule():
    with pytest.raises(ScheduleError, match="cannot follow"):
        ring(2).then(collectives.all_gather(2))


@pytest.mark.parametrize("world", [1, 2])
def test_one_of_a_kind_is_reported_in_the_singular(world):
    schedule = Schedule(world, 1, [Round.of(0, 1, 0, True)] if world == 2 else [])
    texts = f"{schedule!r} {count(schedule, 1, 1)!r}"
    assert not any(f" 1 {noun}s" in f" {texts}" for noun in ("round", "chunk", "message", "byte"))
