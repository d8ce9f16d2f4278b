"""The step of a sharded job, from the simulated one: every bucket is a unit, gathered, computed with and reduced."""

from functools import lru_cache

import numpy as np

from dpbook.collectives import Topology
from dpbook.core import InvalidArgument
from dpbook.overlap import Plan, Sharding, Sizes, TimedProgram, Unit, Wires
from dpbook.planning.job import Job
from dpbook.planning.sync import wires

WEIGHT = 2
"""Bytes of a weight on the wire: bf16, whatever the gradients are."""
FEW = 32
"""Equal units from which on each adds as much to a step as the one before it (with nothing gathered far ahead)."""


def sharded_wires(job: Job, where: Topology) -> Wires:
    """What the job's collectives cost. Raises `InvalidArgument` for hybrid sharding with nobody to share with."""
    if job.hybrid and where.per_node == 1 < where.nodes:
        expected = "False where a node has one data rank: there is nobody inside it to share a model with"
        raise InvalidArgument("hybrid", job.hybrid, expected)
    return wires(job.algorithm, where, job.hybrid)


def sharded_sync(job: Job, where: Topology, forward: float, backward: float) -> tuple[float, float]:
    """Seconds of the collectives of a step of stage 1 to 3, and how many of them nothing hides.

    ``forward`` and ``backward`` are the seconds of one micro-batch. Micro-batches are alike, and so are equal units:
    two of the former and `FEW` of the latter tell sharding much one more adds.
    """

    def micro_batches(count: int, units: int | None) -> tuple[float, float]:
        program = _timed_program(job.plan, job.calls, units, *elements, sharding, job.itemsize, count)
        seconds = program.seconds(prices, forward=forward, backward=backward)
        return program.busy("communication", seconds), max(program.run(seconds)[1])

    def all_units(count: int) -> tuple[float, float]:
        few = FEW + 2 * job.prefetch
        if job.plan is not None or job.calls <= 2 * few:
            return micro_batches(count, None)
        return _continued(micro_batches(count, few), micro_batches(count, 2 * few), job.calls / few - 1)

    replicas = where.nodes if job.hybrid else 1
    shards = where.world // replicas if replicas > 1 else 1  # the works are the same for any number, see `TimedProgram`
    sharding = Sharding(job.stage, shards, replicas, job.prefetch, behind_forward=job.window == "all")
    frozen = job.parameters - job.synced if job.stage == 3 else 0
    elements, prices = (job.synced / job.cut, frozen / job.cut), sharded_wires(job, where)
    communication, seconds = all_units(1)
    if job.accumulation > 1:
        communication, seconds = _continued((communication, seconds), all_units(2), job.accumulation - 1)
    compute = job.accumulation * (forward + backward)
    return communication, communication if job.window == "none" else max(0.0, seconds - compute)


def _continued(first: tuple[float, float], second: tuple[float, float], more: float) -> tuple[float, float]:
    """Where a line from ``first`` through ``second`` is ``more`` such pieces after the first."""
    a, b = (x + more * (y - x) for x, y in zip(first, second, strict=True))
    return a, b


@lru_cache(maxsize=32)
def _timed_program(
    plan: Plan | None, calls: int, few: int | None, synced: float, frozen: float,
    sharding: Sharding, itemsize: int, accumulation: int,
) -> TimedProgram:  # fmt: skip
    """The works of a step of the buckets of ``plan`` in the order of forward, or of the first ``few`` of equal ones.

    A unit takes as much of a second of forward and of backward as it has of the ``synced`` and ``frozen`` parameters.
    """
    shares = np.full(few or calls, 1 / calls) if plan is None else plan.nbytes[::-1] / plan.total_bytes
    trained = np.diff(np.rint(np.cumsum([0, *shares]) * synced).astype(int))
    kept = np.rint(shares * frozen).astype(int)
    units = [
        Unit(str(k), share, share, s + f, f)
        for k, (share, s, f) in enumerate(zip(shares.tolist(), trained.tolist(), kept.tolist(), strict=True))
    ]
    return TimedProgram(units, sharding, Sizes(WEIGHT, itemsize), accumulation, sharding.stage < 2)
