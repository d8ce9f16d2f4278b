"""Does a recording say what the program did, and refuse what messages cannot say?"""

import threading

import numpy as np
import pytest
from hypothesis import given

from dpbook.collectives import (
    EvenSplit,
    FixedBounds,
    complete_on,
    count,
    parameter_server,
    partial,
    record,
    ring,
    run,
    simulate,
    tree,
    verify,
)
from dpbook.core.errors import Deadlock, InvalidArgument, MessageError, RankFailed, ScheduleError
from tests.cases import each
from tests.collectives.exchanges import as_program, as_schedule, exchanges
from tests.collectives.oracles import WORLDS
from tests.collectives.programs import PROGRAMS, ring_program, server_program, tree_program
from tests.collectives.test_spmd import line_of

LIBRARY = {"ring": ring, "tree": tree, "parameter_server": parameter_server}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def noise(world, size):
    return np.random.default_rng(world + size).standard_normal((world, size))


# What a recording holds


@each("name", PROGRAMS)
@each("world", WORLDS)
def test_the_recording_of_an_all_reduce_verifies(world, name):
    assert verify(record(PROGRAMS[name], world, 2 * world + 1))


@each("name", ["ring", "parameter_server"])
@each("world", WORLDS)
def test_the_recording_is_the_librarys_schedule(world, name):
    recorded, library = record(PROGRAMS[name], world, 3 * world), LIBRARY[name](world)
    assert [sorted(r) for r in recorded.rounds] == [sorted(r) for r in library.rounds]


@each("world", WORLDS)
def test_the_recording_of_a_tree_sends_the_librarys_messages_no_later(world):
    recorded, library = (
        {m: i for i, r in enumerate(s.rounds) for m in r} for s in (record(tree_program, world, 5), tree(world))
    )
    assert recorded.keys() == library.keys()
    assert all(recorded[m] <= library[m] for m in library)


@each("name", PROGRAMS)
@each("world", WORLDS)
def test_simulating_the_recording_gives_the_bits_of_the_run(world, name):
    for size in (1, max(world - 1, 1), 2 * world + 1):
        buffers = noise(world, size)
        expected = simulate(record(PROGRAMS[name], world, size), buffers).buffers
        assert np.stack(run(PROGRAMS[name], buffers)).tobytes() == expected.tobytes()


@given(exchanges())
def test_the_recording_of_any_program_gives_the_bits_of_its_run(drawn):
    world, size, steps = drawn
    buffers, recorded = noise(world, size), record(as_program(steps), world, size)
    assert simulate(recorded, buffers).buffers.tobytes() == np.stack(run(as_program(steps), buffers)).tobytes()


@given(exchanges())
def test_the_recording_of_any_program_moves_the_bytes_of_its_steps(drawn):
    world, size, steps = drawn
    recorded = count(record(as_program(steps), world, size), size)
    expected = count(as_schedule(world, size, steps), size)
    assert recorded.sent_bytes.tolist() == expected.sent_bytes.tolist()
    assert recorded.received_bytes.tolist() == expected.received_bytes.tolist()
    assert recorded.rounds <= expected.rounds


def test_even_chunks_hold_for_every_size():
    recorded = record(ring_program, 4, 10)
    assert recorded.bounds == EvenSplit(4)
    assert verify(recorded)
    assert simulate(recorded, noise(4, 33)).buffers.tobytes() == simulate(ring(4), noise(4, 33)).buffers.tobytes()


def test_other_chunks_hold_for_their_size_alone():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[1:3], 1)
        else:
            comm.recv(x[1:3], 0)

    recorded = record(program, 2, 9, after=(partial(2), {}, partial(2)))
    assert recorded.bounds == FixedBounds((0, 1, 3, 9))
    assert verify(recorded)
    with pytest.raises(InvalidArgument, match="size must be 9"):
        simulate(recorded, noise(2, 10))


def test_overlapping_slices_are_cut_at_every_boundary():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[0:6], 1)
            comm.send(x[3:9], 1)
        else:
            comm.recv(x[0:6], 0, op="sum")
            comm.recv(x[3:9], 0)

    recorded = record(program, 2, 9)
    assert [[m[2:] for m in r] for r in recorded.rounds] == [[(0, True), (1, True)], [(1, False), (2, False)]]


def test_a_messages_round_is_one_more_than_the_later_of_its_ranks():
    def program(comm, x):
        calls = {0: [(1, "s"), (2, "s")], 1: [(0, "r")], 2: [(3, "r"), (0, "r")], 3: [(2, "s")]}
        for peer, what in calls[comm.rank]:
            comm.send(x, peer) if what == "s" else comm.recv(x, peer)

    rounds = [[(m.source, m.dest) for m in r] for r in record(program, 4, 1).rounds]
    assert rounds == [[(0, 1), (3, 2)], [(0, 2)]]


def test_an_exchange_is_one_round():
    def program(comm, x):
        comm.sendrecv(x, 1 - comm.rank, x, 1 - comm.rank, op="sum")

    assert [list(r) for r in record(program, 2, 3).rounds] == [[(0, 1, 0, True), (1, 0, 0, True)]]


def test_empty_messages_are_no_messages():
    recorded = record(ring_program, 5, 2)
    assert all(len(r) for r in recorded.rounds)
    assert count(recorded, 2).messages == count(ring(5), 2).messages


