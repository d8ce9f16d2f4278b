"""Wires: a rank's connection to the other ranks for wrappers written by hand, with a log of its use.

Ranks are threads of this process, or processes over torch.distributed, with the same interface. In both, a message
carries the tensor's values at the time of the call, and its sum is available after the wait, not earlier. An answer
that is wrong for one kind of rank is therefore wrong for the other.

In sandboxed grading the answer's rank is in another process. Its `RemoteWire` sends arrays to a `WireEnd` in the
judge's process, which keeps the log.
"""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from dpbook.core import Deadlock, MessageError, check_int, check_one_of

Event = tuple[str, int]
"""An entry of a log: ``("sent", elements)``, ``("waited", message)`` with messages counted from 0, ``("backward",
place)`` when backward takes the factors of a layer, and others. ``("waited again", message)`` is another wait for a
message that was sent, and waited for, before the last `Wire.restart`."""

POLL_SECONDS = 0.5  # seconds after which a waiting thread wakes up, so that it can be interrupted
PROCESS_TIMEOUT = timedelta(seconds=20)


class Wire:
    """This rank's connection: ``broadcast`` and ``all_reduce``, and the ``log`` of the latter's messages."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.log: list[Event] = []
        self._calls = self._restarts = 0
        self.factors: NDArray[np.float64] = np.empty(0)
        """Factors of this rank's backward, (steps, micro-batches, layers, width); see `factors_of`."""
        self._taken: Counter[int] = Counter()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Give ``tensor`` the values that it has on rank 0, in place."""
        result = self._begin("broadcast", tensor.detach().clone())()
        with torch.no_grad():
            tensor.copy_(result)

    def factors_of(self, place: int) -> torch.Tensor:
        """Return the factors of the gradient of a layer's output, (width,), and log that backward has come there.

        Nothing behind the layer can be computed without them.
        """
        of_step = self.factors[self._restarts - 1]
        micro = self._taken[place]
        if micro >= len(of_step):
            raise MessageError(f"backward has come to layer {place + 1} before, in all micro-batches of this step")
        self._taken[place] += 1
        self.log.append(("backward", place))
        return torch.tensor(of_step[micro, place])

    def all_reduce(self, tensor: torch.Tensor) -> "PendingAllReduce":
        """Begin to sum ``tensor`` over all ranks; it holds the sum after a wait for the returned handle."""
        number, restarts, result = self._calls, self._restarts, self._begin("all_reduce", tensor.detach().clone())
        self.log.append(("sent", tensor.numel()))
        self._calls += 1

        def note(again: bool) -> None:
            if not again or self._restarts != restarts:
                self.log.append(("waited again" if again else "waited", number))

        return PendingAllReduce(tensor, result, note)

    def note(self, event: str, number: int = 0) -> None:
        """Add an event that is no message to the log."""
        self.log.append((event, number))

    def restart(self) -> None:
        """Begin a new log and count messages from 0 again."""
        self.log = []
        self._calls = 0
        self._taken.clear()
        self._restarts += 1

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin a collective, and return a function that waits for its result."""
        raise NotImplementedError


class PendingAllReduce:
    """An all-reduce under way; ``note`` is called at every wait, with True if it is not the first."""

    def __init__(self, tensor: torch.Tensor, result: Callable[[], torch.Tensor], note: Callable[[bool], None]) -> None:
        self._tensor, self._note = tensor, note
        self._result: Callable[[], torch.Tensor] | None = result

    def wait(self) -> None:
        """Return when the tensor holds the sum. A second wait does nothing."""
        self._note(self._result is None)
        if self._result is not None:
            with torch.no_grad():
                self._tensor.copy_(self._result())
            self._result = None


