"""Rank programs in one process: results, waiting, and every way in which a run can end."""

import ctypes
import inspect
import threading
import time

import numpy as np
import pytest
from hypothesis import given

from dpbook.collectives import ring, run, simulate, tree
from dpbook.collectives.programs import spmd
from dpbook.core.errors import Deadlock, InvalidArgument, MessageError, RankFailed
from tests.cases import each
from tests.collectives.exchanges import as_program, as_schedule, exchanges
from tests.collectives.oracles import WORLDS, integers, plain
from tests.collectives.programs import PROGRAMS, ring_program, tree_program


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def line_of(function, text):
    """The number of the first line of ``function`` that contains ``text``."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def noise(world, size):
    return np.random.default_rng(world).standard_normal((world, size)).astype(np.float32)


# Results


@each("name", PROGRAMS)
@each("world", WORLDS)
def test_programs_compute_the_sum_on_every_rank(world, name):
    for size in (0, 1, max(world - 1, 0), 2 * world + 1, 3 * world):
        buffers = integers(world, size)
        result = run(PROGRAMS[name], buffers)
        np.testing.assert_array_equal(result, np.broadcast_to(buffers.sum(axis=0), (world, size)))


@each(("program", "schedule"), [(ring_program, ring), (tree_program, tree)])
@each("world", WORLDS)
def test_a_program_gives_the_bits_of_the_schedule_it_spells_out(world, program, schedule):
    buffers = noise(world, 37)
    expected = simulate(schedule(world), buffers).buffers
    assert np.stack(run(program, buffers)).tobytes() == expected.tobytes()


@given(exchanges())
def test_any_program_gives_the_bits_of_the_oracle(drawn):
    world, size, steps = drawn
    buffers = noise(world, size)
    expected = plain(as_schedule(world, size, steps), buffers)
    assert np.stack(run(as_program(steps), buffers)).tobytes() == expected.tobytes()


def test_the_given_buffers_are_not_changed():
    buffers = integers(3, 5)
    result = run(ring_program, buffers)
    assert buffers.tolist() == integers(3, 5).tolist()
    assert not any(np.shares_memory(r, buffers) for r in result)


def test_a_program_may_do_sums_by_hand_and_use_arrays_of_its_own():
    def program(comm, x):
        temporary = np.empty_like(x)
        comm.sendrecv(x.copy(), 1 - comm.rank, temporary, 1 - comm.rank)
        x += temporary

    assert np.stack(run(program, integers(2, 4))).tolist() == [integers(2, 4).sum(axis=0).tolist()] * 2


def test_sendrecv_reads_what_it_sends_before_it_writes_what_it_receives():
    def program(comm, x):
        comm.sendrecv(x, 1 - comm.rank, x, 1 - comm.rank)

    assert np.stack(run(program, [[1.0, 2.0], [3.0, 4.0]])).tolist() == [[3, 4], [1, 2]]


def test_a_sendrecv_may_meet_a_send_and_a_recv():
    def program(comm, x):
        if comm.rank == 1:
            comm.sendrecv(x[:1], 2, x[1:], 0)
        elif comm.rank == 0:
            comm.send(x[1:], 1)
        else:
            comm.recv(x[:1], 1)

    assert np.stack(run(program, [[0, 10], [1, 11], [2, 12]])).tolist() == [[0, 10], [1, 10], [1, 12]]


def test_messages_between_two_ranks_arrive_in_the_order_in_which_they_were_sent():
    def program(comm, x):
        for i in range(len(x)):
            if comm.rank == 0:
                comm.send(x[i : i + 1], 1)
            else:
                comm.recv(x[i : i + 1], 0)

    assert run(program, [np.arange(9), np.zeros(9, int)])[1].tolist() == list(range(9))


def test_a_send_waits_until_its_receiver_is_there():
    events = []

    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
            events.append("sent")
        else:
            comm.send(x, 2) if comm.rank == 1 else comm.recv(x, 1)
            events.append(f"rank {comm.rank} passed")
            if comm.rank == 1:
                comm.recv(x, 0)

    run(program, integers(3, 1))
    assert events.index("sent") > events.index("rank 1 passed")


def test_a_value_sent_is_the_value_at_the_time_of_the_call():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
            x[:] = -1
        else:
            comm.recv(x, 0)

    assert run(program, [np.array([5.0]), np.zeros(1)])[1].tolist() == [5.0]


def test_two_runs_exchange_the_same_messages_in_the_same_order():
    def story():
        calls = []

        def program(comm, x):
            for step in range(3):
                calls.append((comm.rank, step))
                ring_program(comm, x)

        result = run(program, noise(5, 11))
        return calls, np.stack(result).tobytes()

    assert story() == story()


def test_a_ring_of_16_lets_each_rank_run_once_per_step(monkeypatch):
    """The cost of a run is the number of times that one rank hands over to another; nothing polls."""
    turns = []
    let = spmd.World._let
    monkeypatch.setattr(spmd.World, "_let", lambda world, rank: (turns.append(rank.rank), let(world, rank)))
    run(ring_program, integers(16, 32))
    assert len(turns) <= 16 * (30 + 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.complex64, np.bool_])
def test_programs_run_in_the_dtype_of_their_buffers(dtype):
    buffers = integers(3, 7, dtype)
    assert np.stack(run(ring_program, buffers)).tobytes() == plain(ring(3), buffers).tobytes()


# Deadlocks


def test_everybody_sends_first_is_a_deadlock_that_names_rank_peer_call_and_line():
    def program(comm, x):
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        comm.send(x, right)
        comm.recv(x, left)

    with pytest.raises(Deadlock) as caught:
        run(program, integers(3, 2))
    line = line_of(program, "comm.send(x, right)")
    assert str(caught.value).splitlines() == [
        "deadlock: no rank can go on",
        *(
            f"  rank {r} waits for rank {(r + 1) % 3} in send(to={(r + 1) % 3}), line {line} of program: "
            "`comm.send(x, right)`"
            for r in range(3)
        ),
    ]


def test_a_message_that_nobody_receives_is_a_deadlock_with_a_rank_that_has_returned():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)

    with pytest.raises(
        Deadlock, match=r"rank 0 waits for rank 1 in send\(to=1\), line .*; rank 1 has already returned"
    ):
        run(program, integers(2, 1))


def test_a_message_that_nobody_sends_is_a_deadlock_with_a_rank_that_has_returned():
    def program(comm, x):
        if comm.rank == 1:
            comm.recv(x, 0)

    with pytest.raises(Deadlock, match=r"rank 1 waits for rank 0 in recv\(source=0\).*rank 0 has already returned"):
        run(program, integers(2, 1))


def test_a_half_done_sendrecv_waits_for_its_other_half_alone():
    def program(comm, x):
        if comm.rank == 0:
            comm.sendrecv(x[:1], 1, x[1:], 2)
        elif comm.rank == 1:
            comm.recv(x[:1], 0)
        else:
            comm.recv(x[:1], 1)

    with pytest.raises(Deadlock) as caught:
        run(program, integers(3, 2))
    assert "rank 0 waits for rank 2 in sendrecv(to=1, source=2)" in str(caught.value)
    assert "rank 2 waits for rank 1 in recv(source=1)" in str(caught.value)
    assert "rank 1 waits" not in str(caught.value)


def test_a_line_without_source_is_named_by_its_number():
    space = {}
    exec("def program(comm, x):\n\n    comm.recv(x, 1 - comm.rank)\n", space)
    with pytest.raises(Deadlock, match=r"rank 0 waits for rank 1 in recv\(source=1\), line 3 of program\n"):
        run(space["program"], integers(2, 1))


# Failures


def test_a_rank_that_raises_is_named_with_its_line():
    def program(comm, x):
        if comm.rank == 2:
            raise KeyError("missing")
        ring_program(comm, x)

    with pytest.raises(
        RankFailed, match=r"^rank 2 raised KeyError: 'missing' \(line (\d+) of program: `raise KeyError"
    ):
        run(program, integers(3, 4))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_whatever_a_program_raises_is_the_failure_of_its_rank(error):
    def program(comm, x):
        raise error

    with pytest.raises(RankFailed, match=f"^rank 0 raised {type(error).__name__}") as caught:
        run(program, integers(2, 4))
    assert caught.value.__cause__ is error


@each(
    ("call", "named"),
    [
        (lambda comm, x: comm.send(x, comm.rank), "to on rank 0"),
        (lambda comm, x: comm.send(x, 2), "to on rank 0"),
        (lambda comm, x: comm.send(x, -1), "to on rank 0"),
        (lambda comm, x: comm.send(x, True), "to on rank 0"),
        (lambda comm, x: comm.recv(x, 1.0), "source on rank 0"),
        (lambda comm, x: comm.recv(x, 1, op="mean"), "op"),
        (lambda comm, x: comm.recv(list(x), 1), "view"),
        (lambda comm, x: comm.send(x[0], 1), "view"),
        (lambda comm, x: comm.send(x.reshape(1, -1), 1), "view"),
        (lambda comm, x: comm.recv(np.broadcast_to(x[:1], 3), 1), "view"),
        (lambda comm, x: comm.sendrecv(x, 1, x, 0), "source on rank 0"),
    ],
)
def test_a_wrong_argument_of_a_call_is_named_with_the_line_of_the_program(call, named):
    with pytest.raises(RankFailed, match=rf"^rank 0 raised InvalidArgument: {named} must be .*\(line \d+ of <lambda>"):
        run(call, integers(2, 3))


def test_ends_that_disagree_on_the_length_are_named_with_both_lines():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[:5], 1)
        else:
            comm.recv(x[:3], 0)

    message = (
        r"rank 0 sends 5 × float64 \(line (\d+) .*`comm.send\(x\[:5\], 1\)`\), but rank 1 receives 3 × float64 \(line"
    )
    with pytest.raises(MessageError, match=message):
        run(program, integers(2, 6))


def test_ends_that_disagree_on_the_dtype_are_refused():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(x, 0, op="sum")

    with pytest.raises(MessageError, match=r"rank 0 sends 3 × float32 .* rank 1 receives 3 × float64"):
        run(program, [np.zeros(3, np.float32), np.zeros(3)])


@pytest.mark.parametrize("buffers", [[], [np.zeros((2, 2))], np.zeros(3), [np.zeros(2), 1.0]])
def test_what_is_no_set_of_buffers_is_refused(buffers):
    with pytest.raises(InvalidArgument, match=r"^buffers must be one 1-D array per rank"):
        run(ring_program, buffers)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    with pytest.raises(InvalidArgument, match=r"^timeout must be a finite number above 0"):
        run(ring_program, integers(2, 2), timeout=timeout)


def test_buffers_may_differ_in_length():
    def program(comm, x):
        if comm.rank == 0:
            comm.send(x[:2], 1)
        else:
            comm.recv(x, 0)

    assert [len(b) for b in run(program, [np.zeros(5), np.ones(2)])] == [5, 2]


# Ends


def test_a_program_that_loops_for_ever_ends_at_the_timeout():
    def program(comm, x):
        if comm.rank == 1:
            while True:
                pass
        comm.recv(x, 1)

    with pytest.raises(RankFailed, match=r"rank 1 ran for 0\.2 s without sending or receiving"):
        run(program, integers(3, 1), timeout=0.2)


def test_the_timeout_counts_from_the_last_message():
    """Eight calls, each within the limit also on a busy machine: together they take longer, and are allowed to."""

    def program(comm, x):
        for _ in range(8):
            time.sleep(0.6)
            comm.sendrecv(x, 1 - comm.rank, x, 1 - comm.rank)

    assert run(program, integers(2, 1), timeout=4.5)


class Interrupted(Exception):
    pass


def test_an_exception_from_outside_ends_the_run_and_every_rank():
    """A notebook's Stop button or a grader's watchdog interrupts the thread that called run."""
    looping = threading.Event()

    def program(comm, x):
        if comm.rank == 1:
            looping.set()
            while True:
                pass
        comm.recv(x, 1)

    caller = ctypes.c_ulong(threading.get_ident())

    def interrupt():
        looping.wait()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(caller, ctypes.py_object(Interrupted))

    watchdog = threading.Thread(target=interrupt)
    watchdog.start()
    with pytest.raises(Interrupted):
        run(program, integers(3, 1), timeout=60)
    watchdog.join()


def test_a_program_that_sends_while_it_unwinds_is_ended_too():
    def program(comm, x):
        try:
            comm.recv(x, 1 - comm.rank)
        finally:
            comm.send(x, 1 - comm.rank)

    with pytest.raises(Deadlock):
        run(program, integers(2, 1))


def test_a_program_that_swallows_everything_is_ended_too():
    def program(comm, x):
        for _ in range(3):
            try:
                comm.recv(x, 1 - comm.rank)
            except BaseException:
                continue

    with pytest.raises(Deadlock):
        run(program, integers(2, 1))


def test_nothing_is_printed_behind_the_callers_back(capfd):
    def program(comm, x):
        if comm.rank == 1:
            raise ValueError("no")
        comm.recv(x, 1)

    with pytest.raises(RankFailed):
        run(program, integers(3, 1))
    assert capfd.readouterr() == ("", "")
