"""A wire for a rank in another process, which is handed arrays and keeps no log: the other side does."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpbook.book.ch10.wires import Event, Message, Wire
from dpbook.core import check_int


class FarWire(Wire):
    """Over an `End` in another process, which keeps the log; what is no message goes there with the next one."""

    def __init__(self, end: "End") -> None:
        super().__init__(end.rank, end.world)
        self._end = end

    def all_reduce(self, tensor: torch.Tensor) -> "Message":
        message = self._end.all_reduce(tensor.detach().numpy(), self._noted())

        def wait() -> torch.Tensor:
            return torch.from_numpy(message.wait(self._noted()))

        def note(again: bool) -> None:
            if again:  # the first time is noted where the message is
                wait()

        return Message(tensor, wait, note)

    def broadcast_all(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor, theirs in zip(tensors, self._end.broadcast_all([t.numpy() for t in tensors]), strict=True):
            tensor.copy_(torch.from_numpy(theirs))

    def restart(self) -> None:
        self.log.append(("restart", 0))

    def flush(self) -> None:
        """Nothing more will come."""
        self._end.note(self._noted())

    def _begin(self, operation: str, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: torch.from_numpy(self._end.broadcast(values.numpy()))

    def _noted(self) -> list[Event]:
        noted = list(self.log)
        self.log.clear()
        return noted


class End:
    """A wire for a rank that is elsewhere: arrays in place of tensors."""

    OFFERS = ("rank", "world", "broadcast", "broadcast_all", "all_reduce", "note")

    def __init__(self, wire: Wire) -> None:
        self.rank, self.world, self._wire = wire.rank, wire.world, wire
        self.logs: list[list[Event]] = []

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """What rank 0 has."""
        tensor = torch.tensor(array)
        self._wire.broadcast(tensor)
        return np.asarray(tensor)

    def broadcast_all(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """What rank 0 has of each."""
        return [self.broadcast(array) for array in arrays]

    def all_reduce(self, array: NDArray[Any], noted: Sequence[Event]) -> "FarMessage":
        """Begin to sum ``array``, as it is now."""
        self.note(noted)
        tensor = torch.tensor(array)
        return FarMessage(self, self._wire.all_reduce(tensor), tensor)

    def note(self, noted: Sequence[Event]) -> None:
        """Put into the log what is no message; with a "restart" a step begins, and a log with it."""
        for what, number in noted:
            if what == "restart":
                self._wire.log = []
                self._wire.restart()
                self.logs.append(self._wire.log)
            elif what not in ("sent", "waited", "waited again"):
                self._wire.log.append((str(what), check_int("number", number, 0)))


class FarMessage:
    """An all-reduce under way for a rank that is elsewhere."""

    OFFERS = ("wait",)

    def __init__(self, end: End, message: Message, tensor: torch.Tensor) -> None:
        self._end, self._message, self._tensor = end, message, tensor

    def wait(self, noted: Sequence[Event]) -> NDArray[Any]:
        """The sum."""
        self._end.note(noted)
        self._message.wait()
        return np.asarray(self._tensor)
