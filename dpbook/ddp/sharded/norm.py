"""The norm of gradients of which every rank has a part."""

from collections.abc import Sequence
from math import inf

import torch
import torch.distributed as dist

from dpbook.core import check_float
from dpbook.ddp.sharded.row import Row


@torch.no_grad()  # type: ignore[untyped-decorator]
def clip(rows: Sequence[Row], max_norm: float, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Scale the gradients of ``rows`` so that their norm is at most ``max_norm``, and return the norm before.

    The norm is that of all gradients together, a 0-D float32 tensor, alike on all ranks: squares are summed over the
    shards of this rank, then over the ranks of ``group``. The factor is torch's, max_norm / (norm + 1e-6), 1 at most.
    """
    if max_norm != inf:  # which asks for the norm alone
        check_float("max_norm", max_norm, minimum=0)
    if not rows:  # on no rank
        return torch.zeros(())
    gradients = [m.parameter.grad for row in rows for m in row.members if m.parameter.grad is not None]
    squares = torch.zeros((), dtype=torch.float32, device=rows[0].shard.device)
    for gradient in gradients:
        squares += torch.linalg.vector_norm(gradient, dtype=torch.float32).square().to(squares.device)
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
    return norm
