"""A model as the sharded step sees it: units, whose weights are gathered and whose gradients are reduced as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpbook.core import InvalidArgument, check_each, check_float, check_int
from dpbook.overlap.step.layers import Layer

ROOT = "root"
"""The unit of what is in no other."""


@dataclass(frozen=True)
class Unit:
    """Layers that are gathered, computed with and freed together, in the order of the forward pass.

    Attributes:
        name: such as "blocks.0".
        forward, backward: seconds of computation for one micro-batch.
        parameters: elements of all its weights.
        frozen: how many of them have no gradient.
        activations: bytes that its forward keeps for its backward.
        input: bytes of its input, which is all that is kept where activations are recomputed.
        scratch: bytes that its backward needs while it runs: gradients of activations, a gradient before it is in the
            row of all.
        kept: whether its gathered weights stay from forward to backward, as those of the outermost unit usually do.
    """

    name: str
    forward: float
    backward: float
    parameters: int
    frozen: int = 0
    activations: int = 0
    input: int = 0
    scratch: int = 0
    kept: bool = False

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            object.__setattr__(self, name, check_float(f"{name} of {self.name}", getattr(self, name), minimum=0))
        for name in ("parameters", "activations", "input", "scratch"):
            check_int(f"{name} of {self.name}", getattr(self, name), 0)
        check_int(f"frozen of {self.name}", self.frozen, 0, self.parameters)

    @property
    def trained(self) -> int:
        """Elements with a gradient."""
        return self.parameters - self.frozen


@dataclass(frozen=True)
class Sizes:
    """Bytes per parameter; by default all in fp32, with Adam's two moments.

    ``weight``: of a weight that is computed with, and on the wire. ``gradient``: of one that is added up, and on the
    wire. ``optimizer``: what the update keeps, for each trained parameter. ``shard``: of a weight in the shard of stage
    3; by default as ``weight``. bf16 computation over fp32 shards, reduced in fp32, is ``Sizes(2, 4, 8, shard=4)``.
    """

    weight: int = 4
    gradient: int = 4
    optimizer: int = 8
    shard: int | None = None

    def __post_init__(self) -> None:
        for name in ("weight", "gradient", "optimizer"):
            check_int(name, getattr(self, name), 0)
        object.__setattr__(self, "shard", self.weight if self.shard is None else check_int("shard", self.shard, 0))


def units_of(
    layers: Sequence[Layer],
    units: Sequence[str],
    *,
    activations: Mapping[str, int] | None = None,
    inputs: Mapping[str, int] | None = None,
    scratch: Mapping[str, int] | None = None,
    frozen: Mapping[str, int] | None = None,
) -> tuple[Unit, ...]:
    """Return the units of layers whose names are those of parameters, as `dpbook.ddp.measure_layers` gives them.

    ``simulate_sharded(units_of(measure_layers(model, loss), ["blocks.0", "blocks.1"]), sharding, wires)`` predicts the
    step of ``ddp.FullySharded`` with these modules as units.

    Args:
        layers: in the order of the forward pass.
        units: names of modules. A layer belongs to the innermost of them around it; what is in none of them is the unit
            "root", which is first, and whose weights are kept from forward to backward. It may have bytes and no layer.
        activations, inputs, scratch: bytes by the unit's name; by default none.
        frozen: elements of weights that are gathered and have no gradient, by the unit's name. Measured layers have
            none, they are those of trained tensors.

    Raises:
        InvalidArgument: a unit has no layer, or something is given for what is none.
    """
    given = {"activations": activations, "inputs": inputs, "scratch": scratch, "frozen": frozen}
    known = {argument: dict(by_name or {}) for argument, by_name in given.items()}
    members: dict[str, list[Layer]] = {ROOT: []} if any(ROOT in by_name for by_name in known.values()) else {}
    for layer in sorted(check_each("layers", layers, Layer), key=lambda at: _around(units, at.name) != ROOT):
        members.setdefault(_around(units, layer.name), []).append(layer)
    for argument, names in {"units": units, **known}.items():
        if unknown := [name for name in names if name not in members]:
            raise InvalidArgument(argument, unknown[0], f"one of the modules of the layers: {', '.join(members)}")
    return tuple(
        Unit(
            name,
            sum(layer.forward for layer in own),
            sum(layer.backward for layer in own),
            sum(tensor.elements for layer in own for tensor in layer.tensors) + known["frozen"].get(name, 0),
            known["frozen"].get(name, 0),
            known["activations"].get(name, 0),
            known["inputs"].get(name, 0),
            known["scratch"].get(name, 0),
            kept=name == ROOT,
        )
        for name, own in members.items()
    )


def _around(units: Sequence[str], layer: str) -> str:
    """The innermost unit around a layer."""
    return max((name for name in units if f"{layer}.".startswith(f"{name}.")), key=len, default=ROOT)


def equal_units(
    count: int, forward: float, backward: float, parameters: int, activations: int = 0, input: int = 0
) -> tuple[Unit, ...]:
    """Return ``count`` equal units, named by their numbers from 1; the other arguments are of all together.

    Raises:
        InvalidArgument: ``count`` does not divide one of the integers.
    """
    n = check_int("count", count, 1)
    for name, value in {"parameters": parameters, "activations": activations, "input": input}.items():
        if check_int(name, value, 0) % n:
            raise InvalidArgument(name, value, f"a multiple of {n}")
    return tuple(
        Unit(str(k + 1), forward / n, backward / n, parameters // n, 0, activations // n, input // n) for k in range(n)
    )
