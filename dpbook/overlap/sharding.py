"""Inputs of a sharded step: units of a model, bytes per parameter, the sharding, and the prices of its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpbook.collectives import Link, closed_forms
from dpbook.core import InvalidArgument, check_each, check_float, check_int
from dpbook.overlap.layers import Layer, Price

ROOT = "root"
"""Name of the unit that holds the layers of no other unit."""


@dataclass(frozen=True)
class Unit:
    """Layers whose weights are gathered, used and freed together, and whose gradients are reduced together.

    Attributes:
        forward, backward: seconds of computation for one micro-batch.
        parameters: elements of all its weights.
        frozen: number of these elements without a gradient.
        activations: bytes that its forward keeps for its backward.
        input: bytes of its input, which forward keeps instead where activations are recomputed.
        scratch: bytes that its backward needs while it runs: gradients of activations, and a gradient before it is
            copied into the flat buffer.
        stays_gathered: whether its gathered weights stay from forward to backward, as those of the outermost unit
            usually do.
    """

    name: str
    forward: float
    backward: float
    parameters: int
    frozen: int = 0
    activations: int = 0
    input: int = 0
    scratch: int = 0
    stays_gathered: bool = False

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            object.__setattr__(self, name, check_float(f"{name} of {self.name}", getattr(self, name), minimum=0))
        for name in ("parameters", "activations", "input", "scratch"):
            check_int(f"{name} of {self.name}", getattr(self, name), 0)
        check_int(f"frozen of {self.name}", self.frozen, 0, self.parameters)

    @property
    def trained(self) -> int:
        """Number of elements with a gradient."""
        return self.parameters - self.frozen


@dataclass(frozen=True)
class Sizes:
    """Bytes per parameter; by default all in fp32, with Adam's two moments.

    ``weight`` and ``gradient`` are those in computation and on the wire; ``optimizer`` is the state of a trained
    parameter. A weight has ``shard`` bytes (default: ``weight``) in the shard of stage 3: bf16 computation over fp32
    shards, reduced in fp32, is ``Sizes(2, 4, 8, shard=4)``.
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
    """Group layers into units, by the names of modules; `dpbook.ddp.measure_layers` returns layers with such names.

    ``simulate_sharded(units_of(measure_layers(model, loss), ["blocks.0", "blocks.1"]), sharding, wires)`` predicts the
    step of ``ddp.FullySharded`` with these modules as units.

    Args:
        layers: layers in the order of the forward pass.
        units: names of modules. A layer belongs to the innermost of them around it. Layers in none of them form the
            unit "root", which is first, and whose weights stay gathered from forward to backward. The root may have
            bytes and no layer.
        activations, inputs, scratch: bytes by the name of the unit; by default none.
        frozen: elements of weights that are gathered and have no gradient, by the name of the unit. Measured layers
            have none, since only trained tensors are measured.

    Raises `InvalidArgument` if a unit has no layer, or bytes are given for an unknown unit.
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
            sum(layer.forward for layer in its_layers),
            sum(layer.backward for layer in its_layers),
            sum(tensor.elements for layer in its_layers for tensor in layer.tensors) + known["frozen"].get(name, 0),
            known["frozen"].get(name, 0),
            known["activations"].get(name, 0),
            known["inputs"].get(name, 0),
            known["scratch"].get(name, 0),
            stays_gathered=name == ROOT,
        )
        for name, its_layers in members.items()
    )


def _around(units: Sequence[str], layer: str) -> str:
    """Return the name of the innermost unit around a layer."""
    return max((name for name in units if f"{layer}.".startswith(f"{name}.")), key=len, default=ROOT)


def equal_units(
    count: int, forward: float, backward: float, parameters: int, activations: int = 0, input: int = 0
) -> tuple[Unit, ...]:
    """Return ``count`` equal units, named by their numbers from 1; the other arguments are totals of all units.

    Raises `InvalidArgument` if ``count`` does not divide one of the integers.
    """
    n = check_int("count", count, 1)
    for name, value in {"parameters": parameters, "activations": activations, "input": input}.items():
        if check_int(name, value, 0) % n:
            raise InvalidArgument(name, value, f"a multiple of {n}")
    return tuple(
        Unit(str(k + 1), forward / n, backward / n, parameters // n, 0, activations // n, input // n) for k in range(n)
    )


@dataclass(frozen=True)
class Sharding:
    """Sharding of a step: the ZeRO stage, the ranks that share the state, and the times of gathering and freeing.

    Attributes:
        stage: the sharded state: 0 nothing (plain data parallelism), 1 the optimizer's, 2 gradients too, 3 weights too.
        shards: number of ranks that share the state; the world, unless there are ``replicas``.
        replicas: number of groups of ``shards`` ranks with the same shards (hybrid sharding). Every reduction of
            gradients also sums the shards across the groups, as in FSDP of torch 2.13.
        prefetch: number of units whose weights are gathered ahead of the one that computes; 0 gathers each on demand.
        reshard: whether stage 3 frees gathered weights after forward. If not, backward gathers none, and in one
            micro-batch it sends as much as stage 2. Between steps it keeps the shards alone, as stage 3 does.
        recompute: whether forward keeps only the inputs of the units, and backward computes each forward again
            (activation checkpointing of every unit).
        behind_forward: whether stages 1 and 2 gather the new weights unit by unit behind the next forward, or all
            after the update. In the first case the step is one of many, and begins with the gathers of the previous
            update.
    """

    stage: int
    shards: int
    replicas: int = 1
    prefetch: int = 1
    reshard: bool = True
    recompute: bool = False
    behind_forward: bool = False

    def __post_init__(self) -> None:
        check_int("stage", self.stage, 0, 3)
        check_int("shards", self.shards, 1)
        check_int("prefetch", self.prefetch, 0)
        if check_int("replicas", self.replicas, 1) > 1 and not self.stage:
            raise InvalidArgument("replicas", self.replicas, "1 in stage 0, where every rank is a replica")

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.shards * self.replicas

    def share(self, elements: int) -> int:
        """Return the elements of the largest shard of ``elements``."""
        return -(-elements // self.shards)

    @property
    def frees_after_forward(self) -> bool:
        """Whether gathered weights are freed after forward."""
        return self.stage == 3 and self.reshard


@dataclass(frozen=True)
class Wires:
    """Prices of the collectives: seconds by the bytes of the whole buffer, which is a unit's weights or gradients.

    ``across`` prices the all-reduce of a shard between replicas, by the bytes of the shard.
    """

    all_gather: Price
    reduce_scatter: Price
    all_reduce: Price
    across: Price = lambda nbytes: 0.0

    @classmethod
    def rings(cls, sharding: Sharding, link: Link, slow: Link | None = None) -> Wires:
        """Return prices of rings: ``link`` inside a group of shards, ``slow`` (default: ``link``) between replicas."""
        n = sharding.shards
        return cls(
            closed_forms.all_gather(n, link),
            closed_forms.reduce_scatter(n, link),
            closed_forms.ring(n, link),
            closed_forms.ring(sharding.replicas, slow or link),
        )
