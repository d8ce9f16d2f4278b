"""Step time, tokens per second and efficiency of data-parallel training, as the world grows.

A step computes 6 operations per parameter and token, 2 forward and 4 backward (Kaplan et al., "Scaling Laws for Neural
Language Models", 2020; attention scores are left out), and sends every gradient once, in equal buckets that become
ready evenly during backward. What the closed forms of `collectives` leave out, contention above all, is left out here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Literal, get_args

from dpbook.collectives import Topology, closed_forms
from dpbook.core import InvalidArgument, check_float, check_int, check_one_of
from dpbook.overlap import CAP
from dpbook.planning.hardware import Cluster

Window = Literal["none", "backward", "all"]
"""What communication may hide behind: nothing, backward (as in DDP), or forward too (more than DDP can)."""

Algorithm = Literal["ring_per_port", "ring", "hierarchical_ring", "double_tree"]
"""The rings of `collectives`; "double_tree" is a hierarchical ring with double binary trees between the nodes, whose
latencies grow like the logarithm of their number."""


@dataclass(frozen=True)
class Job:
    """What is trained, and how it is synced.

    Attributes:
        parameters: of the model.
        context: tokens in a sequence.
        gradients: elements that are synced; default: one per parameter. Fewer where most weights are frozen, and then
            backward computes less too: 2 operations per parameter and token, and 2 more per trained one.
        itemsize: bytes of a gradient on the wire: 2 in bf16, 4 under autocast.
        cap: bytes of a bucket.
        algorithm: of the all-reduce.
        window: what communication may hide behind.
    """

    parameters: int
    context: int = 4096
    gradients: int | None = None
    itemsize: int = 2
    cap: float = CAP
    algorithm: Algorithm = "ring_per_port"
    window: Window = "backward"

    def __post_init__(self) -> None:
        parameters = check_int("parameters", self.parameters, 1)
        check_int("context", self.context, 1)
        check_int("itemsize", self.itemsize, 1)
        check_float("cap", self.cap, above=0)
        gradients = parameters if self.gradients is None else check_int("gradients", self.gradients, 1, parameters)
        object.__setattr__(self, "gradients", gradients)
        for name, kind in (("algorithm", Algorithm), ("window", Window)):
            check_one_of(name, getattr(self, name), get_args(kind))

    @property
    def synced(self) -> int:
        """The number of gradients that are synced."""
        assert self.gradients is not None  # __post_init__ filled it in
        return self.gradients

    @property
    def wire_bytes(self) -> int:
        """Bytes of gradients that a step syncs: the payload, before any algorithm multiplies it."""
        return self.synced * self.itemsize


@dataclass(frozen=True)
class Step:
    """A step of ``world`` ranks with ``tokens`` tokens each: ``forward``, ``backward``, ``communication`` in seconds.

    ``exposed`` is the part of the communication that nothing hides.
    """

    world: int
    tokens: float
    forward: float
    backward: float
    communication: float
    exposed: float

    @property
    def compute(self) -> float:
        """Seconds of computation."""
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        """The step time."""
        return self.compute + self.exposed

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second, over all ranks."""
        return self.world * self.tokens / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed in units of ``world`` ranks that need not communicate: compute over step time."""
        return self.compute / self.seconds

    def __repr__(self) -> str:
        return (
            f"{self.world:,} ranks × {self.tokens:,.6g} tokens: {self.seconds:.3g} s per step "
            f"(compute {self.compute:.3g} s, exposed {self.exposed:.3g} of {self.communication:.3g} s), "
            f"{self.tokens_per_second:,.0f} tokens/s, efficiency {self.efficiency:.0%}"
        )


def predict(job: Job, cluster: Cluster, sequences: float = 1) -> Step:
    """A step with so many ``sequences`` on each rank. Raises `InvalidArgument` unless they are whole.

    Of a sequence that is cut over several ranks each rank has a part: see ``cut_sequences`` of `strong`.
    """
    if float(sequences) != int(sequences) or sequences < 1:
        raise InvalidArgument("sequences", sequences, "a whole number per rank, at least 1: data parallelism cuts none")
    return _predict(job, cluster, int(sequences) * job.context)


def weak(job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int = 1) -> list[Step]:
    """Weak scaling: so many ``sequences`` on each rank, whatever the world, so that the batch grows with it."""
    return [predict(job, cluster.of(world), sequences) for world in worlds]


def strong(
    job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int, *, cut_sequences: bool = False
) -> list[Step]:
    """Strong scaling: so many ``sequences`` in the global batch, shared out over each world.

    Raises `InvalidArgument` for a world that does not divide them, unless ``cut_sequences``: then a rank may have a
    fraction of a sequence, which takes another kind of parallelism as well, and whose cost is left out here.
    """
    check_int("sequences", sequences, 1)
    steps = []
    for world in worlds:
        if sequences % check_int("world", world, 1) and not cut_sequences:
            raise InvalidArgument("world", world, f"a divisor of the {sequences} sequences: each rank gets whole ones")
        steps.append(_predict(job, cluster.of(world), sequences * job.context / world))
    return steps


def wall(job: Job, cluster: Cluster, sequences: int, worlds: Sequence[int] | range) -> int | None:
    """The first of ``worlds`` where communication takes as long as what may hide it, at a fixed global batch.

    From there on more ranks hardly help. None if none of them is as far. Sequences may be cut. Raises
    `InvalidArgument`; "none" hides nothing and has no wall.
    """
    if job.window == "none":
        raise InvalidArgument("window", job.window, "backward or all: what hides nothing has no wall")
    check_int("sequences", sequences, 1)

    def beyond(world: int) -> bool:
        step = _predict(job, cluster.of(world), sequences * job.context / world)
        return step.communication >= (step.backward if job.window == "backward" else step.compute)

    low, high = 0, len(worlds)  # compute falls with the world and communication never does: bisect
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(worlds[middle]) else (middle + 1, high)
    return worlds[low] if low < len(worlds) else None


def best_cap(job: Job, cluster: Cluster, sequences: int = 1) -> float:
    """The bucket cap, in bytes, with the shortest step: of 1 to 64 Ki equal buckets, by trying powers of two."""
    caps = [job.wire_bytes / 2.0**power for power in range(17)]
    times = [predict(replace(job, cap=cap), cluster, sequences).seconds for cap in caps]
    return caps[times.index(min(times))]


def _predict(job: Job, cluster: Cluster, tokens: float) -> Step:
    forward = 2 * job.parameters * tokens / cluster.flops
    backward = 2 * (job.parameters + job.synced) * tokens / cluster.flops
    calls = max(1, ceil(job.wire_bytes / job.cap))
    call = _price(job.algorithm, cluster)(job.wire_bytes / calls) if cluster.world > 1 else 0.0
    hiding = {"none": 0.0, "backward": backward, "all": forward + backward}[job.window]
    # Bucket i of k is ready at i/k of the window and they go out one by one, so the last ends at the larger of:
    last = max(hiding / calls + calls * call, hiding + call)
    return Step(cluster.world, tokens, forward, backward, calls * call, last - hiding if call else 0.0)


def _price(algorithm: Algorithm, cluster: Cluster) -> Callable[[float], float]:
    """Seconds of an all-reduce of so many bytes."""
    where = cluster.topology
    if algorithm == "ring":
        return closed_forms.ring(where.world, where)
    if algorithm == "hierarchical_ring":
        return closed_forms.hierarchical_ring(where.nodes, where.per_node, where)
    if algorithm == "double_tree":
        return lambda nbytes: _double_tree(where, nbytes)
    return closed_forms.ring_per_port(where.nodes, where.per_node, where, where.ports)


def _double_tree(where: Topology, nbytes: float) -> float:
    """Reduce-scatter inside nodes, double binary trees of each shard between them, all-gather inside."""
    inside = closed_forms.ring(where.per_node, where.within)(nbytes)
    shard = nbytes / where.per_node * ceil(where.per_node / where.ports)  # of ranks on one port, one after another
    depth, link = (where.nodes - 1).bit_length(), where.between
    if not depth:
        return inside
    if not link.alpha:
        return inside + 2 * link.beta * shard  # ever smaller blocks, which cost nothing
    block = sqrt(shard * link.alpha / (2 * depth * link.beta))
    return inside + closed_forms.double_binary_tree(where.nodes, link, block)(shard)
