"""Units of fully sharded training: hooks written by hand put through some steps, and layers cut into units.

All arguments and results of a trial are plain data, so a judge needs nothing of the hooks. `cut_step` simulates the
step of a cut, and `allocated` measures the memory of a real one.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Comm, Link
from dpbook.collectives.programs import call_on_ranks, exchange
from dpbook.core import InvalidArgument, plural
from dpbook.overlap import ShardedStep, Sharding, Unit, Wires, simulate_sharded

Array = NDArray[Any]
Event = tuple[str, int, int, str]
"""Kind of event, number of the collective or of the unit, and for collectives elements and dtype:

- ``("gather", 3, 40, "float16")``: the fourth gather of the step began, with a piece of 40 numbers. ``"gathered"``: the
  rank waited for it. ``"freed"``: its row was given back.
- ``("reduce", 0, 120, "float32")``: the first reduction began. ``"reduced"``: the rank waited for it.
- ``("forward", 2, 0, "")``, ``("backward", 2, 0, "")``: unit 2 computed. ``("elsewhere", 2, 0, "")``: its weights did
  not lie in a gathered row.
- ``("finish", 0, 0, "")``: the step's ``finish()`` is called.
"""
Trial = Mapping[str, Any]
"""Input of a trial: ``weights``, a float32 array for each unit; ``gradients``, a float16 array (steps, ranks, *shape of
the unit) for each unit; and the ``rate`` of plain SGD."""


UNIT_SHAPES = ((3, 4), (7,), (2, 5), (1,), (4, 2), (3, 3))
LEARNING_RATE = 2.0**-10


@dataclass(frozen=True)
class HookTrial:
    """Weights of units, and gradients of each step and rank: see `Trial`."""

    weights: list[Array]
    gradients: list[Array]
    world: int

    @classmethod
    def draw(cls, rng: np.random.Generator, world: int) -> "HookTrial":
        """Draw two steps with gradients that are whole numbers, whose sums fp32 holds exactly and fp16 does not."""
        shapes = [UNIT_SHAPES[k] for k in rng.permutation(len(UNIT_SHAPES))[: int(rng.integers(4, 7))]]
        weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        gradients = []
        for shape in shapes:
            small = 2 * rng.integers(0, 50, (2, world, *shape)) + 1
            small[:, 0] += 2 * (1024 - small[:, 0] // 2) - 1  # rank 0 has 2048
            gradients.append(small.astype(np.float16))
        return cls(weights, gradients, world)

    @property
    def arguments(self) -> dict[str, Any]:
        """The trial as plain data."""
        return {"weights": self.weights, "gradients": self.gradients, "rate": LEARNING_RATE}

    @property
    def unit_count(self) -> int:
        return len(self.weights)

    @property
    def order(self) -> list[int]:
        """Units in the order of their computation: forward, then backward."""
        return [*range(self.unit_count), *reversed(range(self.unit_count))]

    def piece(self, unit: int) -> int:
        """Return the elements of a rank's piece."""
        return -(-self.weights[unit].size // self.world)

    def where(self, rank: int, step: int, place: int) -> str:
        ranks, part = plural(self.world, "rank"), "forward" if place < self.unit_count else "backward"
        return f"{ranks}, step {step + 1} of rank {rank}, {part} of unit {self.order[place]} (of {self.unit_count})"


class CollectiveWire:
    """This rank's connection: collectives that begin when they are called, and a ``log`` of events."""

    OFFERS = ("rank", "world", "all_gather", "reduce_scatter")

    def __init__(self, comm: Comm) -> None:
        self.rank, self.world = comm.rank, comm.world_size
        self.log: list[Event] = []
        self._comm = comm
        self._begun: list[PendingCollective] = []
        self._rows: list[Array] = []
        self._calls = {"gather": 0, "reduce": 0}

    def all_gather(self, piece: Array) -> "PendingCollective":
        """Begin to gather the pieces of all ranks, 1-D arrays of one length, into a row."""
        return self._begin("gather", piece, 1)

    def reduce_scatter(self, row: Array) -> "PendingCollective":
        """Begin to sum the rows of all ranks, in their dtype; this rank gets its piece of the sum."""
        return self._begin("reduce", row, self.world)

    def restart(self) -> None:
        """Empty the log and count collectives from 0 again."""
        self.log.clear()
        self._calls = dict.fromkeys(self._calls, 0)

    def note(self, event: str, number: int = 0) -> None:
        """Add an event that is no collective to the log."""
        self.log.append((event, number, 0, ""))

    def compute(self, event: str, unit: int, weights: Array) -> Array:
        """Note that a unit computes with these weights, and return a copy of them."""
        if not isinstance(weights, np.ndarray):
            raise TypeError(f"expected an array of weights, got {weights!r:.30}: is a return missing?")
        if not any(np.shares_memory(weights, row) for row in self._rows):
            self.note("elsewhere", unit)
        self.note(event, unit)
        return weights.copy()

    def _begin(self, operation: str, array: Array, pieces: int) -> "PendingCollective":
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.size % pieces:
            expected = "a 1-D array" + (f" of {pieces} equal pieces" if pieces > 1 else "")
            raise InvalidArgument("piece" if operation == "gather" else "row", getattr(array, "shape", array), expected)
        number, self._calls[operation] = self._calls[operation], self._calls[operation] + 1
        self.log.append((operation, number, array.size, str(array.dtype)))
        self._begun.append(PendingCollective(self, operation, number, array))
        return self._begun[-1]

    def complete(self, message: "PendingCollective") -> None:
        """Execute the pending collectives in order, up to ``message``, whose array is read only then."""
        while message.result is None:
            first = self._begun.pop(0)
            arrays = exchange(self._comm, first.array)
            if first.operation == "gather":
                first.result = np.concatenate(arrays)
                self._rows.append(first.result)
            else:
                pieces = [row.reshape(self.world, -1)[self.rank] for row in arrays]
                first.result = np.add.reduce(pieces, dtype=first.array.dtype)


@dataclass(eq=False)
class PendingCollective:
    """A collective under way. It owns the array of its call until it has been waited for."""

    OFFERS: ClassVar = ("wait", "free")

    wire: CollectiveWire = field(repr=False)
    operation: str
    number: int
    array: Array = field(repr=False)
    result: Array | None = field(default=None, repr=False)
    waited: bool = False

    def wait(self) -> Array:
        """Return the gathered row, or this rank's piece of the sum. A second wait returns the same array."""
        if not self.waited:
            self.waited = True
            self.wire.note("gathered" if self.operation == "gather" else "reduced", self.number)
        self.wire.complete(self)
        assert self.result is not None
        return self.result

    def free(self) -> None:
        """Give the memory of a gathered row back: its values become NaN, as if others wrote there."""
        if self.operation != "gather" or self.result is None or not self.waited:
            raise InvalidArgument("free", f"a {self.operation} not waited for", "a gather that was waited for")
        self.result.fill(np.nan)
        self.wire.note("freed", self.number)


def train(hooks: Callable[..., Any], trial: Trial, wire: CollectiveWire) -> dict[str, Any]:
    """Train on this rank with ``hooks(weights, wire)``, by plain SGD on its ``shards``.

    Returns lists over the steps: ``logs``; ``used``, the weights with which each unit computed, in forward and then in
    backward; ``found``, the pieces of the gradient that ``finish()`` returned; and ``shards``, at the start and after
    each step.
    """
    units = hooks([weights.copy() for weights in trial["weights"]], wire)
    record: dict[str, list[Any]] = {"logs": [], "used": [], "found": [], "shards": [_copied(units.shards)]}
    order = range(len(trial["weights"]))
    for step in range(len(trial["gradients"][0])):
        wire.restart()
        used = []
        for unit in order:
            used.append(wire.compute("forward", unit, units.before_forward(unit)))
            units.after_forward(unit)
        for unit in reversed(order):
            used.append(wire.compute("backward", unit, units.before_backward(unit)))
            units.after_backward(unit, trial["gradients"][unit][step, wire.rank].copy())
        wire.note("finish")
        gradients = units.finish()
        _check_pieces(gradients, units.shards)
        record["found"].append(_copied(gradients))
        for shard, gradient in zip(units.shards, gradients, strict=True):
            shard -= trial["rate"] * gradient
        record["logs"].append(list(wire.log))
        record["used"].append(used)
        record["shards"].append(_copied(units.shards))
    return record


def _check_pieces(pieces: Any, shards: Sequence[Array]) -> None:
    """Raise unless there is a piece for each unit, in order, of the shape and the dtype of the rank's shard."""
    if pieces is None:
        raise TypeError("expected a list of arrays, got None: is a return missing?")
    forms, got = ([f"{np.shape(each)} {np.asarray(each).dtype}" for each in arrays] for arrays in (shards, pieces))
    if got != forms:
        raise InvalidArgument("the result of finish()", ", ".join(got), f"arrays like the shards, {', '.join(forms)}")


def _copied(arrays: Sequence[Array]) -> list[Array]:
    return [np.array(array) for array in arrays]


def in_turns(function: Callable[[CollectiveWire], Any], world: int) -> list[Any]:
    """Call ``function(wire)`` on ranks that take turns in this process, and return what each returned."""
    return call_on_ranks(lambda comm: function(CollectiveWire(comm)), world)


def trained_in_turns(hooks: Callable[..., Any], trial: Trial) -> list[dict[str, Any]]:
    """Call `train` on ranks that take turns in this process, and return each rank's record."""
    return in_turns(lambda wire: train(hooks, trial, wire), trial["gradients"][0].shape[1])


def train_on_this_rank(hooks: Callable[..., Any], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Call `train` for each trial in turn, on a rank that is a process."""
    from dpbook.ranks import ProcessComm

    return [train(hooks, trial, CollectiveWire(ProcessComm())) for trial in trials]


SHARDING = Sharding(3, shards=8)
LINK = Link(3e-4, 4e9)
Groups = Sequence[Sequence[int]]


class LayerCost(NamedTuple):
    """Costs of a layer: seconds of forward and backward, number of parameters, bytes of activations."""

    forward: float
    backward: float
    parameters: int
    activations: int


def sample_layers(count: int, seed: int) -> list[LayerCost]:
    """Draw layers of very different sizes."""
    draw = np.random.default_rng(seed)
    sizes = 100_000 * draw.integers(1, 20, count)
    forward = 3e-9 * sizes * draw.uniform(0.5, 1.5, count)
    activations = 100_000 * draw.integers(1, 10, count)
    columns = forward.tolist(), (2 * forward).tolist(), sizes.tolist(), activations.tolist()
    return [LayerCost(*costs) for costs in zip(*columns, strict=True)]


def cut_step(layers: Sequence[LayerCost], groups: Groups) -> ShardedStep:
    """Simulate a step of layers cut into units: ZeRO-3 on 8 ranks, fp32 and Adam, one unit gathered ahead.

    Args:
        layers: in the order of the forward pass.
        groups: for each unit the indices of its layers; together 0, 1, 2, … in order.

    Raises:
        InvalidArgument: ``groups`` is no cut of the layers.
    """
    if [index for group in groups for index in group] != list(range(len(layers))) or not all(groups):
        raise InvalidArgument("groups", groups, f"lists of neighbours that hold 0 to {len(layers) - 1} in order")
    units = []
    for group in groups:
        costs = LayerCost(*map(sum, zip(*(layers[index] for index in group), strict=True)))
        name = f"{group[0]}–{group[-1]}"
        units.append(Unit(name, costs.forward, costs.backward, costs.parameters, activations=costs.activations))
    return simulate_sharded(units, SHARDING, Wires.rings(SHARDING, LINK))


def allocated(step: Callable[[], object]) -> int:
    """Return the peak of the bytes that ``step`` allocates on the CPU, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # memory freed by the collector during the step would make the peak look lower
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
    finally:
        gc.enable() if collects else None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)
