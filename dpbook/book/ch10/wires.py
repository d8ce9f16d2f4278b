"""What a wrapper written by hand is given to reach the other ranks, with a log of when it used it.

Two kinds with one interface: ranks that are threads of this process, at once and without sockets, and ranks that are
processes, over torch.distributed. In both a message is what was in the tensor when it was handed over, and its sum is
there when it has been waited for, not before: what is wrong with one kind of rank is wrong with the other.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import Deadlock, MessageError, check_int

Event = tuple[str, int]
"""``("sent", elements)``, ``("waited", message)``, the messages counted from 0, and whatever else is put into a log.

``("waited again", message)``: once more for a message that was sent, and waited for, before the last `Wire.restart`.
"""

LOOK = 0.5
"""Seconds after which a thread that waits runs for a moment: only then can it be interrupted."""
GIVE_UP = timedelta(seconds=20)


class Wire:
    """This rank's end: ``broadcast`` and ``all_reduce``, and the ``log`` of messages of the latter."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.log: list[Event] = []
        self._calls = self._restarts = 0

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give ``tensor`` the values that it has on rank 0, in place."""
        result = self._begin("broadcast", tensor.detach().clone())()
        with torch.no_grad():
            tensor.copy_(result)

    def broadcast_all(self, tensors: Sequence[torch.Tensor]) -> None:
        """`broadcast` of each."""
        for tensor in tensors:
            self.broadcast(tensor)

    def all_reduce(self, tensor: torch.Tensor) -> "Message":
        """Begin to sum ``tensor`` over all ranks; the sum is in it once the handle has been waited for."""
        number, restarts, result = self._calls, self._restarts, self._begin("all_reduce", tensor.detach().clone())
        self.log.append(("sent", tensor.numel()))
        self._calls += 1

        def note(again: bool) -> None:
            if not again or self._restarts != restarts:
                self.log.append(("waited again" if again else "waited", number))

        return Message(tensor, result, note)

    def restart(self) -> None:
        """Empty the log and count messages from 0 again."""
        self.log.clear()
        self._calls = 0
        self._restarts += 1

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin a collective; what is returned waits for its result."""
        raise NotImplementedError


class Message:
    """An all-reduce under way."""

    def __init__(self, tensor: torch.Tensor, result: Callable[[], torch.Tensor], note: Callable[[bool], None]) -> None:
        """``note`` is told of every wait, and whether it is one more."""
        self._tensor, self._note = tensor, note
        self._result: Callable[[], torch.Tensor] | None = result

    def wait(self) -> None:
        """Return when the sum is there. Waiting again does nothing."""
        self._note(self._result is None)
        if self._result is not None:
            with torch.no_grad():
                self._tensor.copy_(self._result())
            self._result = None


class ProcessWire(Wire):
    """Over the process group of torch.distributed."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        begin = partial(dist.broadcast, src=0) if operation == "broadcast" else dist.all_reduce
        work = begin(values, async_op=True)

        def result() -> torch.Tensor:
            work.wait(GIVE_UP)
            return values

        return result


def in_threads(function: Callable[[Wire], Any], world: int) -> list[Any]:
    """Call ``function(wire)`` in one thread per rank of this process, and return what each returned.

    A rank has left when its thread ends, and waits when that does: others that it starts use no other rank's wire.
    Raises what the first rank to fail raised: `MessageError` where two ranks' messages of one number are not alike,
    `Deadlock` where a rank waits for a message that another does not send, as it has ended or all of them wait.
    """
    meeting = _Meeting(check_int("world", world, 1))
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            meeting.come(rank)
            results[rank] = function(_ThreadWire(rank, meeting))
        except BaseException as error:  # raised again below, where the caller is
            meeting.failures.append(error)
        finally:
            meeting.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        meeting.close()
        raise
    if meeting.failures:
        raise meeting.failures[0]
    return results


class _Meeting:
    """Where the messages of all ranks meet: the k-th of one rank with the k-th of the others, as in real processes."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.changed = threading.Condition()
        self.slots: list[dict[int, tuple[str, torch.Tensor]]] = []
        self.threads: dict[int, int] = {}  # in which each rank runs
        self.waiting: dict[int, int] = {}  # the message that each thread waits for
        self.left: set[int] = set()
        self.failures: list[BaseException] = []

    def come(self, rank: int) -> None:
        """This thread runs a rank."""
        with self.changed:
            self.threads[rank] = threading.get_ident()

    def close(self) -> None:
        """Nobody waits for the ranks any more."""
        with self.changed:
            self.left.update(range(self.world))
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()

    def put(self, number: int, rank: int, operation: str, values: torch.Tensor) -> None:
        with self.changed:
            while len(self.slots) <= number:
                self.slots.append({})
            slot = self.slots[number]
            for other, (theirs, held) in slot.items():
                if (theirs, held.shape, held.dtype) != (operation, values.shape, values.dtype):
                    raise MessageError(
                        f"message {number + 1} of rank {rank} is {_told(operation, values)}, "
                        f"that of rank {other} {_told(theirs, held)}"
                    )
            slot[rank] = operation, values
            self.changed.notify_all()

    def get(self, number: int, rank: int) -> torch.Tensor:
        slot, thread = self.slots[number], threading.get_ident()
        with self.changed:
            self.waiting[thread] = number
            try:
                while len(slot) < self.world:
                    self._check_coming(number, rank)
                    self.changed.wait(LOOK)
            finally:
                del self.waiting[thread]
        operation, _ = slot[rank]
        tensors = [slot[r][1] for r in range(self.world)]
        return tensors[0] if operation == "broadcast" else torch.stack(tensors).sum(0)

    def _check_coming(self, number: int, rank: int) -> None:
        """Raise `Deadlock` where a rank that is to send this message has left, or all ranks wait.

        That needs no clock: on a busy machine a rank may work for as long as it takes.
        """
        missing = set(range(self.world)) - self.slots[number].keys()
        said = f"rank {rank} waits for message {number + 1}, which rank"
        if gone := missing & self.left:
            raise Deadlock(f"{said} {min(gone)} does not send")
        if self._all_wait():
            raise Deadlock(f"{said} {min(missing)} does not send: every rank waits")

    def _all_wait(self) -> bool:
        """Whether the thread of every rank that has not left waits for a message that is not complete."""
        wait = {thread for thread, number in self.waiting.items() if len(self.slots[number]) < self.world}
        return all(rank in self.left or self.threads.get(rank) in wait for rank in range(self.world))


class _ThreadWire(Wire):
    def __init__(self, rank: int, meeting: _Meeting) -> None:
        super().__init__(rank, meeting.world)
        self._meeting, self._number = meeting, 0

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        # Two threads of a rank may send at once: no message has a number that the others do not see.
        with self._meeting.changed:
            number, self._number = self._number, self._number + 1
            self._meeting.put(number, self.rank, operation, values)
        return lambda: self._meeting.get(number, self.rank)


def _told(operation: str, values: torch.Tensor) -> str:
    return f"{operation} of {tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
