"""How long an all-reduce takes between real processes, over a range of message sizes. Only they load torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Program, Schedule, bus_factor
from dpbook.core import DATA, DpbookError, InvalidArgument, check_int
from dpbook.ranks.starting import start

if TYPE_CHECKING:
    import torch

AllReduce = Program | Schedule | None
ITEMSIZE = 4
SIZES = tuple(2**power for power in range(10, 25))
"""1 KiB to 16 MiB, in bytes."""
SIZES_OF_ACCELERATORS = tuple(2**power for power in range(10, 31))
"""1 KiB to 1 GiB: on links as fast as theirs a call is all bandwidth from some hundred MiB on only."""
IN_A_ROW = 5
"""Calls that are timed together on an accelerator: it begins the next while the host still asks for others. nccl-tests
takes 20."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Measured calls of one all-reduce over ``world`` ranks.

    ``nbytes``: the bytes of each rank's buffer, int64, shape (points,). ``times``: the seconds of each call on the rank
    that took longest, shape (points, repeats). The bandwidths, shape (points,), are bytes per second as nccl-tests
    defines them, see `dpbook.collectives.pricing.schedule_cost`. ``backend``: of torch.distributed, that carried the
    bytes.
    """

    world: int
    nbytes: NDArray[np.int64]
    times: NDArray[np.float64]
    backend: str = "gloo"

    @property
    def seconds(self) -> NDArray[np.float64]:
        """The median over the repeats, shape (points,)."""
        return np.asarray(np.median(self.times, axis=1))

    @property
    def algbw(self) -> NDArray[np.float64]:
        return np.asarray(self.nbytes / self.seconds)

    @property
    def busbw(self) -> NDArray[np.float64]:
        return np.asarray(self.algbw * bus_factor(self.world))

    def __repr__(self) -> str:
        """A table in the same units for every size, so that columns can be read down."""
        rows = zip(self.nbytes, 1e6 * self.seconds, self.algbw / 1e9, self.busbw / 1e9, strict=True)
        head = f"{'bytes':>12} {'µs':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}"
        return "\n".join([head, *(f"{n:12,} {us:10,.0f} {alg:11.3f} {bus:11.3f}" for n, us, alg, bus in rows)])


def published_sweep() -> Sweep:
    """All-reduce on 8 H200 with NCCL, from 32 KiB to 16 GiB; each time a mean of 20 calls. The file has the source."""
    held = json.loads((DATA / "nccl_h200.json").read_text(encoding="utf-8"))
    seconds = np.array(held["seconds"])[:, None]
    return Sweep(held["ranks"], np.array(held["bytes"], np.int64), seconds, "nccl")


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
        repeats: timed calls per size. One more, which opens connections, goes ahead and is not counted.

    Raises `InvalidArgument`, and `RankFailed` if a rank fails or all is not done after ``timeout`` seconds.
    """
    world, checked = check_int("world", world, 1), _check(all_reduce, nbytes, repeats)
    if isinstance(all_reduce, Schedule) and all_reduce.world != world:
        raise InvalidArgument("all_reduce", all_reduce, f"a schedule for {world} ranks")
    return start(measure, [(all_reduce, *checked)] * world, timeout=timeout)[0]  # type: ignore[no-any-return]


def sweep_accelerators(
    world: int, nbytes: Sequence[int] = SIZES_OF_ACCELERATORS, repeats: int = 25, *, timeout: float = 120.0
) -> Sweep:
    """The same of torch's all-reduce over ``world`` accelerators of this machine, by the backend that is their own.

    Raises besides `RankFailed` where there are fewer.
    """
    world, checked = check_int("world", world, 1), _check(None, nbytes, repeats)
    return start(measure_accelerators, [checked] * world, timeout=timeout)[0]  # type: ignore[no-any-return]


def measure_accelerators(nbytes: Sequence[int], repeats: int) -> Sweep:
    """What `sweep_accelerators` does in each process."""
    from dpbook.ranks.messages.accelerators import own_device, regroup

    device, backends = own_device()
    if device.type == "cpu":
        raise DpbookError("there is not an accelerator for each rank here, with a backend of torch.distributed")
    regroup(device, backends)
    return measure(None, nbytes, repeats, device)


def measure(all_reduce: AllReduce, nbytes: Sequence[int], repeats: int, device: torch.device | None = None) -> Sweep:
    """What `sweep` does in each process: every rank of the current process group calls it, and gets the same result.

    A call is timed from a barrier to its end on the slowest rank; on an accelerator some calls in a row are, from one
    event of its stream to another, and their mean counts. The sizes take turns, so that a machine that is slow
    for a while is slow for all of them, in another order in every turn, so that none always follows the largest. The
    order is drawn, the same on all ranks and in every run. The buffers lie on ``device``, by default the CPU, and a
    rank program can use no other; the times go over the group's backend for the CPU. Raises `InvalidArgument`.
    """
    import torch
    import torch.distributed as dist

    from dpbook.ranks.messages.device_clock import moment, now
    from dpbook.ranks.messages.execution import execute

    sizes, repeats = _check(all_reduce, nbytes, repeats)
    call = dist.all_reduce if all_reduce is None else partial(execute, all_reduce)
    device = device or torch.device("cpu")
    calls = 1 if device.type == "cpu" else IN_A_ROW
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
            now(device)  # when both have come
            times[point, turn] = begin.until(end) / calls
    dist.all_reduce(times, dist.ReduceOp.MAX)
    backend = dist.get_default_backend_for_device(device)
    return Sweep(dist.get_world_size(), np.array(sizes, np.int64), times[:, 1:].numpy(), backend)


def _check(all_reduce: object, nbytes: Sequence[int], repeats: int) -> tuple[list[int], int]:
    """The sizes and the repeats, if all is well."""
    if not (all_reduce is None or isinstance(all_reduce, Schedule) or callable(all_reduce)):
        raise InvalidArgument("all_reduce", all_reduce, "a Schedule, a rank program, or None for torch's own")
    expected = f"one or more sizes in bytes, each a positive multiple of {ITEMSIZE}"
    try:
        sizes = [check_int("nbytes", size, ITEMSIZE) for size in nbytes]
    except (TypeError, InvalidArgument):
        raise InvalidArgument("nbytes", nbytes, expected) from None
    if not sizes or any(size % ITEMSIZE for size in sizes):
        raise InvalidArgument("nbytes", nbytes, expected)
    return sizes, check_int("repeats", repeats, 1)
