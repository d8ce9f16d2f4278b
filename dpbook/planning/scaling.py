"""Step time, tokens per second and efficiency of data-parallel training, as the world grows.

A step computes 6 operations per parameter and token, 2 forward and 4 backward (Kaplan et al., "Scaling Laws for Neural
Language Models", 2020; attention scores are left out). Gradients travel in buckets, which become ready during the
backward of the last micro-batch, each when backward has made its bytes. A sharded step is the simulated one of
`dpbook.overlap.simulate_sharded`, with a bucket as a unit. Left out: contention, the communication of
tensor, pipeline and expert parallelism, pipeline bubbles, the optimizer's arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.planning.hardware import Cluster
from dpbook.planning.job import Job
from dpbook.planning.sharded import WEIGHT, sharded_sync, sharded_wires
from dpbook.planning.sync import Price, all_reduce


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
    """A step with so many ``sequences`` per GPU. Raises `InvalidArgument` unless a micro-batch has whole ones.

    Of a sequence that is cut over several ranks each rank has a part: see ``cut_sequences`` of `strong`.
    """
    per_micro_batch = check_float("sequences", sequences, above=0) * job.cut / job.accumulation
    if per_micro_batch != int(per_micro_batch) or per_micro_batch < 1:
        wanted = "a whole number per rank and micro-batch, at least 1: data parallelism cuts none"
        raise InvalidArgument("sequences", sequences, wanted)
    return _predict(job, cluster, sequences * job.context)


def weak(job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int = 1) -> list[Step]:
    """Weak scaling: so many ``sequences`` on each rank, whatever the world, so that the batch grows with it."""
    return [predict(job, cluster.of(world), sequences) for world in worlds]


def strong(
    job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int, *, cut_sequences: bool = False
) -> list[Step]:
    """Strong scaling: so many ``sequences`` in the global batch, shared out over each world.

    Raises `InvalidArgument` for a world that does not give whole ones to each micro-batch, unless ``cut_sequences``:
    then a rank may have a fraction of a sequence, which takes another kind of parallelism as well, and whose cost is
    left out here.
    """
    check_int("sequences", sequences, 1)
    wanted = f"a divisor of the {sequences} sequences: each rank gets whole ones"
    if job.accumulation > 1:
        wanted += f" in each of {job.accumulation} micro-batches"
    steps = []
    for world in worlds:
        if sequences * job.cut % (check_int("world", world, 1) * job.accumulation) and not cut_sequences:
            raise InvalidArgument("world", world, wanted)
        steps.append(_predict(job, cluster.of(world), sequences * job.context / world))
    return steps


def wall(job: Job, cluster: Cluster, sequences: int, worlds: Sequence[int] | range) -> int | None:
    """The first of ``worlds`` where some communication takes as long as what may hide it, at a fixed global batch.

    From there on some of it is exposed, and if the step is one micro-batch more ranks hardly help. None if none of them
    is as far. Sequences may be cut. Raises `InvalidArgument` unless ``worlds`` ascend, and for "none", which hides
    nothing and has no wall.
    """
    if job.window == "none":
        raise InvalidArgument("window", job.window, "backward or all: what hides nothing has no wall")
    check_int("sequences", sequences, 1)
    told = worlds[:: max(1, len(worlds) - 1)] if isinstance(worlds, range) else worlds  # of a range its two ends tell
    if any(before >= world for before, world in pairwise((0, *told))):
        raise InvalidArgument("worlds", worlds, "integers of at least 1 in ascending order")

    def beyond(world: int) -> bool:
        races = _races(job, cluster.of(world), sequences * job.context / world)
        return any(job.sync(price, 0)[0] >= hiding for price, hiding in races)

    low, high = 0, len(worlds)  # compute falls with the world and communication never does: bisect
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(worlds[middle]) else (middle + 1, high)
    return worlds[low] if low < len(worlds) else None


def best_cap(job: Job, cluster: Cluster, sequences: int = 1) -> float:
    """The bucket cap, in bytes, with the shortest step: of 1 to 64 Ki equal buckets, by trying powers of two."""
    caps = [job.wire_bytes / 2.0**power for power in range(17)]
    times = [predict(replace(job, cap=cap, plan=None), cluster, sequences).seconds for cap in caps]
    return caps[times.index(min(times))]


def _predict(job: Job, cluster: Cluster, tokens: float) -> Step:
    forward, backward = (operations / cluster.flops for operations in job.operations(tokens))
    if job.stage:
        once = (seconds / job.accumulation for seconds in (forward, backward))
        communication, exposed = sharded_sync(job, cluster.data_ranks(job.cut), *once)
    else:
        ((price, hiding),) = _races(job, cluster, tokens)
        communication, exposed = job.sync(price, hiding)
    return Step(cluster.world, tokens, forward, backward, communication, exposed)


def _races(job: Job, cluster: Cluster, tokens: float) -> list[tuple[Price, float]]:
    """What may hide, priced by the bytes of the *gradients*, and the seconds of one micro-batch that hide it."""
    forward, backward = (operations / cluster.flops for operations in job.operations(tokens / job.accumulation))
    everything, where = job.window == "all", cluster.data_ranks(job.cut)
    if not job.stage:
        behind = 0.0 if job.window == "none" else backward + (forward if everything else 0.0)
        return [(all_reduce(job.algorithm, where), behind)]
    prices = sharded_wires(job, where)
    gathered = job.parameters if job.stage == 3 else job.synced  # stage 3 shards frozen weights, too
    weights = WEIGHT * gathered / job.wire_bytes
    gather: Price = lambda nbytes: prices.all_gather(weights * nbytes)  # noqa: E731
    if job.stage < 3:
        return [(prices.reduce_scatter, backward), *([(gather, forward)] if everything else [])]
    shard = 1 / where.per_node if job.hybrid else 0.0
    across: Price = lambda nbytes: prices.across(shard * nbytes) if job.hybrid else 0.0  # noqa: E731
    last: Price = lambda nbytes: gather(nbytes) + prices.reduce_scatter(nbytes) + across(nbytes)  # noqa: E731
    return [(gather, forward), (last, backward)]
