"""Inputs of a simulated step: layers with their times and gradients, and strategies that sync these gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpbook.core import InvalidArgument, check_each, check_float, check_int, check_type
from dpbook.overlap.buckets import Plan, Tensor, flat_plan, per_tensor_plan, plan

Price = Callable[[float], float]
"""Seconds of a collective by the bytes of its whole buffer, such as `dpbook.collectives.AlphaBeta`."""


@dataclass(frozen=True)
class Layer:
    """One part of the model, in the order of the forward pass; seconds of computation for one micro-batch.

    ``tensors`` are its gradients in the order of the parameters; all are ready when its backward ends. A tensor that
    several layers share belongs to the first of them, whose backward runs last.
    """

    name: str
    forward: float
    backward: float
    tensors: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            object.__setattr__(self, name, check_float(f"{name} of {self.name}", getattr(self, name), minimum=0))
        object.__setattr__(self, "tensors", check_each("tensors", self.tensors, Tensor) if self.tensors else ())


def tensors_of(layers: Sequence[Layer]) -> tuple[Tensor, ...]:
    """Return the tensors of all layers in the order of the parameters, from which a plan is made."""
    return tuple(tensor for layer in check_each("layers", layers, Layer) for tensor in layer.tensors)


def layers_of(
    tensors: Sequence[Tensor],
    forward: float,
    backward: float | None = None,
    layer: Callable[[Tensor], str] = lambda tensor: tensor.name.rpartition(".")[0],
) -> tuple[Layer, ...]:
    """Return layers that divide the time of the whole model in proportion to their elements.

    The time of matrix products divides in this way, at 2 operations for each weight and example. A convolution uses its
    weights more than once, so its share is too small.

    Args:
        tensors: gradients in the order of the parameters.
        forward, backward: seconds of all layers together; backward is twice forward by default, as for matrix products.
        layer: returns the name of a tensor's layer; by default the tensor's name up to the last dot. Neighbours with
            the same name form a layer.
    """
    tensors = check_each("tensors", tensors, Tensor)
    total = sum(tensor.elements for tensor in tensors)
    if not total:
        raise InvalidArgument("tensors", tensors, "of one element or more in all")
    forward = check_float("forward", forward, minimum=0)
    backward = 2 * forward if backward is None else check_float("backward", backward, minimum=0)
    layers = []
    for name, members in groupby(tensors, key=layer):
        layer_tensors = tuple(members)
        share = sum(tensor.elements for tensor in layer_tensors) / total
        layers.append(Layer(name, forward * share, backward * share, layer_tensors))
    return tuple(layers)


def equal_layers(
    count: int, forward: float, backward: float, nbytes: int, dtype: str = "uint8", device: str = "cpu"
) -> tuple[Layer, ...]:
    """Return ``count`` equal layers of one tensor each; ``forward`` and ``backward`` are seconds of all together.

    ``nbytes`` are the bytes of all together, a multiple of ``count`` times the itemsize of ``dtype``.
    """
    n, total = check_int("count", count, 1), check_int("nbytes", nbytes, 0)
    itemsize = Tensor("one", 1, dtype, device).nbytes
    if total % (n * itemsize):
        raise InvalidArgument("nbytes", nbytes, f"a multiple of {n} × {itemsize}")
    elements = total // n // itemsize
    return tuple(
        Layer(f"layer {k + 1}", forward / n, backward / n, (Tensor(f"layer {k + 1}", elements, dtype, device),))
        for k in range(n)
    )


@dataclass(frozen=True)
class Strategy:
    """A bucket plan, None for no communication at all, and the time at which its buckets are launched.

    With ``overlap`` a bucket is launched as soon as its last gradient is ready and all earlier buckets are launched;
    without it all are launched after backward.
    """

    name: str
    plan: Plan | None
    overlap: bool

    def __repr__(self) -> str:
        calls = "no communication" if self.plan is None else f"{self.plan.calls} calls"
        when = "" if self.plan is None else ", during backward" if self.overlap else ", after backward"
        return f"{self.name}: {calls}{when}"


def single() -> Strategy:
    """Return the strategy without communication: one worker, or the local part of a step."""
    return Strategy("single", None, False)


def naive(layers: Sequence[Layer]) -> Strategy:
    """Return the strategy that makes one call for every tensor, after backward."""
    return Strategy("naive", per_tensor_plan(tensors_of(layers)), False)


def naive_flat(layers: Sequence[Layer]) -> Strategy:
    """Return the strategy that makes one call for each dtype on each device, after backward."""
    return Strategy("flat", flat_plan(tensors_of(layers)), False)


def hook(layers: Sequence[Layer]) -> Strategy:
    """Return the strategy that makes one call for every tensor during backward, as soon as its gradient is ready."""
    return Strategy("hook", per_tensor_plan(tensors_of(layers)), True)


def bucketed(buckets: Plan) -> Strategy:
    """Return the strategy of DDP: one call for every bucket during backward, as soon as the bucket is full."""
    check_type("buckets", buckets, Plan, "a Plan, as overlap.plan makes it")
    return Strategy("bucketed", buckets, True)


STRATEGIES: dict[str, Callable[[Sequence[Layer]], Strategy]] = {
    "single": lambda layers: single(),
    "naive": naive,
    "flat": naive_flat,
    "hook": hook,
    "bucketed": lambda layers: bucketed(plan(tensors_of(layers))),
}
"""Strategies by name, each made from the layers; "bucketed" has the default caps."""
