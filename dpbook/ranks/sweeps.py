"""Times of an all-reduce between real processes, over a range of message sizes. Only the processes load torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Program, Schedule, bus_factor
from dpbook.core import DATA, InvalidArgument, check_int, check_one_of
from dpbook.ranks.starting import start

if TYPE_CHECKING:
    import torch

    from dpbook.planning import Algorithm

AllReduce = Program | Schedule | None
"""An all-reduce to measure; None is that of torch.distributed."""
ITEMSIZE = 4
SIZES = tuple(2**power for power in range(10, 25))
"""Default sizes between processes, in bytes: 1 KiB to 16 MiB."""
ACCELERATOR_SIZES = tuple(2**power for power in range(10, 31))
"""Default sizes between accelerators, in bytes: 1 KiB to 1 GiB. Their links are so fast that latency matters up to some
hundred MiB."""
CALLS_IN_A_ROW = 5
"""Calls that are timed together on an accelerator, which begins one while the host still queues others; nccl-tests
times 20."""


PublishedSweep = Literal["h200x8", "b200x32"]
"""Published sweeps: of 8 H200 in one node, and of 32 B200 in four."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Measured calls of one all-reduce over ``world`` ranks.

    ``nbytes``: bytes of each rank's buffer, int64, shape (points,). ``times``: seconds of each call on the slowest
    rank, float64, shape (points, repeats). The bandwidths, shape (points,), are in bytes per second, as nccl-tests
    defines them; see `dpbook.collectives.pricing.schedule_cost`. ``backend``: the backend of torch.distributed that
    carried the bytes. ``algorithms``: NCCL's algorithm for each size, empty if unknown.
    """

    world: int
    nbytes: NDArray[np.int64]
    times: NDArray[np.float64]
    backend: str = "gloo"
    algorithms: tuple[Algorithm, ...] = ()

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Median over the repeats, shape (points,)."""
        return np.asarray(np.median(self.times, axis=1))

    @property
    def algbw(self) -> NDArray[np.float64]:
        return np.asarray(self.nbytes / self.seconds)

    @property
    def busbw(self) -> NDArray[np.float64]:
        return np.asarray(self.algbw * bus_factor(self.world))

    def __repr__(self) -> str:
        """Return a table with the same units for every size, so that its columns can be compared."""
        rows = zip(self.nbytes, 1e6 * self.seconds, self.algbw / 1e9, self.busbw / 1e9, strict=True)
        head = f"{'bytes':>12} {'µs':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}"
        return "\n".join([head, *(f"{n:12,} {us:10,.0f} {alg:11.3f} {bus:11.3f}" for n, us, alg, bus in rows)])


def published_sweep(name: PublishedSweep = "h200x8") -> Sweep:
    """Return a published sweep of NCCL's all-reduce from 32 KiB to 16 GiB; each time is a mean of 20 calls.

    The files have the sources. Raises `InvalidArgument` for an unknown ``name``.
    """
    check_one_of("name", name, get_args(PublishedSweep))
    recorded = json.loads((DATA / f"nccl_{name}.json").read_text(encoding="utf-8"))
    nbytes, seconds = np.array(recorded["bytes"], np.int64), np.array(recorded["seconds"])[:, None]
    chosen = recorded["algorithms"]
    algorithms = tuple(next(a for a, most in chosen if most is None or n <= most) for n in nbytes)
    return Sweep(recorded["ranks"], nbytes, seconds, "nccl", algorithms)


def sweep(
    world: int,
    all_reduce: AllReduce = None,
    nbytes: Sequence[int] = SIZES,
    repeats: int = 25,
    *,
    timeout: float = 120.0,
) -> Sweep:
    """Time an all-reduce over ``world`` processes on this machine (gloo), once per size and repeat.

    Args:
        all_reduce: a schedule or a rank program; None is the all-reduce of torch.distributed itself.
        nbytes: sizes of the buffer of float32, in bytes: positive multiples of 4.
        repeats: timed calls per size, after one that opens connections and is not counted.

    Raises `InvalidArgument`, and `RankFailed` if a rank fails or the sweep takes longer than ``timeout`` seconds.
    """
    world, checked = check_int("world", world, 1), _check(all_reduce, nbytes, repeats)
    if isinstance(all_reduce, Schedule) and all_reduce.world != world:
        raise InvalidArgument("all_reduce", all_reduce, f"a schedule for {world} ranks")
    return start(measure, [(all_reduce, *checked)] * world, timeout=timeout)[0]  # type: ignore[no-any-return]