def test_a_world_of_one_records_nothing():
    recorded = record(server_program, 1, 4)
    assert (len(recorded.rounds), recorded.n_chunks) == (0, 1)


def test_before_and_after_are_the_callers():
    def gather(comm, x):
        if comm.rank == 0:
            comm.recv(x, 1, op="sum")
        else:
            comm.send(x, 0)

    assert verify(record(gather, 2, 3, after=(complete_on([0], 2),)))
    with pytest.raises(ScheduleError, match="lost contribution: rank 1"):
        verify(record(gather, 2, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.complex128])
def test_a_recording_may_be_made_in_another_dtype(dtype):
    assert verify(record(ring_program, 3, 7, dtype))


def test_the_name_is_that_of_the_program():
    assert record(ring_program, 3, 7).name == "ring_program(world=3)"


# What messages cannot say


def sum_by_hand(comm, x):
    other = 1 - comm.rank
    if comm.rank == 0:
        comm.recv(x, other)
        x *= 2  # the sum that no message tells of
        comm.send(x, other)
    else:
        comm.send(x, other)
        comm.recv(x, other)


def test_a_sum_by_hand_is_refused_with_the_rank_and_the_next_call():
    line = line_of(sum_by_hand, "comm.send(x, other)")
    call = rf"send\(to=1\), line {line} of sum_by_hand: `comm.send\(x, other\)`"
    with pytest.raises(ScheduleError, match=f"rank 0 changed its buffer outside of calls before {call}"):
        record(sum_by_hand, 2, 3)


def test_a_change_after_the_last_call_is_refused():
    def program(comm, x):
        ring_program(comm, x)
        if comm.rank == 2:
            x /= 3

    with pytest.raises(ScheduleError, match="rank 2 changed its buffer outside of calls before it returned"):
        record(program, 3, 6)


def test_a_change_that_is_undone_before_the_next_call_says_nothing():
    def program(comm, x):
        x.view(np.uint64)[:] ^= 1
        x.view(np.uint64)[:] ^= 1
        ring_program(comm, x)

    assert verify(record(program, 3, 6))


@each(
    "view",
    [
        lambda x: x.copy(),
        lambda x: x[::2].copy(),
        lambda x: x[::2],
        lambda x: x[::-1],
        lambda x: x.view(np.int64),
        lambda x: np.zeros(3),
    ],
)
def test_an_array_that_is_no_slice_is_refused_with_rank_and_line(view):
    def program(comm, x):
        if comm.rank == 1:
            comm.send(view(x), 0)
        else:
            comm.recv(view(x), 1)

    with pytest.raises(
        ScheduleError, match=r"rank 1 uses an array that is not a slice of its buffer in send\(to=0\), line"
    ):
        record(program, 2, 6)


def test_a_temporary_receiver_is_refused_with_rank_and_line():
    def program(comm, x):
        if comm.rank == 1:
            comm.send(x, 0)
        else:
            comm.recv(np.empty_like(x), 1)

    with pytest.raises(
        ScheduleError, match=r"rank 0 uses an array .* in recv\(source=1\), line \d+ of program: `comm\.recv"
    ):
        record(program, 2, 6)


def test_a_message_that_changes_its_place_is_refused_with_both_lines():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[:2], 1)
        else:
            comm.recv(x[2:4], 0)

    with pytest.raises(
        ScheduleError, match=r"rank 0 sends elements 0\.\.1 \(line .*rank 1 receives them into 2\.\.3 \(line"
    ):
        record(program, 2, 4)


def test_a_sendrecv_whose_halves_depend_on_each_other_is_refused():
    """Rank 0 receives what rank 1 could only send after it had rank 0's message: no single round holds both."""

    def program(comm, x):
        if comm.rank == 0:
            comm.sendrecv(x[:1], 1, x[1:], 1)
        else:
            comm.recv(x[:1], 0)
            comm.send(x[1:], 0)

    assert run(program, noise(2, 2))
    with pytest.raises(ScheduleError, match=r"the two halves of sendrecv\(to=1, source=1\) on rank 0 .* cannot share"):
        record(program, 2, 2)


# What it passes on


def test_a_deadlock_is_reported_as_in_a_run():
    with pytest.raises(Deadlock, match="rank 0 waits for rank 1"):
        record(lambda comm, x: comm.send(x, 1 - comm.rank), 2, 1)


def test_ends_that_disagree_are_reported_as_in_a_run():
    def program(comm, x):
        comm.send(x[:1], 1) if comm.rank == 0 else comm.recv(x, 0)

    with pytest.raises(MessageError):
        record(program, 2, 3)


def test_a_rank_that_raises_is_reported_as_in_a_run():
    with pytest.raises(RankFailed, match="rank 0 raised ZeroDivisionError"):
        record(lambda comm, x: 1 / 0, 2, 1)


def test_a_rank_that_loops_is_ended_as_in_a_run():
    def program(comm, x):
        while True:
            pass

    with pytest.raises(RankFailed, match="rank 0 ran for"):
        record(program, 2, 1, timeout=0.1)


@pytest.mark.parametrize(
    ("world", "size", "named"), [(0, 1, "world"), (2, 0, "size"), (2, 1.5, "size"), (None, 1, "world")]
)
def test_what_is_no_world_or_size_is_refused(world, size, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        record(ring_program, world, size)
