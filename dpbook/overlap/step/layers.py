"""A model as the simulated step sees it: how long each layer takes, and which gradients it makes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dpbook.core import InvalidArgument, check_each, check_float, check_int
from dpbook.overlap.buckets.tensors import Tensor


@dataclass(frozen=True)
class Layer:
    """One piece of the model, in the order of the forward pass.

    Attributes:
        name: such as "conv1".
        forward, backward: seconds of computation for one micro-batch.
        tensors: its gradients, in the order of the parameters; all are ready when its backward ends. A tensor that
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
    """Return the tensors of all layers, in the order of the parameters: what a plan is made from."""
    return tuple(tensor for layer in check_each("layers", layers, Layer) for tensor in layer.tensors)


def layers_of(
    tensors: Sequence[Tensor],
    forward: float,
    backward: float | None = None,
    layer: Callable[[Tensor], str] = lambda tensor: tensor.name.rpartition(".")[0],
) -> tuple[Layer, ...]:
    """Return layers whose times are shares of the whole model's, in proportion to their elements.

    That is how the time of matrix products divides, at 2 operations for each weight and example; a convolution, which
    uses its weights more than once, gets too little.

    Args:
        tensors: in the order of the parameters.
        forward: seconds of all layers together.
        backward: the same; by default twice ``forward``, as for matrix products.
        layer: the name of a tensor's layer; by default its own name up to the last dot. Neighbours of one name make
            up a layer.
    """
    tensors = check_each("tensors", tensors, Tensor)
    total = sum(tensor.elements for tensor in tensors)
    if not total:
        raise InvalidArgument("tensors", tensors, "of one element or more in all")
    forward = check_float("forward", forward, minimum=0)
    backward = 2 * forward if backward is None else check_float("backward", backward, minimum=0)
    made = []
    for name, members in groupby(tensors, key=layer):
        own = tuple(members)
        share = sum(tensor.elements for tensor in own) / total
        made.append(Layer(name, forward * share, backward * share, own))
    return tuple(made)


def equal_layers(
    count: int, forward: float, backward: float, nbytes: int, dtype: str = "uint8", device: str = "cpu"
) -> tuple[Layer, ...]:
    """Return ``count`` equal layers of one tensor each; ``forward``, ``backward`` and ``nbytes`` are of all together.

    Args:
        nbytes: a multiple of ``count`` and of the itemsize; of bytes, unless ``dtype`` says otherwise.
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
