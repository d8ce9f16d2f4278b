"""Does the simulation compute the bits that message by message would give, by either of its two routes?"""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import FixedBounds, Round, Schedule, frames, ring, simulate
from dpbook.core.errors import InvalidArgument
from tests.cases import each
from tests.collectives.oracles import WORLDS, collective_schedules, integers, legal_schedules, plain

DTYPES = ["f2", "f4", "f8", "i1", "u1", "i4", "u8", "c8", "c16", "?", "g"]
MODULE = sys.modules[simulate.__module__]


@pytest.fixture(params=["padded cells", "slices"])
def route(request, monkeypatch):
    """Small chunks are handled in a padded layout and large ones as slices; here each route takes every size."""
    monkeypatch.setattr(MODULE, "SMALL_CHUNK", {"padded cells": 2**40, "slices": 0}[request.param])


def noise(world, size, dtype, seed=0):
    """Buffers whose sums round, so that every order of summation has its own bits."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal((world, size)).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal((world, size)) + 1j * rng.standard_normal((world, size))).astype(dtype)
    return rng.integers(0, 200, (world, size)).astype(dtype)  # sums overflow the small integers


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype == np.longdouble:  # has bytes that mean nothing
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


# Against the oracle


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("worlds", [(1, 2, 3, 5), pytest.param((8,), marks=pytest.mark.proof)], ids=["small", "8"])
@each("dtype", DTYPES)
def test_every_schedule_gives_the_bits_of_the_oracle(worlds, dtype):
    for world in worlds:
        for schedule in collective_schedules(world).values():
            for size in (0, 1, world - 1, 2 * world + 1, 3 * world):
                buffers = noise(world, size, dtype)
                assert same_bits(simulate(schedule, buffers).buffers, plain(schedule, buffers)), (schedule, size)


@pytest.mark.usefixtures("route")
@each("world", WORLDS)
def test_every_world_gives_the_bits_of_the_oracle(world):
    for schedule in collective_schedules(world).values():
        buffers = noise(world, 37, "f4")
        assert same_bits(simulate(schedule, buffers).buffers, plain(schedule, buffers)), schedule


@pytest.mark.parametrize("threshold", [0, 2**40])
@given(schedule=legal_schedules(), size=st.integers(0, 9), dtype=st.sampled_from(DTYPES), in_place=st.booleans())
def test_any_legal_schedule_gives_the_bits_of_the_oracle(threshold, schedule, size, dtype, in_place):
    """Rounds that mix operations, and exchanges in which both ends read what the round writes, included."""
    buffers = noise(schedule.world, size, dtype)
    expected = plain(schedule, buffers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "SMALL_CHUNK", threshold)
        assert same_bits(simulate(schedule, buffers, in_place=in_place).buffers, expected)


@given(schedule=legal_schedules(max_chunks=2), cut=st.integers(0, 700))
def test_chunks_of_very_unequal_length_give_the_bits_of_the_oracle(schedule, cut):
    offsets = (*(0, cut)[: schedule.n_chunks], 700)
    uneven = Schedule(schedule.world, schedule.n_chunks, schedule.rounds, FixedBounds(offsets))
    buffers = noise(schedule.world, 700, "f4")
    assert same_bits(simulate(uneven, buffers).buffers, plain(uneven, buffers))


@each("size", [4095, 4096, 4097, 12_285, 12_288, 12_289])
def test_sizes_around_the_change_of_route_give_the_bits_of_the_oracle(size):
    buffers = noise(3, size, "f4")
    assert same_bits(simulate(ring(3), buffers).buffers, plain(ring(3), buffers))


@pytest.mark.usefixtures("route")
@each("name", collectives.ALGORITHMS)
def test_what_is_not_finite_reaches_every_rank_and_stays_in_its_element(name):
    buffers = integers(4, 6)
    buffers[1, 2], buffers[3, 4], buffers[0, 5], buffers[2, 5] = np.nan, np.inf, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        result = simulate(collectives.ALGORITHMS[name](4), buffers).buffers
        np.testing.assert_array_equal(result, np.broadcast_to(buffers.sum(axis=0), (4, 6)))
    assert np.isfinite(result[:, [0, 1, 3]]).all()


# What is changed


@pytest.mark.usefixtures("route")
def test_the_given_buffers_are_not_changed():
    buffers = noise(3, 10, "f4")
    before = buffers.copy()
    result = simulate(ring(3), buffers).buffers
    assert same_bits(buffers, before)
    assert not np.shares_memory(result, buffers)


@pytest.mark.usefixtures("route")
def test_in_place_changes_the_given_buffers_and_returns_them():
    buffers = [row.copy() for row in noise(3, 10, "f4")]
    expected = plain(ring(3), buffers)
    result = simulate(ring(3), buffers, in_place=True)
    assert result.buffers is buffers
    assert same_bits(buffers, expected)


def test_a_list_of_lists_is_copied_into_arrays():
    assert simulate(ring(2), [[1.0, 2.0], [3.0, 4.0]]).buffers.tolist() == [[4.0, 6.0]] * 2


def test_strided_and_read_only_buffers_may_be_copied():
    buffers = noise(3, 20, "f4")
    buffers.flags.writeable = False
    assert same_bits(simulate(ring(3), buffers[:, ::-2]).buffers, plain(ring(3), buffers[:, ::-2]))


MEMORY = np.arange(12.0)
FROZEN = np.zeros(4)
FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([MEMORY[:4], MEMORY[:4]], "shared memory in ranks 0 and 1"),
        ([MEMORY[3:7], MEMORY[:4]], "shared memory in ranks 1 and 0"),
        ([MEMORY[:4], FROZEN], "buffer of rank 1 must be a writable and contiguous array"),
        ([MEMORY[:8:2], MEMORY[8:]], "buffer of rank 0 must be a writable and contiguous array"),
        ([[1.0, 2.0], [3.0, 4.0]], "buffer of rank 0 must be a writable and contiguous array"),
    ],
)
def test_in_place_refuses_what_it_cannot_change(buffers, message):
    before = MEMORY.copy()
    with pytest.raises(InvalidArgument, match=message):
        simulate(ring(2), buffers, in_place=True)
    assert same_bits(MEMORY, before)


def test_in_place_takes_slices_that_only_touch():
    memory = np.arange(8.0)
    simulate(ring(2), [memory[4:], memory[:4]], in_place=True)
    assert memory.tolist() == [4, 6, 8, 10] * 2


@each(
    ("buffers", "message"),
    [
        (5, "buffers must be one 1-D array per rank"),
        (np.zeros((2, 4)), "buffers must be one buffer per rank, 3, got '2 buffers'"),
        ([np.zeros(4), np.zeros(4), np.zeros(5)], "buffer of rank 2"),
        ([np.zeros(4), np.zeros(4, "f4"), np.zeros(4)], "buffer of rank 1"),
        (np.zeros((3, 2, 2)), "buffer of rank 0"),
        (np.zeros(3), "buffer of rank 0"),
        (np.zeros((3, 4), object), "dtype of buffers must be numeric"),
        (np.zeros((3, 4), "M8[s]"), "dtype of buffers must be numeric"),
    ],
)
@each("reader", [simulate, lambda s, b: list(frames(s, b))])
def test_what_is_no_set_of_buffers_is_refused(reader, buffers, message):
    with pytest.raises(InvalidArgument, match=message):
        reader(ring(3), buffers)


def test_fixed_bounds_refuse_buffers_of_another_size():
    with pytest.raises(InvalidArgument, match="size must be 5"):
        simulate(Schedule(2, 2, [], FixedBounds((0, 2, 5))), np.zeros((2, 6)))


# What it tells


def test_the_result_knows_its_traffic():
    result = simulate(ring(4), np.zeros((4, 10), np.float32))
    assert result.sent_bytes.tolist() == collectives.count(ring(4), 10, 4).sent_bytes.tolist()
    assert repr(result).startswith("Simulation of ring(world=4) on 10 × float32: 6 rounds, 24 messages, 240 bytes")


@given(schedule=legal_schedules(), size=st.integers(0, 5))
def test_frame_k_is_the_state_after_k_rounds(schedule, size):
    buffers = noise(schedule.world, size, "f4")
    for k, frame in enumerate(frames(schedule, buffers)):
        first = Schedule(schedule.world, schedule.n_chunks, schedule.rounds[:k])
        assert (frame.index, frame.round) == (k, schedule.rounds[k - 1] if k else None)
        assert same_bits(frame.buffers, plain(first, buffers))
    assert k == len(schedule.rounds)


def test_frames_keep_their_state_while_later_ones_are_made():
    kept = list(frames(ring(3), integers(3, 3)))
    assert same_bits(kept[0].buffers, integers(3, 3))
    assert not any(np.shares_memory(a.buffers, b.buffers) for a in kept for b in kept if a is not b)


def test_frames_are_computed_when_asked_for():
    asked = []

    def make(index):
        asked.append(index)
        return Round.of(0, 1, 0, True)

    film = frames(Schedule(2, 1, collectives.LazyRounds(5, make)), np.zeros((2, 1)))
    next(film), next(film)
    assert asked == [0]
