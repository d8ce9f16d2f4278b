"""`FullySharded` beside torch's `fully_shard` and DDP, and groups of ranks within a larger one."""

import gc
import re
import shutil
import subprocess
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dpbook.ddp import FullySharded
from tests.gpu.checks import NotRun, check

CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def _train(gpu, wrap, width, rows, steps=5):
    """Return the losses of AdamW steps of a model wrapped by ``wrap``, and the bytes that it allocated at the peak."""
    gc.collect()  # wrappers of before, which are in cycles
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    torch.manual_seed(3)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)]).to(gpu.device)
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    model = wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    losses = []
    for step in range(steps):
        draw = torch.Generator().manual_seed(100 * step + gpu.rank)
        x = torch.randn(rows, width, generator=draw).to(gpu.device)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.accelerator.synchronize()
    return losses, torch.accelerator.max_memory_allocated() - before


def _with_torch(net, mesh=None):
    for unit in net:
        fully_shard(unit, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def _sent_over_nvlink(gpu):
    """Return the bytes that this rank's GPU has sent over NVLink, or None if nvidia-smi does not count them."""
    if gpu.is_stand_in or shutil.which("nvidia-smi") is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(gpu.device).uuid}"
    counters = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d", "-i", uuid], capture_output=True, text=True)
    sent = re.findall(r"Data Tx: (\d+) KiB", counters.stdout)
    return 1024 * sum(map(int, sent)) if sent else None


@check(ranks=2)
def three_ways_to_shard_have_the_same_losses(gpu):
    """Five AdamW steps have the same losses with DDP, `fully_shard` and `FullySharded`; peaks, bytes are recorded."""
    width, rows = (64, 8) if gpu.is_stand_in else (2048, 64)
    figures, losses = {}, {}
    mesh = init_device_mesh(gpu.device.type, (gpu.world,))
    for name, wrap in (
        ("DDP", DistributedDataParallel), ("fully_shard", partial(_with_torch, mesh=mesh)),
        ("FullySharded", lambda net: FullySharded(net, units=list(net))),
    ):  # fmt: skip
        before = _sent_over_nvlink(gpu)
        losses[name], figures[f"peak of {name}, B"] = _train(gpu, wrap, width, rows)
        if before is not None:
            figures[f"sent over NVLink with {name}, B"] = _sent_over_nvlink(gpu) - before
    for name, found in losses.items():
        np.testing.assert_allclose(found, losses["DDP"], err_msg=name, **CLOSE)
    if not gpu.is_stand_in:
        assert figures["peak of FullySharded, B"] < figures["peak of DDP, B"], figures
    return figures


@check(ranks=4, lasting=True)
def hybrid_sharding_has_the_losses_of_ddp(gpu):
    """With a mesh of 2 replicas of shards, `fully_shard` has the losses of DDP."""
    if gpu.world % 2:
        raise NotRun("the number of ranks is odd")
    mesh = init_device_mesh(gpu.device.type, (2, gpu.world // 2), mesh_dim_names=("replicas", "shards"))
    expected, _ = _train(gpu, DistributedDataParallel, 256, 16)
    found, peak = _train(gpu, partial(_with_torch, mesh=mesh), 256, 16)
    np.testing.assert_allclose(found, expected, **CLOSE)
    return {"peak, B": peak}
