"""Step time, tokens per second and efficiency of data-parallel training as the world grows, and the cost of failures.

A step computes 6 operations per parameter and token, 2 forward and 4 backward (Kaplan et al., "Scaling Laws for Neural
Language Models", 2020; attention scores are left out). Gradients travel in buckets, which become ready during the
backward of the last micro-batch, in proportion to their bytes. A sharded step is simulated by
`dpbook.overlap.TimedProgram`: every bucket is a unit, which is gathered, computed with and reduced. The communication
of tensor, pipeline and expert parallelism and the optimizer's arithmetic are left out.

Failures are independent, equally frequent on each GPU, and their rate does not change. A job stops as soon as one of
its GPUs does. Saving a checkpoint stops the training; saving in the background costs less.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import exp, expm1, sqrt
from typing import NamedTuple

import numpy as np

from dpbook.collectives import Topology
from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.overlap import Plan, Sharding, Sizes, TimedProgram, Unit, Wires
from dpbook.planning.cluster import Cluster, Price, all_reduce, wires
from dpbook.planning.job import Job
from dpbook.planning.stragglers import Estimate

WEIGHT_BYTES = 2
"""Bytes of a weight on the wire: bf16, whatever the dtype of the gradients."""
STEADY_UNITS = 32
"""Number of equal units beyond which each further one adds the same time to a step, unless prefetch is deep."""


def sharded_wires(job: Job, topology: Topology) -> Wires:
    """Return the prices of a job's collectives. Raises `InvalidArgument` for hybrid sharding over one data rank."""
    if job.hybrid and topology.per_node == 1 < topology.nodes:
        expected = "False if a node has one data rank: hybrid sharding needs two or more"
        raise InvalidArgument("hybrid", job.hybrid, expected)
    return wires(job.algorithm, topology, job.hybrid)


def sharded_sync(job: Job, topology: Topology, forward: float, backward: float) -> tuple[float, float]:
    """Return the seconds of the collectives of a step of stage 1 to 3, and the seconds that no computation hides.

    ``forward`` and ``backward`` are the seconds of one micro-batch. Micro-batches are alike, and so are equal units.
    So two micro-batches and twice `STEADY_UNITS` units are simulated, and the rest is extrapolated.
    """

    def micro_batches(count: int, units: int | None) -> tuple[float, float]:
        program = _timed_program(job.plan, job.calls, units, *elements, sharding, job.itemsize, count)
        seconds = program.seconds(prices, forward=forward, backward=backward)
        return program.busy("communication", seconds), max(program.run(seconds)[1])

    def all_units(count: int) -> tuple[float, float]:
        few = STEADY_UNITS + 2 * job.prefetch
        if job.plan is not None or job.calls <= 2 * few:
            return micro_batches(count, None)
        return _continued(micro_batches(count, few), micro_batches(count, 2 * few), job.calls / few - 1)

    replicas = topology.nodes if job.hybrid else 1
    shards = topology.world // replicas if replicas > 1 else 1  # the operations do not depend on it, see `TimedProgram`
    sharding = Sharding(job.stage, shards, replicas, job.prefetch, behind_forward=job.window == "all")
    frozen = job.parameters - job.synced if job.stage == 3 else 0
    elements, prices = (job.synced / job.cut, frozen / job.cut), sharded_wires(job, topology)
    communication, seconds = all_units(1)
    if job.accumulation > 1:
        communication, seconds = _continued((communication, seconds), all_units(2), job.accumulation - 1)
    compute = job.accumulation * (forward + backward)
    return communication, communication if job.window == "none" else max(0.0, seconds - compute)


def _continued(first: tuple[float, float], second: tuple[float, float], more: float) -> tuple[float, float]:
    """Return the point on the line from ``first`` through ``second``, ``more`` times their distance after ``first``."""
    a, b = (x + more * (y - x) for x, y in zip(first, second, strict=True))
    return a, b


