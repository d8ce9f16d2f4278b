"""Ranks in one process: `run` executes a rank program on every rank of a world, one at a time in a fixed order.

A run is deterministic. ``send`` waits until its receiver is there (rendezvous, as in gloo), so a program that deadlocks
here also deadlocks between real processes; here it ends at once with a report.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.programs.comm import (
    Comm,
    Op,
    Program,
    check_message,
    copy_buffers,
    deliver,
    line_of_caller,
    line_of_error,
)
from dpbook.core import Deadlock, InvalidArgument, MessageError, RankFailed, ScheduleError, check_float


def run(program: Program, buffers: Sequence[NDArray[Any]], *, timeout: float = 30.0) -> list[NDArray[Any]]:
    """Run ``program`` on one rank per buffer and return each rank's final buffer; the input is not changed.

    Raises `Deadlock` as soon as no rank can go on, `MessageError` if the ends of a message disagree, and `RankFailed`
    if a rank raises an error, or computes for ``timeout`` seconds without sending or receiving.
    """
    copies = copy_buffers(buffers)
    World(program, copies, timeout).run()
    return copies


def call_on_ranks(function: Callable[[Comm], Any], world: int) -> list[Any]:
    """Call ``function(comm)`` on each rank of a world and return what each returned. Raises the errors of `run`."""
    results: list[Any] = [None] * world

    def program(comm: Comm, x: NDArray[Any]) -> None:
        results[comm.rank] = function(comm)

    run(program, [np.empty(0)] * world)
    return results


def exchange(comm: Comm, array: NDArray[Any]) -> list[NDArray[Any]]:
    """Send a 1-D array to all other ranks, and return the arrays of all ranks, which have one length and dtype."""
    arrays = [np.empty_like(array) for _ in range(comm.world_size)]
    arrays[comm.rank][:] = array
    for shift in range(1, comm.world_size):
        to, source = (comm.rank + shift) % comm.world_size, (comm.rank - shift) % comm.world_size
        comm.sendrecv(arrays[comm.rank], to, arrays[source], source)
    return arrays


@dataclass(eq=False)
class Half:
    """One direction of a call: a message that is sent or received."""

    sends: bool
    peer: int
    view: NDArray[Any]
    op: Op = "copy"
    payload: NDArray[Any] | None = None
    partner: CommCall | None = None


@dataclass(eq=False)
class CommCall:
    """One send, recv or sendrecv of one rank, with its line in the program."""

    rank: int
    halves: list[Half]
    text: str
    line: str

    @property
    def is_complete(self) -> bool:
        return all(half.partner is not None for half in self.halves)


class _Cancelled(BaseException):
    """Raised in a rank to unwind it when the run has ended for another reason."""


class _Rank:
    """One rank: a thread that runs only while it has the baton. It is also the program's `Comm`."""

    OFFERS = ("rank", "world_size", "send", "recv", "sendrecv")

    def __init__(self, world: World, rank: int) -> None:
        self._world = world
        self.rank = rank
        self.world_size = len(world.buffers)
        self.go: SimpleQueue[None] = SimpleQueue()
        self.call: CommCall | None = None
        self.error: BaseException | None = None
        self.finished = False
        self.thread = threading.Thread(target=self._main, name=f"rank {rank}", daemon=True)

    def _main(self) -> None:
        try:
            self._wait()
            self._world.program(self, self._world.buffers[self.rank])
            self._world.on_return(self.rank)
        except _Cancelled:
            pass
        except BaseException as error:  # any exception of a program is its rank's failure
            self.error = error
        finally:
            self.finished = True
            self._world.baton.put(None)

    def send(self, view: NDArray[Any], to: int) -> None:
        self._post(f"send(to={to})", [Half(True, to, view)])

    def recv(self, view: NDArray[Any], source: int, op: Op = "copy") -> None:
        self._post(f"recv(source={source})", [Half(False, source, view, op)])

    def sendrecv(self, send: NDArray[Any], to: int, recv: NDArray[Any], source: int, op: Op = "copy") -> None:
        self._post(f"sendrecv(to={to}, source={source})", [Half(True, to, send), Half(False, source, recv, op)])

    def _wait(self) -> None:
        """Wait for the baton. Raises `_Cancelled` if the run has ended meanwhile."""
        self.go.get()
        if self._world.cancelled:
            raise _Cancelled

    def _post(self, text: str, halves: list[Half]) -> None:
        if self._world.cancelled:  # called while the program unwinds, in a finally clause
            raise _Cancelled
        for half in halves:
            check_message(self.rank, self.world_size, half.view, half.peer, None if half.sends else half.op)
            if half.sends:
                half.payload = half.view.copy()  # read before the other half of a sendrecv writes
        self.call = CommCall(self.rank, halves, text, line_of_caller(2))
        self._world.on_call(self.call)
        self._world.match(self.call)
        if not self.call.is_complete:
            self._world.baton.put(None)
            self._wait()
        self.call = None


