"""The event loop of the simulated step: it runs operations and collectives in the order in which they end.

Three clocks run side by side: real time; computation, which slows down while bytes move; and the wire, which slows
down while several collectives share it. The end of an operation or collective is a moment on one of these clocks. It
stays valid when the rates change, so every event is handled once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from dpbook.overlap.timeline.spans import Kind, Span

ROUNDING = 1e-12
"""Seconds: a shorter wait is a rounding error of the clocks."""


class Operation(NamedTuple):
    """A computation that every rank runs, after the operations before it and the first ``needs`` collectives.

    It takes ``seconds`` on a rank whose factor is 1, while no collective runs. The CPU has launched it at ``launched``.
    """

    name: str
    seconds: float
    needs: int
    launched: float


class CollectiveCall(NamedTuple):
    """A collective: a latency that other collectives do not change, then a transfer that shares the wire, in seconds.

    The end of operation ``after`` lets it start; that is at least the ``after`` of the previous call. Operation
    ``completed`` (default: ``after``) completes the gradients that it carries.
    """

    name: str
    latency: float
    transfer: float
    after: int
    completed: int | None = None


class _Clock:
    def __init__(self) -> None:
        self.now, self.rate = 0.0, 1.0
        self.due: list[tuple[float, int, Callable[[int], None], int]] = []


class Engine:
    """Simulation of ``operations`` on every rank and ``calls`` between all of them; `run` returns the spans.

    Computation takes longer by the factor of its rank, one of ``factors``, and by ``contention`` while a collective
    runs. ``streams`` collectives may run at once.
    """

    def __init__(
        self, operations: Sequence[Operation], calls: Sequence[CollectiveCall], factors: Sequence[float],
        contention: float = 1.0, streams: int = 1,
    ) -> None:  # fmt: skip
        self.operations, self.calls, self.factors, self.contention = operations, calls, factors, contention
        self.lanes = ["communication", *(f"communication {s + 2}" for s in range(streams - 1))]
        self.real, self.computation, self.wire = self.clocks = _Clock(), _Clock(), _Clock()
        self.spans: list[Span] = []
        self.serial = 0
        self.position = [0] * len(factors)  # of each rank, in the operations
        self.started = [0.0] * len(factors)
        self.ended = [[0.0] * len(operations) for _ in factors]  # of each operation on each rank
        self.blocked: list[int] = []  # ranks whose next operation needs collectives that still run
        self.released: list[list[int]] = [[] for _ in operations]
        for index, call in enumerate(calls):
            self.released[call.after].append(index)
        self.arrived: list[dict[int, float]] = [{} for _ in calls]
        self.next_call = self.finished = self.running = self.moving = 0
        self.free = deque(range(streams))
        self.freed = [0.0] * streams
        self.begun: dict[int, tuple[int, float]] = {}  # the stream and start of each running collective

    def run(self) -> list[Span]:
        """Run all operations and calls to their end, and return their spans."""
        for rank in range(len(self.factors)):
            self._next(rank)
        while due := [clock for clock in self.clocks if clock.due]:
            first, wait = due[0], (due[0].due[0][0] - due[0].now) / due[0].rate
            for clock in due[1:]:
                other = (clock.due[0][0] - clock.now) / clock.rate
                if other < wait:
                    first, wait = clock, other
            moment, _, action, argument = heappop(first.due)
            if wait > 0:  # rounding may leave a moment just behind
                for clock in self.clocks:
                    clock.now += wait * clock.rate
                first.now = moment
            action(argument)
        return self.spans

    def _schedule(self, clock: _Clock, moment: float, action: Callable[[int], None], argument: int) -> None:
        self.serial += 1  # events at equal moments run in the order in which they were scheduled
        heappush(clock.due, (moment, self.serial, action, argument))

    def _record(self, name: str, rank: int, lane: str, kind: Kind, start: float, ready: float | None = None) -> None:
        if self.real.now > start:
            self.spans.append(Span(name, rank, lane, kind, start, self.real.now, ready))

    def _ready(self, call: CollectiveCall, rank: int) -> float:
        return self.ended[rank][call.after if call.completed is None else call.completed]

    def _next(self, rank: int) -> None:
        """Start the next operation of ``rank``, or note the collectives or the launch that it waits for."""
        index = self.position[rank]
        if index == len(self.operations):
            return
        operation = self.operations[index]
        if operation.needs > self.finished:
            self.blocked.append(rank)
        elif operation.launched > self.real.now:
            self._schedule(self.real, operation.launched, self._begin, rank)
        else:
            self._begin(rank)

    def _begin(self, rank: int) -> None:
        self.started[rank] = self.real.now
        seconds = self.operations[self.position[rank]].seconds * self.factors[rank]
        self._schedule(self.computation, self.computation.now + seconds, self._end, rank)

    def _end(self, rank: int) -> None:
        index = self.position[rank]
        self._record(self.operations[index].name, rank, "compute", "computation", self.started[rank])
        self.ended[rank][index] = self.real.now
        self.position[rank] += 1
        for call in self.released[index]:
            self.arrived[call][rank] = self.real.now
        if self.released[index]:
            self._start_calls()
        self._next(rank)

    def _start_calls(self) -> None:
        """Start the next collectives, in order, while a stream is free and every rank has arrived."""
        while self.free and self.next_call < len(self.calls):
            call, arrived = self.calls[self.next_call], self.arrived[self.next_call]
            if len(arrived) < len(self.factors):
                return
            stream = self.free.popleft()
            for rank, moment in arrived.items():
                waits_from = max(moment, self.freed[stream])
                if self.real.now - waits_from > ROUNDING:
                    self._record(call.name, rank, self.lanes[stream], "wait", waits_from, self._ready(call, rank))
            self.begun[self.next_call] = stream, self.real.now
            self.running += 1
            self.computation.rate = 1 / self.contention
            self._schedule(self.real, self.real.now + call.latency, self._transfer, self.next_call)
            self.next_call += 1

    def _transfer(self, call: int) -> None:
        self.moving += 1
        self.wire.rate = 1 / self.moving
        self._schedule(self.wire, self.wire.now + self.calls[call].transfer, self._finish, call)

    def _finish(self, call: int) -> None:
        (stream, start), ended = self.begun.pop(call), self.calls[call]
        for rank in range(len(self.factors)):
            self._record(ended.name, rank, self.lanes[stream], "communication", start, self._ready(ended, rank))
        self.free.append(stream)
        self.freed[stream] = self.real.now
        self.moving -= 1
        self.wire.rate = 1 / max(self.moving, 1)
        self.running -= 1
        if not self.running:
            self.computation.rate = 1.0
        self.finished += 1
        blocked, self.blocked = self.blocked, []
        for rank in blocked:
            self._next(rank)
        self._start_calls()
