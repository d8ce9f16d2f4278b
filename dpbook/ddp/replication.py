"""Make all replicas equal: the same parameters in the same order, with rank 0's values."""

from collections.abc import Iterable
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn

from dpbook.core import ReplicasDiffer


def replicate(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank rank 0's parameters and buffers, in place.

    Raises `ReplicasDiffer` on every rank, naming the first difference, where the ranks' modules do not have the same
    parameters and buffers: same names, shapes and dtypes, and the same ones trained.
    """
    check_alike(module, group)
    broadcast([*module.parameters(), *module.buffers()], group)


def check_alike(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Compare the names, shapes and dtypes of parameters and buffers over all ranks; see `replicate`."""
    mine = [_description(*named) for named in (*module.named_parameters(), *module.named_buffers())]
    found: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(found, mine, group)
    for rank, theirs in enumerate(found):
        if theirs != found[0]:
            pairs = zip([*found[0], "nothing"], [*theirs, "nothing"], strict=False)
            ours, other = next((a, b) for a, b in pairs if a != b)
            raise ReplicasDiffer(
                f"the modules of ranks 0 and {rank} differ: rank 0 has {ours}, rank {rank} has {other}"
            )


def broadcast(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None, source: int = 0) -> None:
    """Copy rank ``source``'s values into every rank's ``tensors``, one message per dtype and device."""
    with torch.no_grad():
        for _, alike in groupby(sorted(tensors, key=_kind), key=_kind):
            batch = list(alike)
            flat = torch.cat([tensor.reshape(-1) for tensor in batch])
            dist.broadcast(flat, group_src=source, group=group)
            for tensor, values in zip(batch, flat.split([t.numel() for t in batch]), strict=True):
                tensor.copy_(values.view_as(tensor))


def _kind(tensor: torch.Tensor) -> tuple[str, str]:
    return str(tensor.dtype), str(tensor.device)


def _description(name: str, tensor: torch.Tensor) -> str:
    trained = "trained" if tensor.requires_grad else "not trained"
    return f"{name} {tuple(tensor.shape)} {tensor.dtype}, {trained}"
