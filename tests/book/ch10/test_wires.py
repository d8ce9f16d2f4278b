"""Do ranks that are threads meet as processes do, say what is wrong, and log what was sent and waited for when?"""

import contextlib
import signal
import threading
import time

import pytest
import torch

from dpbook.book.ch10 import wires
from dpbook.book.ch10.wires import in_threads
from dpbook.core.errors import Deadlock, MessageError

WORLDS = [1, 2, 3, 5, 9]


@pytest.mark.parametrize("world", WORLDS)
def test_a_sum_is_there_when_it_was_waited_for_and_not_before(world):
    def rank(wire):
        x = torch.tensor([10**wire.rank])
        message = wire.all_reduce(x)
        before = x.item()
        message.wait()
        message.wait()
        return before, x.item()

    assert in_threads(rank, world) == [(10**r, sum(10**k for k in range(world))) for r in range(world)]


def test_a_handle_kept_for_the_next_step_is_logged_and_one_waited_for_twice_is_not():
    def rank(wire):
        kept = wire.all_reduce(torch.ones(1))
        kept.wait()
        kept.wait()
        before = list(wire.log)
        wire.restart()
        wire.all_reduce(torch.ones(1)).wait()
        kept.wait()
        return before, wire.log

    sent = [("sent", 1), ("waited", 0)]
    assert in_threads(rank, 3) == [(sent, [*sent, ("waited again", 0)])] * 3


def test_a_message_is_what_was_handed_over():
    def rank(wire):
        x = torch.ones(2)
        message = wire.all_reduce(x)
        x.fill_(7)
        message.wait()
        return x.tolist()

    assert in_threads(rank, 3) == [[3, 3]] * 3


@pytest.mark.parametrize("world", WORLDS)
def test_a_broadcast_gives_rank_0s_values(world):
    def rank(wire):
        weight = torch.nn.Parameter(torch.full((2,), float(wire.rank + 5)))
        wire.broadcast(weight)
        return weight.tolist()

    assert in_threads(rank, world) == [[5, 5]] * world


def test_messages_meet_by_their_number_in_any_order_of_waiting():
    def rank(wire):
        tensors = [torch.tensor([k * 10**wire.rank]) for k in range(3)]
        messages = [wire.all_reduce(x) for x in tensors]
        for k in (2, 0, 1) if wire.rank else (0, 1, 2):
            messages[k].wait()
        return [x.item() for x in tensors]

    assert in_threads(rank, 2) == [[0, 11, 22]] * 2


def test_the_log_says_what_was_sent_and_waited_for():
    def rank(wire):
        messages = [wire.all_reduce(torch.zeros(n)) for n in (3, 5)]
        for message in reversed(messages):
            message.wait()
        first_log = list(wire.log)
        wire.restart()
        wire.all_reduce(torch.zeros(1)).wait()
        return first_log, wire.log

    (first_log, after), _ = in_threads(rank, 2)
    assert first_log == [("sent", 3), ("sent", 5), ("waited", 1), ("waited", 0)]
    assert after == [("sent", 1), ("waited", 0)]


def test_messages_that_are_not_alike_are_named():
    with pytest.raises(MessageError, match=r"message 2 of rank . is all_reduce of \(.,\) float32, that of rank"):
        in_threads(lambda wire: [wire.all_reduce(torch.zeros(n)) for n in (4, 2 + wire.rank)], 2)


def test_a_message_that_does_not_come_is_named():
    with pytest.raises(Deadlock, match="waits for message 1, which rank 2 does not send"):
        in_threads(lambda wire: wire.rank == 2 or wire.all_reduce(torch.zeros(1)).wait(), 3)


def waits_for_anothers(wire, shared):
    """For rank 0's message, before it sends its own."""
    if wire.rank == 0:
        shared["message"] = wire.all_reduce(torch.ones(1))
        shared["sent"].set()
    shared["sent"].wait()
    shared["message"].wait()
    wire.all_reduce(torch.ones(1)).wait()


def uses_anothers_wire(wire, shared):
    shared["wire"] = wire
    shared["met"].wait()
    shared["wire"].all_reduce(torch.ones(1)).wait()


def goes_on_after_an_error(wire, shared):
    for elements in (3, 3 + (wire.rank == 1), 3):
        with contextlib.suppress(MessageError):
            wire.all_reduce(torch.zeros(elements)).wait()


@pytest.mark.parametrize("rank", [waits_for_anothers, uses_anothers_wire, goes_on_after_an_error])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_that_all_wait_are_reported(rank, world):
    shared = {"sent": threading.Event(), "met": threading.Barrier(world)}
    before = set(threading.enumerate())
    with pytest.raises(Deadlock, match=r"waits for message \d, which rank \d does not send"):
        in_threads(lambda wire: rank(wire, shared), world)
    assert not set(threading.enumerate()) - before


class Stop(Exception):
    pass


def test_ranks_for_which_nobody_waits_any_more_do_not_wait_either():
    def stop(*_):
        raise Stop

    def interrupt():
        """Send the signal until the call has ended: Python may drop what a handler raises, as where it frees memory."""
        here.wait()
        while not ended.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            ended.wait(1)

    def rank(wire):
        here.wait()
        if wire.rank == 0:
            go_on.wait()
        wire.all_reduce(torch.ones(1)).wait()

    here, go_on, ended = threading.Barrier(4), threading.Event(), threading.Event()
    handler = signal.signal(signal.SIGUSR1, stop)
    threading.Thread(target=interrupt, daemon=True).start()
    before = set(threading.enumerate())
    try:
        with pytest.raises(Stop):
            in_threads(rank, 3)
        ended.set()
        wait_for_others_than(before, 1)  # the one that works
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, handler)
        go_on.set()
        wait_for_others_than(before, 0)


def wait_for_others_than(before, count):
    deadline = time.monotonic() + 60
    while len(left := set(threading.enumerate()) - before) > count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(left) == count


def test_threads_of_a_rank_that_send_at_once_are_no_deadlock(monkeypatch):
    """Each rank's first message comes from another one of its threads than on the other ranks, and slowly."""
    put = wires._Exchange.put

    def slow(*given):
        time.sleep(0.3 * (threading.current_thread().name == "helper"))
        put(*given)

    def send(wire, late):
        time.sleep(0.05 * late)
        wire.all_reduce(torch.ones(1)).wait()

    def rank(wire):
        helper = threading.Thread(target=send, args=(wire, wire.rank != 0), name="helper")
        helper.start()
        send(wire, wire.rank == 0)
        helper.join()

    monkeypatch.setattr(wires._Exchange, "put", slow)
    in_threads(rank, 3)


def test_who_comes_late_is_waited_for():
    def rank(wire):
        time.sleep(3.5 * (wire.rank == 2))
        x = torch.ones(1)
        wire.all_reduce(x).wait()
        return x.item()

    assert in_threads(rank, 3) == [3, 3, 3]


def test_the_first_error_is_raised_and_no_thread_is_left():
    def rank(wire):
        if wire.rank == 1:
            raise ValueError("on purpose")
        wire.broadcast(torch.zeros(1))

    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="on purpose"):
        in_threads(rank, 3)
    assert not set(threading.enumerate()) - before