class ProcessWire(Wire):
    """Wire over the process group of torch.distributed."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        begin = partial(dist.broadcast, src=0) if operation == "broadcast" else dist.all_reduce
        work = begin(values, async_op=True)

        def result() -> torch.Tensor:
            work.wait(PROCESS_TIMEOUT)
            return values

        return result


def in_threads(function: Callable[[Wire], Any], world: int) -> list[Any]:
    """Call ``function(wire)`` in one thread per rank of this process, and return the results.

    Raises the first rank's error: `MessageError` if two ranks' messages of one number differ, `Deadlock` if a rank
    waits for a message that another does not send, because it has ended or because all ranks wait.
    """
    exchange = _Exchange(check_int("world", world, 1))
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            exchange.threads[rank] = threading.get_ident()
            results[rank] = function(_ThreadWire(rank, exchange))
        except BaseException as error:  # raised again below, in the caller's thread
            exchange.failures.append(error)
        finally:
            exchange.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        exchange.end(*range(world))  # so that no thread waits any longer
        raise
    if exchange.failures:
        raise exchange.failures[0]
    return results


class _Exchange:
    """Exchange of messages between threads: each rank's k-th message meets the others' k-th, as in real processes."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.changed = threading.Condition()
        self.slots: list[dict[int, tuple[str, torch.Tensor]]] = []
        self.threads: dict[int, int] = {}  # thread of each rank
        self.waiting: dict[int, int] = {}  # message that each thread waits for
        self.ended: set[int] = set()
        self.failures: list[BaseException] = []

    def end(self, *ranks: int) -> None:
        with self.changed:
            self.ended.update(ranks)
            self.changed.notify_all()

    def put(self, number: int, rank: int, operation: str, values: torch.Tensor) -> None:
        with self.changed:
            while len(self.slots) <= number:
                self.slots.append({})
            slot = self.slots[number]
            for other, (theirs, tensor) in slot.items():
                if (theirs, tensor.shape, tensor.dtype) != (operation, values.shape, values.dtype):
                    raise MessageError(
                        f"message {number + 1} of rank {rank} is {_described(operation, values)}, "
                        f"that of rank {other} {_described(theirs, tensor)}"
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
                    self.changed.wait(POLL_SECONDS)
            finally:
                del self.waiting[thread]
        operation, _ = slot[rank]
        tensors = [slot[r][1] for r in range(self.world)]
        return tensors[0] if operation == "broadcast" else torch.stack(tensors).sum(0)

    def _check_coming(self, number: int, rank: int) -> None:
        """Raise `Deadlock` if a rank that must send this message has ended, or if the threads of all ranks wait."""
        # No time limit is needed: on a busy machine a rank may compute for as long as it takes.
        missing = set(range(self.world)) - self.slots[number].keys()
        message = f"rank {rank} waits for message {number + 1}, which rank"
        if ended := missing & self.ended:
            raise Deadlock(f"{message} {min(ended)} does not send")
        wait = {thread for thread, waited in self.waiting.items() if len(self.slots[waited]) < self.world}
        if all(r in self.ended or self.threads.get(r) in wait for r in range(self.world)):
            raise Deadlock(f"{message} {min(missing)} does not send: every rank waits")


class _ThreadWire(Wire):
    def __init__(self, rank: int, exchange: _Exchange) -> None:
        super().__init__(rank, exchange.world)
        self._exchange, self._number = exchange, 0

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        # Two threads of a rank may send at once: numbering and putting a message is one step for the other ranks.
        with self._exchange.changed:
            number, self._number = self._number, self._number + 1
            self._exchange.put(number, self.rank, operation, values)
        return lambda: self._exchange.get(number, self.rank)


def _described(operation: str, values: torch.Tensor) -> str:
    return f"{operation} of {tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"


class RemoteWire(Wire):
    """Wire over a `WireEnd` in another process, which keeps the log and the factors."""

    def __init__(self, end: "WireEnd") -> None:
        super().__init__(end.rank, end.world)
        self._end = end

    def note(self, event: str, number: int = 0) -> None:
        self._end.note(event, number)

    def restart(self) -> None:
        self._end.restart()

    def all_reduce(self, tensor: torch.Tensor) -> "PendingAllReduce":
        message = self._end.all_reduce(tensor.detach().numpy())

        def wait() -> torch.Tensor:
            return torch.from_numpy(self._end.wait(message))

        def note(again: bool) -> None:
            if again:  # the other process notes the first wait itself
                wait()

        return PendingAllReduce(tensor, wait, note)

    def factors_of(self, place: int) -> torch.Tensor:
        return torch.from_numpy(self._end.factors_of(place))

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: torch.from_numpy(self._end.broadcast(values.numpy()))


class WireEnd:
    """Judge's end of a remote rank's wire, with arrays in place of tensors."""

    OFFERS = ("rank", "world", "broadcast", "factors_of", "all_reduce", "wait", "note", "restart")

    def __init__(self, wire: Wire) -> None:
        self.rank, self.world, self._wire = wire.rank, wire.world, wire
        self.logs: list[list[Event]] = []
        self._messages: list[tuple[PendingAllReduce, torch.Tensor]] = []

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return rank 0's values of an array."""
        tensor = torch.tensor(array)
        self._wire.broadcast(tensor)
        return np.asarray(tensor)

    def factors_of(self, place: int) -> NDArray[Any]:
        """Return the factors of a layer's gradient; so the log says when backward comes there, whoever asks."""
        return np.asarray(self._wire.factors_of(check_int("place", place, 0)))

    def all_reduce(self, array: NDArray[Any]) -> int:
        """Begin to sum the current values of ``array``, and return the number with which to wait for the sum."""
        tensor = torch.tensor(array)
        self._messages.append((self._wire.all_reduce(tensor), tensor))
        return len(self._messages) - 1

    def wait(self, message: int) -> NDArray[Any]:
        """Wait for the sum of a message and return it."""
        pending, tensor = self._messages[check_int("message", message, 0, len(self._messages) - 1)]
        pending.wait()
        return np.asarray(tensor)

    def note(self, event: str, number: int = 0) -> None:
        """Add an event that is no message to the log."""
        check_one_of("event", event, ("micro", "finish"))
        self._wire.note(event, check_int("number", number, 0))

    def restart(self) -> None:
        """Begin a step, with a new log."""
        self._wire.restart()
        self.logs.append(self._wire.log)