def sweep_accelerators(
    world: int, nbytes: Sequence[int] = ACCELERATOR_SIZES, repeats: int = 25, *, timeout: float = 120.0
) -> Sweep:
    """Time torch's all-reduce over ``world`` accelerators of this machine, with the default backend of their kind.

    The arguments and errors are those of `sweep`; `RankFailed` also if the machine has fewer accelerators.
    """
    world, checked = check_int("world", world, 1), _check(None, nbytes, repeats)
    return start(measure_accelerators, [checked] * world, timeout=timeout)[0]  # type: ignore[no-any-return]


def measure_accelerators(nbytes: Sequence[int], repeats: int) -> Sweep:
    """Carry out `sweep_accelerators` in one rank of `start`."""
    from dpbook.ranks.devices import join_accelerator

    return measure(None, nbytes, repeats, join_accelerator())


def measure(all_reduce: AllReduce, nbytes: Sequence[int], repeats: int, device: torch.device | None = None) -> Sweep:
    """Time an all-reduce over the current process group; every rank calls this, and returns the same result.

    A call is timed from a barrier to its end on the slowest rank. On an accelerator `CALLS_IN_A_ROW` calls are timed
    together, from one event of its stream to another, and their mean counts; a fifth of the difference with which ranks
    leave the barrier is in it, and so in the latency of small sizes. The sizes take turns, so that a machine
    that is slow for a while is slow for all of them. Each turn has another order, so that no size always follows the
    largest; the order is drawn, and the same on all ranks and in every run.

    The buffers lie on ``device``, by default the CPU, which is the only one that a rank program can use. The times are
    reduced over the group's backend for the CPU. Raises `InvalidArgument`.
    """
    import torch
    import torch.distributed as dist

    from dpbook.ranks.devices import moment, now
    from dpbook.ranks.messages import execute

    sizes, repeats = _check(all_reduce, nbytes, repeats)
    call = dist.all_reduce if all_reduce is None else partial(execute, all_reduce)
    device = device or torch.device("cpu")
    calls = 1 if device.type == "cpu" else CALLS_IN_A_ROW
    buffer = torch.zeros(max(sizes) // ITEMSIZE, device=device)
    times = torch.zeros(len(sizes), 1 + repeats, dtype=torch.float64, device="cpu")
    order = np.random.default_rng(0)
    for turn in range(1 + repeats):
        for point in order.permutation(len(sizes)).tolist():
            view = buffer[: sizes[point] // ITEMSIZE]
            dist.barrier()
            begin = moment(device)
            for _ in range(calls):
                call(view)
            end = moment(device)
            now(device)  # until both events have passed
            times[point, turn] = begin.until(end) / calls
    dist.all_reduce(times, dist.ReduceOp.MAX)
    backend = dist.get_default_backend_for_device(device)
    return Sweep(dist.get_world_size(), np.array(sizes, np.int64), times[:, 1:].numpy(), backend)


def _check(all_reduce: object, nbytes: Sequence[int], repeats: int) -> tuple[list[int], int]:
    """Return the sizes and the repeats, if all arguments are valid."""
    if not (all_reduce is None or isinstance(all_reduce, Schedule) or callable(all_reduce)):
        raise InvalidArgument("all_reduce", all_reduce, "a Schedule, a rank program, or None for torch's own")
    try:
        sizes = [check_int("nbytes", size, ITEMSIZE) for size in nbytes]
    except (TypeError, InvalidArgument):
        sizes = []
    if not sizes or any(size % ITEMSIZE for size in sizes):
        raise InvalidArgument("nbytes", nbytes, f"one or more sizes in bytes, each a positive multiple of {ITEMSIZE}")
    return sizes, check_int("repeats", repeats, 1)
