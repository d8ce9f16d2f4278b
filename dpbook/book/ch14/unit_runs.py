"""Hooks of sharded units, written by hand, put through some steps: what they gave to whom, and in which order.

Everything goes in and comes out as plain data, so that whoever judges needs nothing of the hooks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm, run
from dpbook.core import InvalidArgument

Array = NDArray[Any]
Event = tuple[str, int, int, str]
"""What happened, the number of the collective or of the unit, and of a collective elements and dtype:

- ``("gather", 3, 40, "float16")``: the fourth gather of the step began, of a piece of 40 numbers; ``"gathered"``: it
  was waited for; ``"freed"``: its row was given back
- ``("reduce", 0, 120, "float32")``: the first reduction began; ``"reduced"``: it was waited for
- ``("forward", 2, 0, "")``, ``("backward", 2, 0, "")``: unit 2 computed; ``("elsewhere", 2, 0, "")``: not with weights
  in a gathered row; ``("finish", 0, 0, "")``
"""
Trial = Mapping[str, Any]
"""What is tried, as a dict: ``weights``, a float32 array for each unit; ``gradients``, float16, of shape (steps, ranks,
*shape of the unit) for each unit; ``rate`` of plain SGD."""


class Wire:
    """This rank's end: collectives that begin when they are called, and a ``log`` of what was done."""

    OFFERS = ("rank", "world", "all_gather", "reduce_scatter")

    def __init__(self, comm: Comm) -> None:
        self.rank, self.world = comm.rank, comm.world_size
        self.log: list[Event] = []
        self._comm = comm
        self._begun: list[Message] = []
        self._rows: list[Array] = []
        self._calls = {"gather": 0, "reduce": 0}

    def all_gather(self, piece: Array) -> "Message":
        """Begin to gather the pieces of all ranks, 1-D arrays of one length, into a row."""
        return self._begin("gather", piece, 1)

    def reduce_scatter(self, row: Array) -> "Message":
        """Begin to sum the rows of all ranks, in their dtype; of the sum this rank gets its piece."""
        return self._begin("reduce", row, self.world)

    def restart(self) -> None:
        """Empty the log and count collectives from 0 again."""
        self.log.clear()
        self._calls = dict.fromkeys(self._calls, 0)

    def note(self, what: str, number: int = 0) -> None:
        self.log.append((what, number, 0, ""))

    def compute(self, what: str, unit: int, weights: Array) -> Array:
        """A unit computes with weights; returns a copy of them as they are now."""
        if not isinstance(weights, np.ndarray):
            raise TypeError(f"an array of weights was expected, and {weights!r:.30} came: is a return missing?")
        if not any(np.shares_memory(weights, row) for row in self._rows):
            self.note("elsewhere", unit)
        self.note(what, unit)
        return weights.copy()

    def _begin(self, what: str, array: Array, pieces: int) -> "Message":
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.size % pieces:
            expected = "a 1-D array" + (f" of {pieces} equal pieces" if pieces > 1 else "")
            raise InvalidArgument("piece" if what == "gather" else "row", getattr(array, "shape", array), expected)
        number, self._calls[what] = self._calls[what], self._calls[what] + 1
        self.log.append((what, number, array.size, str(array.dtype)))
        self._begun.append(Message(self, what, number, array))
        return self._begun[-1]

    def complete(self, message: "Message") -> None:
        """Carry out what has begun, in that order, until ``message``: only then is its array read."""
        while message.result is None:
            first = self._begun.pop(0)
            everyone = self._exchange(first.array)
            if first.what == "gather":
                first.result = np.concatenate(everyone)
                self._rows.append(first.result)
            else:
                own = [row.reshape(self.world, -1)[self.rank] for row in everyone]
                first.result = np.add.reduce(own, dtype=first.array.dtype)

    def _exchange(self, array: Array) -> list[Array]:
        """The arrays of all ranks."""
        everyone = [np.empty_like(array) for _ in range(self.world)]
        everyone[self.rank][:] = array
        for shift in range(1, self.world):
            to, source = (self.rank + shift) % self.world, (self.rank - shift) % self.world
            self._comm.sendrecv(everyone[self.rank], to, everyone[source], source)
        return everyone


