"""Record a rank program as a `Schedule`, so that it can be verified, counted, priced and drawn."""

from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import DTypeLike, NDArray

from dpbook.collectives.algebras.simulation import simulate
from dpbook.collectives.programs.comm import Program
from dpbook.collectives.programs.spmd import CommCall, Half, World
from dpbook.collectives.schedule.chunks import EvenSplit, FixedBounds, Placement
from dpbook.collectives.schedule.rounds import Message, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import ScheduleError, check_int


def record(
    program: Program,
    world: int,
    size: int,
    dtype: DTypeLike = np.float64,
    *,
    before: Placement | None = None,
    after: Placement | None = None,
    timeout: float = 30.0,
) -> Schedule:
    """Run ``program`` on ``world`` ranks with buffers of ``size`` random elements, and return its schedule.

    The chunks are the pieces between the boundaries that the program used. If those are the default ones the schedule
    is valid for every size, otherwise for ``size`` alone. ``before`` and ``after`` default to those of an all-reduce.
    Simulating the schedule gives the run's result bit for bit. Computation outside of messages (a sum by hand, a
    temporary array that is sent) raises `ScheduleError`. All errors of `run` are raised too.
    """
    check_int("world", world, 1)
    check_int("size", size, 1)
    start = np.random.default_rng(0).standard_normal((world, size)).astype(dtype)
    recorder = _Recorder(program, list(start.copy()), timeout)
    recorder.run()
    offsets = recorder.offsets(size)
    even = EvenSplit(len(offsets) - 1)
    schedule = Schedule(
        world,
        len(offsets) - 1,
        recorder.rounds(offsets),
        even if even(size, 1).tolist() == offsets else FixedBounds(tuple(offsets)),
        before,
        after,
        f"{getattr(program, '__name__', 'program')}(world={world})",
    )
    replayed = np.asarray(simulate(schedule, start).buffers)
    for rank, (ran, simulated) in enumerate(zip(recorder.buffers, replayed, strict=True)):
        if ran.tobytes() != simulated.tobytes():
            raise ScheduleError(
                f"{schedule.name}: the recorded messages do not lead to the result of rank {rank}; "
                "rounds cannot express overlapping slices in one sendrecv"
            )
    return schedule


class _Recorder(World):
    """A world that records the slices of all messages, and detects changes of buffers outside of calls."""

    def __init__(self, program: Program, buffers: list[NDArray[Any]], timeout: float) -> None:
        super().__init__(program, buffers, timeout)
        self.known = [buffer.copy() for buffer in buffers]  # each buffer with the effect of messages alone
        self.calls: list[CommCall] = []
        self.messages: list[tuple[CommCall, CommCall, int, int, bool]] = []  # sender, receiver, begin, end, reduce

    def on_call(self, call: CommCall) -> None:
        self._notice_changes(call.rank, f"before {call.text}, {call.line}")
        self.calls.append(call)

    def on_return(self, rank: int) -> None:
        self._notice_changes(rank, "before it returned")

    def on_match(self, sender: CommCall, receiver: CommCall, sent: Half, received: Half) -> None:
        begin, end = self._slice(sender, sent)
        if (begin, end) != self._slice(receiver, received):
            there = self._slice(receiver, received)
            raise ScheduleError(
                f"rank {sender.rank} sends elements {begin}..{end - 1} ({sender.line}), but rank {receiver.rank} "
                f"receives them into {there[0]}..{there[1] - 1} ({receiver.line}); "
                "a message of a schedule keeps its place"
            )
        self.known[receiver.rank][begin:end] = received.view
        if begin < end:
            self.messages.append((sender, receiver, begin, end, received.op == "sum"))

    def _notice_changes(self, rank: int, when: str) -> None:
        mine, known = self.buffers[rank], self.known[rank]
        if mine.tobytes() != known.tobytes():
            raise ScheduleError(
                f"rank {rank} changed its buffer outside of calls {when}; a schedule contains only messages: "
                "use recv with op='sum' to add"
            )

    def _slice(self, call: CommCall, half: Half) -> tuple[int, int]:
        """Return the elements of the rank's buffer that a view covers, as (begin, end)."""
        buffer = self.buffers[call.rank]
        if half.view.size == 0:
            return 0, 0
        low, high = byte_bounds(half.view)
        base, top = byte_bounds(buffer)
        begin, end = (low - base) // buffer.itemsize, (high - base) // buffer.itemsize
        inside = base <= low and high <= top and half.view.dtype == buffer.dtype
        if not (inside and end - begin == half.view.size and (end - begin == 1 or half.view.strides == buffer.strides)):
            raise ScheduleError(
                f"rank {call.rank} uses an array that is not a slice of its buffer in {call.text}, {call.line}; "
                "such a program runs, but cannot be expressed as a schedule"
            )
        return begin, end

    def offsets(self, size: int) -> list[int]:
        """Return all begins and ends of messages and of the buffer, sorted."""
        cuts = {0, size}
        for _, _, begin, end, _ in self.messages:
            cuts |= {begin, end}
        return sorted(cuts)

    def rounds(self, offsets: list[int]) -> list[Round]:
        """Return one round per clock tick; the round of a message is 1 + the larger of its two ranks' clocks."""
        clock = _clocks(self.calls, [(sender, receiver) for sender, receiver, *_ in self.messages])
        chunk_at = {begin: chunk for chunk, begin in enumerate(offsets)}
        ticks: defaultdict[int, list[Message]] = defaultdict(list)
        for sender, receiver, begin, end, reduce in self.messages:
            for chunk in range(chunk_at[begin], chunk_at[end]):
                ticks[clock[id(sender)]].append(Message(sender.rank, receiver.rank, chunk, reduce))
        return [Round.from_messages(sorted(ticks[tick])) for tick in sorted(ticks)]


def _clocks(calls: list[CommCall], messages: list[tuple[CommCall, CommCall]]) -> dict[int, int]:
    """Return the round of each call by its id. Calls joined by a message, or by the halves of a sendrecv, share one."""
    group = {id(call): id(call) for call in calls}

    def find(key: int) -> int:
        while group[key] != key:
            group[key] = group[group[key]]
            key = group[key]
        return key

    for sender, receiver in messages:
        group[find(id(sender))] = find(id(receiver))
    earlier: dict[int, set[int]] = {find(id(call)): set() for call in calls}
    last: dict[int, int] = {}
    for call in calls:
        mine = find(id(call))
        if call.rank in last:
            earlier[mine].add(last[call.rank])
        last[call.rank] = mine
    clock: dict[int, int] = {}
    try:
        for one in TopologicalSorter(earlier).static_order():
            clock[one] = 1 + max((clock[other] for other in earlier[one]), default=0)
    except CycleError as error:
        stuck = next(call for call in calls if find(id(call)) in error.args[1] and len(call.halves) == 2)
        raise ScheduleError(
            f"the two halves of {stuck.text} on rank {stuck.rank} ({stuck.line}) cannot share a round: "
            "what it receives depends on what it sends; such a program runs, but cannot be expressed as a schedule"
        ) from None
    return {id(call): clock[find(id(call))] for call in calls}