class World:
    """All ranks of one run, and the baton that passes between them. `record` overrides its hooks."""

    def __init__(self, program: Program, buffers: list[NDArray[Any]], timeout: float) -> None:
        if not callable(program):
            raise InvalidArgument("program", program, "a rank program, a function of (comm, x)")
        self.program = program
        self.buffers = buffers
        self.timeout = check_float("timeout", timeout, above=0)
        self.baton: SimpleQueue[None] = SimpleQueue()
        self.cancelled = False
        self.running: _Rank | None = None
        self.ranks = [_Rank(self, rank) for rank in range(len(buffers))]

    def on_call(self, call: CommCall) -> None:
        """Handle a new call of a rank, which may still have to wait."""

    def on_match(self, sender: CommCall, receiver: CommCall, sent: Half, received: Half) -> None:
        """Handle a delivered message."""

    def on_return(self, rank: int) -> None:
        """Handle the return of a rank's program."""

    def run(self) -> None:
        try:
            for rank in self.ranks:
                rank.thread.start()
            while not all(rank.finished for rank in self.ranks):
                ready = [r for r in self.ranks if not r.finished and (r.call is None or r.call.is_complete)]
                if not ready:
                    raise Deadlock(self._report())
                for rank in ready:
                    self._let(rank)
        finally:
            self._end()

    def _let(self, rank: _Rank) -> None:
        """Let one rank run until it waits or returns."""
        self.running = rank
        rank.go.put(None)
        self._wait_for_baton(rank, time.monotonic() + self.timeout)
        self.running = None
        error = rank.error
        if isinstance(error, MessageError | ScheduleError):
            raise error
        if error is not None:
            where = line_of_error(error)
            raise RankFailed(f"rank {rank.rank} raised {type(error).__name__}: {error} ({where})") from error

    def _wait_for_baton(self, rank: _Rank, deadline: float) -> None:
        while True:
            try:
                return self.baton.get(timeout=0.05)  # wakes up, so that this thread can be interrupted
            except Empty:
                if time.monotonic() > deadline:
                    text = f"rank {rank.rank} ran for {self.timeout:g} s without sending or receiving"
                    raise RankFailed(text) from None

    def match(self, call: CommCall) -> None:
        """Deliver every message of ``call`` whose other end is waiting."""
        for half in call.halves:
            other = self.ranks[half.peer].call
            if other is None:
                continue
            for theirs in other.halves:
                if theirs.partner is None and theirs.peer == call.rank and theirs.sends != half.sends:
                    half.partner, theirs.partner = other, call
                    ends = (call, other, half, theirs) if half.sends else (other, call, theirs, half)
                    sender, receiver, sent, received = ends
                    assert sent.payload is not None
                    ends_of_message = (sender.rank, sender.line), (receiver.rank, receiver.line)
                    deliver(sent.payload, received.view, received.op, *ends_of_message)
                    self.on_match(*ends)
                    break

    def _report(self) -> str:
        lines = ["deadlock: no rank can go on"]
        for rank in self.ranks:
            if rank.call is not None:
                waits = [h.peer for h in rank.call.halves if h.partner is None]
                gone = [peer for peer in waits if self.ranks[peer].finished]
                reason = f"; rank {gone[0]} has already returned" if gone else ""
                for_whom = " and ".join(f"rank {peer}" for peer in dict.fromkeys(waits))
                lines.append(f"  rank {rank.rank} waits for {for_whom} in {rank.call.text}, {rank.call.line}{reason}")
        return "\n".join(lines)

    def _end(self) -> None:
        """Unwind every rank that still runs, so that no thread remains."""
        self.cancelled = True
        for rank in self.ranks:
            if rank is self.running and not rank.finished:  # it computes, and only an asynchronous exception ends it
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(rank.thread.ident or 0), ctypes.py_object(_Cancelled)
                )
            rank.go.put(None)
            with suppress(RuntimeError):  # a thread that was never started
                rank.thread.join(timeout=1.0)