@lru_cache(maxsize=32)
def _timed_program(
    plan: Plan | None, calls: int, few: int | None, synced: float, frozen: float,
    sharding: Sharding, itemsize: int, accumulation: int,
) -> TimedProgram:  # fmt: skip
    """Return the program of a step whose units are the buckets of ``plan``, or ``few`` of ``calls`` equal ones.

    Forward and backward of all units take one second each, in proportion to the bytes of the buckets.
    """
    shares = np.full(few or calls, 1 / calls) if plan is None else plan.nbytes[::-1] / plan.total_bytes
    trained = np.diff(np.rint(np.cumsum([0, *shares]) * synced).astype(int))
    untrained = np.rint(shares * frozen).astype(int)
    units = [
        Unit(str(k), share, share, s + f, f)
        for k, (share, s, f) in enumerate(zip(shares.tolist(), trained.tolist(), untrained.tolist(), strict=True))
    ]
    return TimedProgram(units, sharding, Sizes(WEIGHT_BYTES, itemsize), accumulation, sharding.stage < 2)


@dataclass(frozen=True)
class PredictedStep:
    """A step of ``world`` ranks with ``tokens`` tokens each; times are in seconds.

    ``exposed`` is the part of ``communication`` that no computation hides. ``lost`` is what computation loses to hidden
    communication, and ``idle`` the time in which the stages of a pipeline wait for each other.
    """

    world: int
    tokens: float
    forward: float
    backward: float
    communication: float
    exposed: float
    lost: float = 0.0
    idle: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of computation."""
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        """The step time."""
        return self.compute + self.exposed + self.lost + self.idle

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all ranks together."""
        return self.world * self.tokens / self.seconds

    @property
    def efficiency(self) -> float:
        """Speed relative to ``world`` ranks without communication: compute over step time."""
        return self.compute / self.seconds

    def __repr__(self) -> str:
        return (
            f"{self.world:,} ranks × {self.tokens:,.6g} tokens: {self.seconds:.3g} s per step "
            f"(compute {self.compute:.3g} s, exposed {self.exposed:.3g} of {self.communication:.3g} s), "
            f"{self.tokens_per_second:,.0f} tokens/s, efficiency {self.efficiency:.0%}"
        )


def predict(job: Job, cluster: Cluster, sequences: float = 1) -> PredictedStep:
    """Predict a step with ``sequences`` sequences per GPU.

    Raises `InvalidArgument` unless every micro-batch has a whole number of sequences; `strong` has ``cut_sequences``
    for sequences that several ranks share.
    """
    per_micro_batch = check_float("sequences", sequences, above=0) * job.cut / job.accumulation
    if per_micro_batch != int(per_micro_batch) or per_micro_batch < 1:
        wanted = "a whole number per rank and micro-batch, at least 1: data parallelism cuts none"
        raise InvalidArgument("sequences", sequences, wanted)
    return _predict(job, cluster, sequences * job.context)


def weak(job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int = 1) -> list[PredictedStep]:
    """Predict weak scaling: ``sequences`` on each rank in every world, so that the batch grows with the world."""
    return [predict(job, cluster.of(world), sequences) for world in worlds]


