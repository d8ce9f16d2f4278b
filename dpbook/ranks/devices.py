"""The device of a rank: its choice, a process group that serves it, and times on it.

The work of an accelerator is queued: it goes on after the call that requested it has returned.
"""

import os
import resource
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from dpbook.core import DpbookError, machine


def own_device() -> tuple[torch.device, str]:
    """Return the accelerator of this rank, and the backends of a group for its tensors and those of the CPU.

    The device is the CPU if torch sees no accelerator, or has no backend for it, as on a Mac. A rank that sees several
    accelerators takes the one with the number of its local rank. A rank that sees one takes that one: the launcher may
    show each rank its own. The function reads variables that torchrun sets.

    Raises `DpbookError` if a rank sees several accelerators, but fewer than there are ranks on this machine.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    backend = dist.get_default_backend_for_device(kind) if kind else dist.Backend.GLOO
    if backend == dist.Backend.GLOO:
        return torch.device("cpu"), dist.Backend.GLOO
    visible, local = torch.accelerator.device_count(), int(os.environ["LOCAL_RANK"])
    ranks = max(int(os.environ["LOCAL_WORLD_SIZE"]), local + 1)
    if 1 < visible < ranks:
        raise DpbookError(
            f"local rank {local} sees {visible} accelerators, and this machine has {ranks} ranks, one for each: start "
            f"{visible} ranks (--nproc {visible}), or hide the accelerators (CUDA_VISIBLE_DEVICES=) to train on the CPU"
        )
    device = torch.device(kind.type, local if visible > 1 else 0)
    return device, f"cpu:gloo,{device.type}:{backend}"


def join_accelerator() -> torch.device:
    """Join a group for the accelerator of a rank of `dpbook.ranks.start`, and return the accelerator.

    Raises `DpbookError` if there is none for this rank, or torch has no backend for it.
    """
    device, backends = own_device()
    if device.type == "cpu":
        raise DpbookError("this machine does not have an accelerator with a backend of torch.distributed for each rank")
    regroup(device, backends)
    return device


def join_group(device: torch.device, backends: str, timeout: timedelta) -> None:
    """Join the group that torchrun's variables describe, with the result of `own_device` for an accelerator.

    Raises `DpbookError` if another rank has the same accelerator.
    """
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    _init(device, backends, dist.PrefixStore("default_pg", store), rank, world, timeout)


def regroup(device: torch.device, backends: str) -> None:
    """Replace the gloo group of a rank of `dpbook.ranks.start` by one of ``backends`` for ``device``.

    Raises `DpbookError` if another rank has the same accelerator.
    """
    before, rank, world = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("regrouped", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    _init(device, backends, store, rank, world)
    del before  # only now: a slower rank may have used its connections until it reached the new group


def _init(
    device: torch.device, backends: str, store: dist.Store, rank: int, world: int, timeout: timedelta | None = None
) -> None:
    """Select the accelerator and initialise the group, unless another rank has the same accelerator by its UUID."""
    # NCCL refuses that too, but only some of its versions say so. Torch may not know the UUID.
    properties = torch.get_device_module(device).get_device_properties(device)
    if uuid := getattr(properties, "uuid", None):
        first = store.compare_set(f"accelerator/{uuid}", "", str(rank)).decode()
        if first != str(rank):
            raise DpbookError(
                f"ranks {first} and {rank} have the same accelerator ({properties.name}, {uuid}): start one rank per "
                "accelerator, and let each rank see its own or all of them"
            )
    torch.accelerator.set_device_index(device)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world, timeout=timeout, device_id=device)


def now(device: torch.device) -> float:
    """Return `time.perf_counter`, in seconds, once all work queued on ``device`` is done; a CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class DeviceMoment:
    """A moment in the work of a device, at which all work queued so far is done; on the CPU the current time."""

    seconds: float = 0.0
    event: torch.Event | None = None

    def until(self, later: "DeviceMoment") -> float:
        """Return the seconds from here to a ``later`` moment of the same device, which must have passed."""
        if self.event is None:
            return later.seconds - self.seconds
        return 1e-3 * float(self.event.elapsed_time(later.event))


def moment(device: torch.device) -> DeviceMoment:
    """Return the end of the work queued on the current stream of ``device``, without waiting for it."""
    if device.type == "cpu":
        return DeviceMoment(time.perf_counter())
    event = torch.Event(device, enable_timing=True)
    event.record()
    return DeviceMoment(event=event)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of this process in bytes: of torch's allocator on an accelerator, else of the process.

    The allocator does not count NCCL's buffers and the context of the accelerator.
    """
    if device.type != "cpu":
        return int(torch.accelerator.max_memory_allocated(device))
    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def device_name(device: torch.device) -> str:
    """Return the name of a device: that of its driver, or of the processor."""
    if device.type == "cpu":
        return machine.processor()
    return str(torch.get_device_module(device).get_device_name(device))
