"""Simulated training steps as `Timeline`, the class that traces are read into, and a search for the best cap."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_each, check_float, check_int, check_type, milliseconds, plural
from dpbook.overlap.buckets import Plan, Tensor, plan
from dpbook.overlap.engine import CollectiveCall, Engine, Operation
from dpbook.overlap.layers import Layer, Price, Strategy, bucketed, tensors_of
from dpbook.overlap.timeline.spans import Span, Timeline


def simulate_step(
    layers: Sequence[Layer],
    sync: Strategy | Plan,
    price: Price,
    *,
    accumulation: int = 1,
    no_sync: bool = True,
    factors: Sequence[float] = (1.0,),
    contention: float = 1.0,
    streams: int = 1,
    kernel_launch: float = 0.0,
    optimizer: float = 0.0,
) -> Timeline:
    """Simulate a step: forward, backward with its gradients synced, optimizer.

    Gradients become ready from the last layer to the first. A bucket is launched when its last gradient is ready and
    the buckets before it are launched. A collective starts when every rank has launched it; until then the streams of
    the earlier ranks wait.

    Args:
        layers: layers in the order of forward, each with its tensors and the seconds of one micro-batch.
        sync: strategy, or a plan, which means `bucketed` with this plan.
        price: seconds of one collective of the whole world, as a function of its bytes.
        accumulation: micro-batches in a step.
        no_sync: whether only the last micro-batch is synced. If every one is, the next waits for the sync to end.
        factors: for each simulated rank, the factor by which its computation takes longer, such as 1.5 for a straggler.
            If all ranks are equal, one rank represents them.
        contention: factor by which computation takes longer while a collective runs; 1 means no contention.
        streams: number of collectives that may run at once. They share the bandwidth. The latency, which they do not
            share, is ``price(0)``.
        kernel_launch: seconds of CPU before each layer's forward, backward and the optimizer.
        optimizer: seconds of computation, after the last collective.

    Returns a timeline from 0 to the end of the step, with the lanes "compute", "communication" (the second stream is
    "communication 2") and, where launches cost anything, "launch". Raises `InvalidArgument` if an argument is out of
    its range, or the plan is not one of these layers' tensors.
    """
    layers = check_each("layers", layers, Layer)
    strategy = bucketed(sync) if isinstance(sync, Plan) else check_type("sync", sync, Strategy, "a Plan or a Strategy")
    if strategy.plan is not None and strategy.plan.tensors != tensors_of(layers):
        raise InvalidArgument("sync", sync, "a plan of the tensors of these layers, tensors_of(layers)")
    for name, seconds in {"kernel_launch": kernel_launch, "optimizer": optimizer}.items():
        check_float(name, seconds, minimum=0)
    if not isinstance(factors, Sequence) or not factors:
        raise InvalidArgument("factors", factors, "a factor for each rank, one or more")
    check_int("accumulation", accumulation, 1)
    check_int("streams", streams, 1)
    program = _Program(kernel_launch, _checked(price, streams > 1))
    for micro_batch in range(accumulation):
        program.forward(layers)
        last = micro_batch == accumulation - 1
        program.backward(layers, strategy if last or not no_sync else None)
    if optimizer:
        program.operation("optimizer", optimizer)
    engine = Engine(
        program.operations,
        program.calls,
        [check_float(f"factors[{rank}]", factor, above=0) for rank, factor in enumerate(factors)],
        check_float("contention", contention, minimum=1),
        streams,
    )
    spans = engine.run()
    spans += [launch._replace(rank=rank) for rank in range(len(factors)) for launch in program.launches]
    return Timeline(tuple(spans), (0.0, max((span.end for span in spans), default=0.0)))


@dataclass
class _Program:
    """Operations and collectives in the order in which the CPU launches them."""

    kernel_launch: float
    price: Callable[[int], tuple[float, float]]
    operations: list[Operation] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
    launches: list[Span] = field(default_factory=list)
    now: float = 0.0

    def operation(self, name: str, seconds: float, needs: int | None = None) -> None:
        before = self.now
        self.now += self.kernel_launch
        if self.kernel_launch:
            self.launches.append(Span(name, 0, "launch", "launch", before, self.now))
        self.operations.append(Operation(name, seconds, len(self.calls) if needs is None else needs, self.now))

    def forward(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            self.operation(f"forward {layer.name}", layer.forward)

    def backward(self, layers: Sequence[Layer], strategy: Strategy | None) -> None:
        """Launch the backward of each layer, each followed by the buckets that it completes."""
        before = len(self.calls)  # backward does not wait for the calls of its own micro-batch
        sent, ended = _sent(layers, strategy), {}
        for index in range(len(layers) - 1, -1, -1):
            self.operation(f"backward {layers[index].name}", layers[index].backward, before)
            ended[index] = len(self.operations) - 1
            for number, nbytes, full in sent.get(index, ()):
                self.call(f"all-reduce {number}", nbytes, ended[full])

    def call(self, name: str, nbytes: int, completed: int) -> None:
        latency, transfer = self.price(nbytes)
        self.calls.append(CollectiveCall(name, latency, transfer, len(self.operations) - 1, completed))


def _sent(layers: Sequence[Layer], strategy: Strategy | None) -> dict[int, list[tuple[int, int, int]]]:
    """Return the buckets launched after the backward of each layer, as (number, bytes, layer that completes it)."""
    if strategy is None or strategy.plan is None:
        return {}
    owner = [index for index, layer in enumerate(layers) for _ in layer.tensors]
    full = [min(owner[t] for t in group) for group in strategy.plan.groups]  # backward reaches layer 0 last
    after = accumulate(full, min) if strategy.overlap else [0] * len(full)  # never before the bucket before it
    sent: dict[int, list[tuple[int, int, int]]] = {}
    for number, (layer, nbytes, last) in enumerate(zip(after, strategy.plan.nbytes.tolist(), full, strict=True), 1):
        sent.setdefault(layer, []).append((number, nbytes, last))
    return sent


def _checked(price: Price, split: bool) -> Callable[[int], tuple[float, float]]:
    """Return a price that checks its times, as (latency, transfer) in seconds; unless ``split``, the latency is 0."""
    if not callable(price):
        raise InvalidArgument("price", price, "a function of bytes that returns seconds")
    known: dict[int, float] = {}

    def seconds(nbytes: int) -> float:
        if nbytes not in known:
            known[nbytes] = check_float(f"price({nbytes})", price(nbytes), minimum=0)
        return known[nbytes]

    def latency_and_transfer(nbytes: int) -> tuple[float, float]:
        latency = min(seconds(0), seconds(nbytes)) if split else 0.0
        return latency, seconds(nbytes) - latency

    return latency_and_transfer


MAX_TRIED_PLANS = 256
"""Limit of distinct plans up to which `best_cap` tries every one."""
GRID_POINTS = 32
"""Caps of a grid, evenly spaced in their logarithm; beyond the limit `best_cap` tries two grids."""


@dataclass(frozen=True, eq=False)
class CapSweep:
    """Simulated steps at several ``caps`` in bytes; all arrays have shape (n,) and are sorted by cap.

    ``calls`` counts collectives per sync; ``durations`` of steps and ``exposed`` communication are in seconds.
    """

    caps: NDArray[np.int64]
    calls: NDArray[np.int64]
    durations: NDArray[np.float64]
    exposed: NDArray[np.float64]

    @property
    def best(self) -> int:
        """The cap of the shortest step, in bytes; the smallest if several tie."""
        return int(self.caps[np.argmin(self.durations)])

    @property
    def duration(self) -> float:
        """The shortest step time, in seconds."""
        return float(self.durations.min())

    def __repr__(self) -> str:
        k = int(np.argmin(self.durations))
        return (
            f"best of {plural(len(self.caps), 'cap')}: {self.best:,} bytes, {plural(int(self.calls[k]), 'bucket')}, "
            f"{milliseconds(self.duration)}, exposed {milliseconds(float(self.exposed[k]))}"
        )


def best_cap(
    layers: Sequence[Layer], price: Price, caps: Sequence[int] | None = None, first: int | None = None, **step: Any
) -> CapSweep:
    """Simulate the step at several caps; `CapSweep.best` is the cap of the shortest step.

    A plan changes only at caps that equal the bytes of some neighbouring tensors. If there are few of these, all are
    tried, which finds the optimum. Otherwise a grid from the smallest tensor to all bytes is tried, then a finer grid
    around its best cap, which finds a good cap.

    ``caps`` in bytes are tried instead; ``first`` is the cap of the first bucket, None for the same cap. The other
    arguments are those of `simulate_step`.
    """
    tensors = tensors_of(layers)
    tried: dict[int, tuple[int, float, float]] = {}
    by_plan: dict[Plan, tuple[int, float, float]] = {}

    def attempt(candidates: Sequence[int]) -> None:
        for cap in candidates:
            buckets = plan(tensors, cap, first)
            if buckets not in by_plan:
                timeline = simulate_step(layers, buckets, price, **step)
                by_plan[buckets] = buckets.calls, timeline.duration, timeline.exposed()
            tried[cap] = by_plan[buckets]

    if caps is not None:
        if not len(caps):
            raise InvalidArgument("caps", caps, "one or more")
        attempt([check_int(f"caps[{k}]", cap, 0) for k, cap in enumerate(caps)])
    elif (every := distinct_caps(tensors, MAX_TRIED_PLANS)) is not None:
        attempt(every)
    else:
        attempt(_grid(max(1, min(t.nbytes for t in tensors)), sum(t.nbytes for t in tensors)))
        ordered = sorted(tried)
        k = min(range(len(ordered)), key=lambda k: tried[ordered[k]][1])
        attempt(_grid(ordered[max(k - 1, 0)], ordered[min(k + 1, len(ordered) - 1)]))
    ordered = sorted(tried)
    calls, durations, exposed = zip(*(tried[cap] for cap in ordered), strict=True)
    return CapSweep(np.array(ordered), np.array(calls), np.array(durations), np.array(exposed))


def distinct_caps(tensors: Sequence[Tensor], limit: int) -> list[int] | None:
    """Return the bytes of all runs of neighbouring tensors, at which a plan may change; None for over ``limit``."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.nbytes)
    sums: set[int] = set()
    for sizes in kinds.values():
        for k in range(len(sizes)):
            sums.update(accumulate(sizes[k:]))
            if len(sums) > limit:
                return None
    return sorted(sums)


def _grid(low: int, high: int) -> list[int]:
    return sorted({round(cap) for cap in np.geomspace(low, high, GRID_POINTS).tolist()})
