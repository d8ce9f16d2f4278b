"""Chapter 07: Naive and overlapped. Simulated steps with a fault for exercise 07.3, and the tokens that hide a sync."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import check_int, check_one_of, lazy_exports
from dpbook.overlap import CollectiveCall, Engine, Layer, Operation, Span, Tensor, Timeline, hook, simulate_step

if TYPE_CHECKING:
    from dpbook.book.ch07.savings import explore_savings

__getattr__ = lazy_exports(__name__, explore_savings="savings")

FAULTS = ("healthy", "blocking hook", "giant bucket", "launch-bound", "straggler", "extra syncs")
"""Faults of a step, by the names that an answer returns."""

MAX_RANKS, MIN_LAYERS, MAX_LAYERS = 5, 6, 12
JITTER = 1.05  # largest ratio of the ranks' computation times that is no fault
BYTES = 1_000_000


def sample(fault: str, seed: int = 0) -> Timeline:
    """Return a step with this fault, on 2 to 5 ranks, from a thousandth of a second to one second or more.

    Equal seeds give one model on one machine. Raises `InvalidArgument`.
    """
    rng = np.random.default_rng(check_int("seed", seed, 0))
    check_one_of("fault", fault, FAULTS)
    unit, start, drawn = 10 ** rng.uniform(-3, 0), rng.uniform(0, 10), _Draw.of(rng)  # first: the same for every fault
    timeline = drawn.step(fault, rng)

    def moved(span: Span) -> Span:
        """Return the span in the units of this run, with a name without the layer, as in a profiler."""
        return span._replace(name=span.name.split()[0], ready=None).moved(lambda moment: start + unit * moment)

    return Timeline(tuple(map(moved, timeline.spans)), (start, start + unit * timeline.end))


@dataclass(frozen=True)
class _Draw:
    """Properties that every step has. The computation of one micro-batch takes 1, a third of it in forward."""

    weights: NDArray[np.float64]  # shares of the layers, in computation and in bytes; their sum is 1
    communication: float  # time of all calls together
    factors: tuple[float, ...]  # of each rank's computation time
    launch: float  # CPU time per operation

    @classmethod
    def of(cls, rng: np.random.Generator) -> "_Draw":
        weights = rng.uniform(0.7, 1.3, int(rng.integers(MIN_LAYERS, MAX_LAYERS + 1)))
        factors = rng.uniform(1, JITTER, int(rng.integers(2, MAX_RANKS + 1)))
        launch = rng.choice([0.0, rng.uniform(0.05, 0.3)]) / (2 * len(weights))  # faster than the shortest forward
        return cls(weights / weights.sum(), rng.uniform(0.2, 0.5), tuple(factors.tolist()), float(launch))

    def step(self, fault: str, rng: np.random.Generator) -> Timeline:
        """Return a step with this fault."""
        shares = self.weights  # of the bytes
        options: dict[str, Any] = {"factors": self.factors, "kernel_launch": self.launch}
        match fault:
            case "healthy":  # one micro-batch or several, and one communication stream or two
                options |= {"accumulation": int(rng.integers(1, 5)), "streams": int(rng.integers(1, 3))}
            case "blocking hook":
                return self._blocking()
            case "giant bucket":  # most bytes belong to the first layer, whose gradient is the last
                giant = rng.uniform(0.6, 0.85)
                shares = np.array([giant, *((1 - giant) * self.weights[1:] / self.weights[1:].sum())])
            case "launch-bound":
                options["kernel_launch"] = rng.uniform(1.3, 2.5) / (2 * len(self.weights))
            case "straggler":
                late = int(rng.integers(len(self.factors)))
                options["factors"] = [rng.uniform(1.5, 2) if r == late else f for r, f in enumerate(self.factors)]
            case "extra syncs":
                options |= {"accumulation": int(rng.integers(2, 5)), "no_sync": False}
        layers = self._layers(shares)
        return simulate_step(layers, hook(layers), self._price, **options)

    def _price(self, nbytes: float) -> float:
        return self.communication * nbytes / BYTES

    def _layers(self, shares: NDArray[np.float64]) -> list[Layer]:
        """Return the layers, with these shares of the bytes."""
        return [
            Layer(str(k), weight / 3, weight * 2 / 3, (Tensor(str(k), round(BYTES * share), "uint8"),))
            for k, (weight, share) in enumerate(zip(self.weights, shares, strict=True))
        ]

    def _blocking(self) -> Timeline:
        """Return a step in which no layer's backward starts before the earlier calls have ended."""
        layers = self._layers(self.weights)
        operations = [Operation("forward", layer.forward, 0, 0.0) for layer in layers]
        calls: list[CollectiveCall] = []
        for layer in reversed(layers):
            operations.append(Operation("backward", layer.backward, len(calls), 0.0))
            transfer = self._price(sum(tensor.nbytes for tensor in layer.tensors))
            calls.append(CollectiveCall("all-reduce", 0.0, transfer, len(operations) - 1))
        return Timeline(tuple(Engine(operations, calls, self.factors).run()))


FORWARD_FLOPS, BACKWARD_FLOPS = 2, 4
"""Operations per parameter and token (Kaplan et al., "Scaling Laws for Neural Language Models", 2020)."""
BF16_BYTES = 2


def tokens_to_hide(
    flops_per_second: float, bandwidth: float, per_active: float = 1.0, recompute: bool = False
) -> float:
    """Return the tokens of a GPU's last micro-batch above which its backward takes longer than the sync in bf16.

    Only that backward hides communication: before it no gradient has its final sum. It takes 4T/F per used parameter
    (6T/F if it recomputes activations), and a ring of many ranks 2 · 2/W per synced parameter: T > F/W for a dense
    model of any size. Latencies and the last bucket, which nothing hides, are left out.

    Args:
        flops_per_second: F, operations per second that one GPU reaches in training, which is not its peak.
        bandwidth: W, *bytes* per second that one GPU sends.
        per_active: parameters per parameter that a token uses; above 1 in a mixture of experts.
        recompute: whether backward recomputes all activations.
    """
    backward = BACKWARD_FLOPS + FORWARD_FLOPS * recompute
    return 2 * BF16_BYTES * per_active * flops_per_second / (backward * bandwidth)
