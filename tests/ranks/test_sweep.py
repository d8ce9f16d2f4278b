"""Timing of an all-reduce between real processes: its calls, their times, and the bandwidths."""

import subprocess
import time

import numpy as np
import pytest

from dpbook import collectives
from dpbook.core.errors import InvalidArgument
from dpbook.ranks import Sweep, published_sweep, start, sweep

SIZES, REPEATS = (4, 4096, 40), 5
SLEEP = 0.05


def on_one_rank(rank):
    """Return a sweep of each kind, and the arguments of the calls of a rank program."""
    from dpbook.ranks.sweeps import measure

    called = []

    def watched(comm, x):
        called.append((comm.rank, comm.world_size, x.size))
        if comm.rank == 1:
            time.sleep(SLEEP)

    sweeps = {
        "torch's own": measure(None, SIZES, REPEATS),
        "schedule": measure(collectives.ring(2), SIZES, REPEATS),
        "program": measure(watched, SIZES, REPEATS),
    }
    return sweeps, called


@pytest.fixture(scope="module")
def ranks():
    return start(on_one_rank, [(0,), (1,)])


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["torch's own", "schedule", "program"])
def test_every_size_is_timed_for_all_repeats_and_all_ranks_return_the_same(ranks, kind):
    first, second = (sweeps[kind] for sweeps, _ in ranks)
    assert first.world == 2
    assert first.nbytes.tolist() == list(SIZES)
    assert first.times.shape == (len(SIZES), REPEATS)
    assert (first.times > 0).all()
    assert np.array_equal(first.times, second.times)


def turns(called):
    """Return the elements of each turn's calls, in order."""
    return [tuple(size for *_, size in called[k : k + len(SIZES)]) for k in range(0, len(called), len(SIZES))]


@pytest.mark.processes
def test_the_sizes_take_turns_and_one_turn_is_not_counted(ranks):
    for rank, (_, called) in enumerate(ranks):
        assert {(r, world) for r, world, _ in called} == {(rank, 2)}
        assert [sorted(turn) for turn in turns(called)] == [sorted(size // 4 for size in SIZES)] * (1 + REPEATS)


@pytest.mark.processes
def test_no_size_always_follows_the_largest_and_all_ranks_keep_one_order(ranks):
    first, second = (turns(called) for _, called in ranks)
    assert first == second
    assert len(set(first)) > 1


@pytest.mark.processes
def test_the_time_of_the_slowest_rank_counts(ranks):
    assert (ranks[0][0]["program"].times >= SLEEP).all()  # rank 0 itself did not sleep


@pytest.mark.processes
def test_a_sweep_of_one_process():
    measured = sweep(1, nbytes=[8], repeats=2)
    assert (measured.world, measured.times.shape) == (1, (1, 2))


def test_bandwidths_are_those_of_the_median_as_nccl_tests_defines_them():
    measured = Sweep(4, np.array([8_000_000]), np.array([[2e-3, 9.0, 1e-3]]))
    assert measured.seconds.tolist() == [2e-3]
    assert measured.algbw.tolist() == [collectives.algbw(8_000_000, 2e-3)]
    assert measured.busbw.tolist() == [collectives.busbw(8_000_000, 2e-3, 4)]


def test_a_sweep_is_shown_as_a_table_in_the_same_units_for_all_sizes():
    measured = Sweep(4, np.array([1000, 8_000_000]), np.array([[1e-4], [2e-3]]))
    assert [line.split() for line in repr(measured).splitlines()] == [
        ["bytes", "µs", "algbw", "GB/s", "busbw", "GB/s"],
        ["1,000", "100", "0.010", "0.015"],
        ["8,000,000", "2,000", "4.000", "6.000"],
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"world": 0}, "world"),
        ({"all_reduce": "ring"}, "all_reduce"),
        ({"all_reduce": collectives.ring(3)}, "all_reduce"),
        ({"nbytes": []}, "nbytes"),
        ({"nbytes": [4, 6]}, "nbytes"),
        ({"nbytes": [0]}, "nbytes"),
        ({"nbytes": [4.0]}, "nbytes"),
        ({"nbytes": 4}, "nbytes"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 2.5}, "repeats"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments, named, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        sweep(**{"world": 2, **arguments})


def test_the_published_bandwidths_are_reproduced():
    """They are the columns algbw and busbw of the source, in GB/s, at 32 KiB, 8 MiB, 256 MiB and 16 GiB."""
    published = published_sweep()
    rows = np.isin(published.nbytes, [2**15, 2**23, 2**28, 2**34])
    assert (published.algbw[rows] / 1e9).round(2) == pytest.approx([0.82, 88.87, 249.23, 275.58], rel=1e-3)
    assert (published.busbw[rows] / 1e9).round(2) == pytest.approx([1.44, 155.53, 436.15, 482.26], rel=5e-3)
    assert published.nbytes.tolist() == [2**power for power in range(15, 35)]


def test_the_published_bandwidths_on_four_nodes_are_reproduced():
    """They are the column busbw of the source, in GB/s; NCCL's algorithms are those of AWS's table for 32 ranks."""
    published = published_sweep("b200x32")
    rows = np.isin(published.nbytes, [2**19, 2**25, 2**28, 2**34])
    assert (published.busbw[rows] / 1e9).round(2) == pytest.approx([2.84, 91.19, 229.09, 381.80], rel=1e-3)
    runs = ["Tree"] * 10 + ["Ring"] * 2 + ["NVLSTree"] * 2 + ["Ring"] * 6
    assert list(published.algorithms) == runs


def test_an_unknown_published_sweep_is_refused():
    with pytest.raises(InvalidArgument, match=r"^name must be one of h200x8, b200x32"):
        published_sweep("b200")
