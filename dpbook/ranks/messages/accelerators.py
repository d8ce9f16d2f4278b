"""Which device a rank has, and a process group that serves it and the CPU."""

import os

import torch
import torch.distributed as dist


def own_device() -> tuple[torch.device, str]:
    """The accelerator of this rank's local rank, and the backends of a group for its tensors and those of the CPU.

    Where there are fewer accelerators than ranks on this machine none takes one: NCCL refuses two ranks on one. Nor
    does it where torch has no backend of the accelerator's own, as on a Mac. Reads what torchrun sets.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    backend = dist.get_default_backend_for_device(kind) if kind else dist.Backend.GLOO
    if backend == dist.Backend.GLOO or torch.accelerator.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu"), dist.Backend.GLOO
    device = torch.device(kind.type, int(os.environ["LOCAL_RANK"]))
    return device, f"cpu:gloo,{device.type}:{backend}"


def regroup(device: torch.device, backends: str) -> None:
    """In a rank of `dpbook.ranks.start`: leave the group of gloo alone, and join one of ``backends`` for ``device``."""
    before, rank, world = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("regrouped", dist.distributed_c10d._get_default_store())
    dist.destroy_process_group()
    torch.accelerator.set_device_index(device)
    dist.init_process_group(backends, store=store, rank=rank, world_size=world, device_id=device)
    del before  # its connections, which a slower rank may have used until it came here
