"""The device of a rank: its choice, a process group that serves it, and times on it.

The work of an accelerator is queued: it goes on after the call that requested it has returned.
"""

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist


def own_device() -> tuple[torch.device, str]:
    """Return the accelerator of this rank, and the backends of a group for its tensors and those of the CPU.

    The device is the CPU if there are fewer accelerators than ranks on this machine, since NCCL refuses two ranks on
    one, or if torch has no backend for the accelerator, as on a Mac. The function reads variables that torchrun sets.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    backend = dist.get_default_backend_for_device(kind) if kind else dist.Backend.GLOO
    if backend == dist.Backend.GLOO or torch.accelerator.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu"), dist.Backend.GLOO
    device = torch.device(kind.type, int(os.environ["LOCAL_RANK"]))
    return device, f"cpu:gloo,{device.type}:{backend}"


def regroup(device: torch.device, backends: str) -> None:
    """Replace the gloo group of a rank of `dpbook.ranks.start` by one of ``backends`` for ``device``."""
    before, rank, world = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("regrouped", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    torch.accelerator.set_device_index(device)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world, device_id=device)
    del before  # only now: a slower rank may have used its connections until it reached the new group


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
