"""The step of a sharded job, from the simulated one: every bucket is a unit, gathered, computed with and reduced."""

import numpy as np

from dpbook.collectives import Topology
from dpbook.core import InvalidArgument
from dpbook.overlap import Sharding, Sizes, Unit, Wires, simulate_sharded
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
    two of the former and `FEW` of the latter tell how much one more adds.
    """

    def micro_batches(count: int, units: int | None) -> tuple[float, float]:
        step = simulate_sharded(_units(job, forward, backward, units), how, prices, sizes=sizes, accumulation=count)
        return step.busy("communication"), step.duration

    def all_units(count: int) -> tuple[float, float]:
        few = FEW + 2 * job.prefetch
        if job.plan is not None or job.calls <= 2 * few:
            return micro_batches(count, None)
        return _continued(micro_batches(count, few), micro_batches(count, 2 * few), job.calls / few - 1)

    prices, sizes = sharded_wires(job, where), Sizes(WEIGHT, job.itemsize)
    replicas = where.nodes if job.hybrid else 1
    early = job.window == "all"
    how = Sharding(job.stage, where.world // replicas, replicas, job.prefetch, behind_forward=early)
    communication, seconds = all_units(1)
    if job.accumulation > 1:
        communication, seconds = _continued((communication, seconds), all_units(2), job.accumulation - 1)
    compute = job.accumulation * (forward + backward)
    return communication, communication if job.window == "none" else max(0.0, seconds - compute)


def _continued(first: tuple[float, float], second: tuple[float, float], more: float) -> tuple[float, float]:
    """Where a line from ``first`` through ``second`` is ``more`` such pieces after the first."""
    a, b = (x + more * (y - x) for x, y in zip(first, second, strict=True))
    return a, b


def _units(job: Job, forward: float, backward: float, count: int | None) -> list[Unit]:
    """The job's buckets in the order of forward, or the first ``count`` of equal ones."""
    if job.plan is None:
        shares = np.full(count or job.calls, 1 / job.calls)
    else:
        shares = job.plan.nbytes[::-1] / job.plan.total_bytes
    synced = np.diff(np.rint(np.cumsum([0, *shares]) * (job.synced / job.cut)).astype(int))
    frozen = np.rint(shares * (job.parameters - job.synced) / job.cut).astype(int) if job.stage == 3 else 0 * synced
    return [
        Unit(str(k), forward * share, backward * share, s + f, f)
        for k, (share, s, f) in enumerate(zip(shares.tolist(), synced.tolist(), frozen.tolist(), strict=True))
    ]