def strong(
    job: Job, cluster: Cluster, worlds: Sequence[int], sequences: int, *, cut_sequences: bool = False
) -> list[PredictedStep]:
    """Predict strong scaling: ``sequences`` in the global batch, divided over the ranks of each world.

    Raises `InvalidArgument` if a world does not give whole sequences to each micro-batch, unless ``cut_sequences`` is
    set. Then a rank may have a fraction of a sequence. That takes a second kind of parallelism, whose cost is left out.
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
    """Return the first of ``worlds`` in which some communication takes as long as the computation that may hide it.

    The global batch is fixed, and sequences may be cut. From this world on some communication is exposed, and if the
    step is one micro-batch, more ranks hardly help. Returns None if no world reaches the wall. Raises
    `InvalidArgument` unless ``worlds`` ascend, and for the window "none", which hides nothing and has no wall.
    """
    if job.window == "none":
        raise InvalidArgument("window", job.window, "backward or all: without overlap there is no wall")
    check_int("sequences", sequences, 1)
    ordered = worlds[:: max(1, len(worlds) - 1)] if isinstance(worlds, range) else worlds  # the two ends of a range
    if any(before >= world for before, world in pairwise((0, *ordered))):
        raise InvalidArgument("worlds", worlds, "integers of at least 1 in ascending order")

    def beyond(world: int) -> bool:
        races = _races(job, cluster.of(world), sequences * job.context / world)
        return any(job.sync(price, 0)[0] >= hiding for price, hiding in races)

    first = bisect_left(worlds, True, key=beyond)  # compute falls with the world, and communication never does
    return worlds[first] if first < len(worlds) else None


def best_cap(job: Job, cluster: Cluster, sequences: int = 1) -> float:
    """Return the bucket cap in bytes of the shortest step; 1, 2, 4, … 64 Ki equal buckets are tried."""
    caps = [job.wire_bytes / 2.0**power for power in range(17)]
    times = [predict(replace(job, cap=cap, plan=None), cluster, sequences).seconds for cap in caps]
    return caps[times.index(min(times))]


def _predict(job: Job, cluster: Cluster, tokens: float) -> PredictedStep:
    forward, backward = (operations / cluster.flops for operations in job.operations(tokens))
    if job.stage:
        per_micro_batch = (job.spread * seconds / job.accumulation for seconds in (forward, backward))
        communication, exposed = sharded_sync(job, cluster.data_ranks(job.cut), *per_micro_batch)
    else:
        ((price, hiding),) = _races(job, cluster, tokens)
        communication, exposed = job.sync(price, hiding)
    lost = cluster.contention * max(0.0, communication - exposed)
    idle = (job.stages - 1) / (job.chunks * job.accumulation) * (forward + backward)
    return PredictedStep(cluster.world, tokens, forward, backward, communication, exposed, lost, idle)


def _races(job: Job, cluster: Cluster, tokens: float) -> list[tuple[Price, float]]:
    """Return (price, seconds) of each communication that may hide, and of the computation that hides it.

    Prices are functions of the bytes of the *gradients*; seconds are those of one micro-batch, times `Job.spread`.
    """
    operations = job.operations(tokens / job.accumulation)
    forward, backward = (job.spread * share / cluster.flops for share in operations)
    behind_forward, topology = job.window == "all", cluster.data_ranks(job.cut)
    if not job.stage:
        behind = 0.0 if job.window == "none" else backward + (forward if behind_forward else 0.0)
        return [(all_reduce(job.algorithm, topology), behind)]
    prices = sharded_wires(job, topology)
    gathered = job.parameters if job.stage == 3 else job.synced  # stage 3 shards frozen weights, too
    weights = WEIGHT_BYTES * gathered / job.wire_bytes
    gather: Price = lambda nbytes: prices.all_gather(weights * nbytes)  # noqa: E731
    if job.stage < 3:
        return [(prices.reduce_scatter, backward), *([(gather, forward)] if behind_forward else [])]
    shard = 1 / topology.per_node if job.hybrid else 0.0
    across: Price = lambda nbytes: prices.across(shard * nbytes) if job.hybrid else 0.0  # noqa: E731
    last: Price = lambda nbytes: gather(nbytes) + prices.reduce_scatter(nbytes) + across(nbytes)  # noqa: E731
    return [(gather, forward), (last, backward)]


DAY = 86_400.0
"""Seconds of a day."""


@dataclass(frozen=True)
class Interruptions:
    """Published ``count`` of interruptions of one job on ``gpus`` GPUs in ``days`` days, with its ``source``."""

    count: int
    days: float
    gpus: int
    source: str

    def __post_init__(self) -> None:
        check_int("count", self.count, 1)
        check_float("days", self.days, above=0)
        check_int("gpus", self.gpus, 1)

    @property
    def per_gpu(self) -> float:
        """Mean seconds between failures of one GPU, including its share of the machine."""
        return self.days * DAY * self.gpus / self.count

    def between(self, gpus: int) -> float:
        """Return the mean seconds between failures of a job on ``gpus`` GPUs."""
        return self.per_gpu / check_int("gpus", gpus, 1)

    def per_day(self, gpus: int) -> float:
        """Return the expected failures per day of a job on ``gpus`` GPUs."""
        return DAY / self.between(gpus)


LLAMA_3 = Interruptions(
    count=419,
    days=54,
    gpus=16_384,
    source="Llama Team, AI @ Meta, The Llama 3 Herd of Models (2024), section 3.3.4: 466, of which 47 were planned",
)
"""The unexpected interruptions of a snapshot of the training of Llama 3 405B on up to 16,384 H100."""


class Shares(NamedTuple):
    """Shares of the time for new steps (goodput), saving, repeated steps and restarting; their sum is 1."""

    goodput: float
    saving: float
    repeated: float
    restarting: float


@dataclass(frozen=True)
class Recovery:
    """A job with failures, ``between`` seconds apart on average, which resumes from its last checkpoint.

    Saving takes ``checkpoint`` seconds, and restarting ``restart``. A failure may come while the job trains, saves or
    restarts; steps after the last checkpoint are lost.
    """

    between: float
    checkpoint: float
    restart: float

    def __post_init__(self) -> None:
        check_float("between", self.between, above=0)
        check_float("checkpoint", self.checkpoint, above=0)
        check_float("restart", self.restart, minimum=0)

    @property
    def young(self) -> float:
        """Young's interval in seconds, √(2 · checkpoint · between): the best if checkpoint is far below between.

        J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974).
        """
        return sqrt(2 * self.checkpoint * self.between)

    @property
    def daly(self) -> float:
        """Daly's interval in seconds, to a higher order: good even if failures are nearly as frequent as checkpoints.

        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006).
        """
        if self.checkpoint >= 2 * self.between:
            return self.between
        part = self.checkpoint / (2 * self.between)
        return self.young * (1 + sqrt(part) / 3 + part / 9) - self.checkpoint

    def shares(self, interval: float) -> Shares:
        """Return the shares of the time with ``interval`` seconds of training between checkpoints.

        Daly's (2006) complete model: between two failures E[⌊(life − restart)/(interval + checkpoint)⌋] intervals are
        saved, which for an exponential life of mean M is e^(−restart/M) / (e^((interval + checkpoint)/M) − 1).
        """
        interval, mean = check_float("interval", interval, above=0), self.between
        saved = exp(-self.restart / mean - (interval + self.checkpoint) / mean)
        saved /= -expm1(-(interval + self.checkpoint) / mean)
        goodput, saving = saved * interval / mean, saved * self.checkpoint / mean
        restarting = 1 - exp(-self.restart / mean)
        return Shares(goodput, saving, 1 - goodput - saving - restarting, restarting)

    def simulate(self, interval: float, failures: int = 100_000, seed: int = 0) -> Estimate:
        """Estimate the goodput of a run with this many ``failures``: after each it restarts, then trains and saves."""
        cycle = check_float("interval", interval, above=0) + self.checkpoint
        rng = np.random.default_rng(check_int("seed", seed, 0))
        lives = rng.exponential(self.between, check_int("failures", failures, 2))
        useful = interval * np.floor(np.maximum(lives - self.restart, 0) / cycle)
        goodput = float(useful.sum() / lives.sum())
        residual = useful - goodput * lives  # the error of a quotient of two means, to first order
        return Estimate(goodput, float(residual.std() / lives.mean() / np.sqrt(failures)))