@dataclass(eq=False)
class Message:
    """A collective under way. Until it has been waited for, the array that it was given belongs to it."""

    OFFERS: ClassVar = ("wait", "free")

    wire: Wire = field(repr=False)
    what: str
    number: int
    array: Array = field(repr=False)
    result: Array | None = field(default=None, repr=False)
    waited: bool = False

    def wait(self) -> Array:
        """The row that was gathered, or this rank's piece of the sum. Waiting again gives the same array."""
        if not self.waited:
            self.waited = True
            self.wire.note("gathered" if self.what == "gather" else "reduced", self.number)
        self.wire.complete(self)
        assert self.result is not None
        return self.result

    def free(self) -> None:
        """Give the memory of a gathered row back: from now on others write there, and what one reads is NaN."""
        if self.what != "gather" or self.result is None or not self.waited:
            raise InvalidArgument("free", f"a {self.what} not waited for", "a gather that was waited for")
        self.result.fill(np.nan)
        self.wire.note("freed", self.number)


def train(hooks: Callable[..., Any], trial: Trial, wire: Wire) -> dict[str, Any]:
    """Train on this rank with ``hooks(weights, wire)``, by plain SGD on its ``shards``.

    Returns, for each step, ``logs``; ``used``, the weights with which each unit computed, forward units then backward
    ones in their order; ``found``, the pieces of the gradient that ``finish()`` returned; ``shards`` after the step.
    """
    units = hooks([weights.copy() for weights in trial["weights"]], wire)
    made: dict[str, list[Any]] = {"logs": [], "used": [], "found": [], "shards": [_copied(units.shards)]}
    order = range(len(trial["weights"]))
    for step in range(len(trial["gradients"][0])):
        wire.restart()
        used = [_forward(units, wire, unit) for unit in order]
        for unit in reversed(order):
            used.append(_backward(units, wire, unit, trial["gradients"][unit][step, wire.rank].copy()))
        wire.note("finish")
        found = units.finish()
        _check_pieces(found, units.shards)
        made["found"].append(_copied(found))
        for shard, gradient in zip(units.shards, found, strict=True):
            shard -= trial["rate"] * gradient
        made["logs"].append(list(wire.log))
        made["used"].append(used)
        made["shards"].append(_copied(units.shards))
    return made


def _forward(units: Any, wire: Wire, unit: int) -> Array:
    used = wire.compute("forward", unit, units.before_forward(unit))
    units.after_forward(unit)
    return used


def _backward(units: Any, wire: Wire, unit: int, gradient: Array) -> Array:
    used = wire.compute("backward", unit, units.before_backward(unit))
    units.after_backward(unit, gradient)
    return used


def _check_pieces(found: Any, shards: Sequence[Array]) -> None:
    """For each unit, in order, there is a piece as long as the rank's shard."""
    if found is None:
        raise TypeError("a list of arrays was expected, and None came: is a return missing?")
    sizes, got = [np.shape(shard) for shard in shards], [np.shape(piece) for piece in found]
    if got != sizes:
        raise InvalidArgument("what finish() returns", got, f"arrays of the shapes of the shards, {sizes}")


def _copied(arrays: Sequence[Array]) -> list[Array]:
    return [np.array(array) for array in arrays]


def in_turns(function: Callable[[Wire], Any], world: int) -> list[Any]:
    """Call ``function(wire)`` on ranks that take turns in this process, and return what each returned."""
    made: list[Any] = [None] * world

    def program(comm: Comm, x: Array) -> None:
        made[comm.rank] = function(Wire(comm))

    run(program, [np.empty(0)] * world)
    return made


def trained_in_turns(hooks: Callable[..., Any], trial: Trial) -> list[dict[str, Any]]:
    """`train` on ranks that take turns in this process; what each returned."""
    return in_turns(lambda wire: train(hooks, trial, wire), trial["gradients"][0].shape[1])


def train_on_this_rank(hooks: Callable[..., Any], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """`train` for each trial in turn, on a rank that is a process."""
    from dpbook.ranks import ProcessComm

    return [train(hooks, trial, Wire(ProcessComm())) for trial in trials]
