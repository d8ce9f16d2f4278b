"""One training step, simulated: the same `Timeline` that a profiler's trace is read into."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from dpbook.core import InvalidArgument, check_each, check_float, check_int, check_type
from dpbook.overlap.buckets.layout import Plan
from dpbook.overlap.step.engine import Call, Engine, Operation
from dpbook.overlap.step.layers import Layer, tensors_of
from dpbook.overlap.step.strategies import Strategy, bucketed
from dpbook.overlap.timeline.spans import Span, Timeline

Price: TypeAlias = Callable[[int], float]
"""Seconds that a collective of so many bytes takes, such as `dpbook.collectives.AlphaBeta`."""


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
    call_launch: float = 0.0,
    optimizer: float = 0.0,
) -> Timeline:
    """Simulate a step: forward, backward with its gradients synced, optimizer.

    Gradients become ready from the last layer to the first. A bucket goes out when its last gradient is ready and the
    buckets before it are out; a collective starts when every rank has got to it, until when the others' streams wait.

    Args:
        layers: in the order of the forward pass.
        sync: a plan stands for `bucketed` with it.
        price: bytes → seconds of one collective, for the whole world.
        accumulation: micro-batches in a step.
        no_sync: whether only the last of them is synced. If every one is, the next waits for it.
        factors: for each rank that is simulated, by how much its computation takes longer; a straggler has 1.5, say.
            One rank stands for all where they are equal.
        contention: by how much computation takes longer while a collective runs: 1 not at all, 1.5 by a half.
        streams: collectives that may run at once. They share the bandwidth; ``price(0)`` is taken for the latency,
            which they do not share.
        kernel_launch: seconds of CPU before each layer's forward, backward and the optimizer.
        call_launch: seconds of CPU for each collective.
        optimizer: seconds of computation, after the last collective.

    Returns:
        A timeline from 0 to the end of the step, with the lanes "compute", "communication" (the second stream is
        "communication 2") and, where launches cost anything, "launch".

    Raises:
        InvalidArgument: an argument is out of its range, or the plan is not one of these layers' tensors.
    """
    layers = check_each("layers", layers, Layer)
    strategy = _check_strategy(layers, sync)
    costs = {"kernel_launch": kernel_launch, "call_launch": call_launch, "optimizer": optimizer}
    for name, seconds in costs.items():
        check_float(name, seconds, minimum=0)
    if not isinstance(factors, Sequence) or not factors:
        raise InvalidArgument("factors", factors, "a factor for each rank, one or more")
    check_int("accumulation", accumulation, 1)
    check_int("streams", streams, 1)
    program = _Program(kernel_launch, call_launch, _checked(price, streams > 1))
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
    """What the CPU launches, one thing after another."""

    kernel_launch: float
    call_launch: float
    price: Callable[[int], tuple[float, float]]
    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    launches: list[Span] = field(default_factory=list)
    now: float = 0.0

    def launch(self, name: str, cost: float) -> float:
        if cost:
            self.launches.append(Span(name, 0, "launch", "launch", self.now, self.now + cost))
            self.now += cost
        return self.now

    def operation(self, name: str, seconds: float, needs: int | None = None) -> None:
        needs = len(self.calls) if needs is None else needs
        self.operations.append(Operation(name, seconds, needs, self.launch(name, self.kernel_launch)))

    def forward(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            self.operation(f"forward {layer.name}", layer.forward)

    def backward(self, layers: Sequence[Layer], strategy: Strategy | None) -> None:
        """Launch the backward of each layer, and after it the buckets that it completes."""
        before = len(self.calls)  # what this micro-batch sends, its own backward does not wait for
        sent, ended = _sent(layers, strategy), {}
        for index in range(len(layers) - 1, -1, -1):
            self.operation(f"backward {layers[index].name}", layers[index].backward, before)
            ended[index] = len(self.operations) - 1
            for number, nbytes, full in sent.get(index, ()):
                self.call(f"all-reduce {number}", nbytes, ended[full])

    def call(self, name: str, nbytes: int, completed: int) -> None:
        latency, transfer = self.price(nbytes)
        launched = self.launch(name, self.call_launch)
        self.calls.append(Call(name, latency, transfer, len(self.operations) - 1, launched, completed))


def _sent(layers: Sequence[Layer], strategy: Strategy | None) -> dict[int, list[tuple[int, int, int]]]:
    """For each layer, what may go out after its backward: number of the bucket, bytes, the layer that completes it."""
    if strategy is None or strategy.plan is None:
        return {}
    owner = [index for index, layer in enumerate(layers) for _ in layer.tensors]
    full = [min(owner[t] for t in group) for group in strategy.plan.groups]  # backward comes to layer 0 last
    after = accumulate(full, min) if strategy.overlap else [0] * len(full)  # never before the bucket before it
    sent: dict[int, list[tuple[int, int, int]]] = {}
    for number, (layer, nbytes, last) in enumerate(zip(after, strategy.plan.nbytes.tolist(), full, strict=True), 1):
        sent.setdefault(layer, []).append((number, nbytes, last))
    return sent


def _checked(price: Price, split: bool) -> Callable[[int], tuple[float, float]]:
    """A price that is sure to be a time, as latency and transfer; not split, it is all transfer."""
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


def _check_strategy(layers: Sequence[Layer], sync: Strategy | Plan) -> Strategy:
    strategy = bucketed(sync) if isinstance(sync, Plan) else check_type("sync", sync, Strategy, "a Plan or a Strategy")
    if strategy.plan is not None and strategy.plan.tensors != tensors_of(layers):
        raise InvalidArgument("sync", sync, "a plan of the tensors of these layers, tensors_of(layers)")
    return strategy
