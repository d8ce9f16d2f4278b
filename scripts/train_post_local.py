"""Complete training script for post-local SGD, to copy and to change. It needs only torch.

    python train_post_local.py                                            # one process
    torchrun --nproc-per-node=4 train_post_local.py --every 8             # four, each on a GPU if there are any
    torchrun --nnodes=2 --nproc-per-node=8 ... train_post_local.py --group 8

For `--begin` steps gradients are averaged over all ranks, as DDP does. Then each rank steps alone, and the *weights*
are averaged once in `--every` steps: T. Lin, S. U. Stich, K. K. Patel and M. Jaggi, "Don't Use Large Mini-Batches, Use
Local SGD" (2020). Within groups of `--group` ranks, such as a node with its fast links, gradients are still averaged in
every step. The model and the data are toys: put your data in `batch` and your model in `build`.

Tested on CPUs and on a stand-in accelerator, with torch 2.13; with one rank on an NVIDIA H200, with
torch 2.11. Not tested: several GPUs.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

INPUTS, CLASSES = 32, 4


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random points, and for each the index of the nearest of a few random directions; ``seed`` picks them."""
    directions = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    points = torch.randn(size, INPUTS, generator=torch.Generator().manual_seed(seed))
    return points, (points @ directions.T).argmax(1)


def log(text: str) -> None:
    """Print a line, on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def join(cpu: bool) -> torch.device:
    """Join torchrun's process group, or one of this process alone; return this rank's GPU, or the CPU if there is none.

    Exit if a rank would need a GPU that it does not see: training on the CPU instead could go unnoticed for days.
    """
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}).items():
        os.environ.setdefault(name, str(value))
    kind = None if cpu else torch.accelerator.current_accelerator(check_available=True)  # of any vendor
    backend = dist.get_default_backend_for_device(kind) if kind else "gloo"  # a Mac's GPU has no backend
    if kind is None or backend == "gloo":
        dist.init_process_group("gloo")
        if not (cpu or torch.version.cuda or torch.version.hip) and os.path.exists("/dev/nvidiactl"):
            log(f"torch {torch.__version__} is a build without CUDA: this run uses the CPU, and no GPU.")
        return torch.device("cpu")
    visible, local = torch.accelerator.device_count(), int(os.environ["LOCAL_RANK"])
    ranks = max(int(os.environ["LOCAL_WORLD_SIZE"]), local + 1)
    if 1 < visible < ranks:
        raise SystemExit(f"A rank sees {visible} GPUs, and this node has {ranks} ranks. Start {visible}, or add --cpu.")
    # If it sees one, the scheduler has given each rank its own (--gpus-per-task=1). NCCL refuses two ranks on one GPU.
    device = torch.device(kind.type, local if visible > 1 else 0)
    torch.accelerator.set_device_index(device)
    dist.init_process_group(f"cpu:gloo,{device.type}:{backend}", device_id=device)
    return device


def build(options: argparse.Namespace, device: torch.device) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Return the model, whose hook averages gradients for ``begin`` steps, and the optimizer that averages weights."""
    torch.manual_seed(options.seed)
    model = nn.Sequential(nn.Linear(INPUTS, 64), nn.GELU(), nn.Linear(64, CLASSES)).to(device)
    ids = None if device.type == "cpu" else [device.index]
    # Otherwise buffers, such as those of batch norm, would be broadcast in every step, and ranks would wait.
    ddp = DistributedDataParallel(model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)
    group = dist.new_subgroups(options.group)[0] if options.group > 1 else None
    # With the default, True, and no group, all GPUs of a machine form one group, and no rank ever steps alone.
    state = PostLocalSGDState(None, group, options.begin, post_local_gradient_allreduce=group is not None)
    ddp.register_comm_hook(state, post_localSGD_hook)
    optimizer = torch.optim.SGD(
        ddp.parameters(), options.lr, momentum=0.9, fused=True
    )  # each rank has its own momentum
    return ddp, PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(options.every, options.begin))


@torch.no_grad()  # type: ignore[untyped-decorator]
def drift(ddp: DistributedDataParallel) -> float:
    """Return the largest difference between two ranks' values of one weight."""
    least = torch.cat([parameter.flatten() for parameter in ddp.parameters()])
    most = least.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float((most - least).max())


@torch.no_grad()  # type: ignore[untyped-decorator]
def accuracy(ddp: DistributedDataParallel, device: torch.device) -> float:
    """Return the accuracy on 1,000 points that no rank trains on."""
    points, answers = (part.to(device) for part in batch(1000, seed=1))
    return float((ddp.module(points).argmax(1) == answers).float().mean())


def run(options: argparse.Namespace, device: torch.device) -> DistributedDataParallel:
    """Train, and end with the same weights on all ranks."""
    ddp, optimizer = build(options, device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(options.steps):
        points, answers = (part.to(device) for part in batch(options.batch, seed=2 + step * ranks + rank))
        optimizer.zero_grad()
        loss = cross_entropy(ddp(points), answers)
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            total = loss.detach()
            dist.all_reduce(total)
            log(f"step {step + 1}: loss {float(total) / ranks:.3f}, drift {drift(ddp):.1g}")
    values = [*ddp.parameters(), *filter(torch.is_floating_point, ddp.buffers())]
    average_parameters(iter(values), dist.group.WORLD)  # there may have been steps after the last average
    log(f"averaged once more: drift {drift(ddp):.1g}, accuracy {accuracy(ddp, device):.1%}")
    if rank == 0 and options.out:
        torch.save(ddp.module.state_dict(), options.out)
    return ddp


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--begin", type=int, default=20, help="steps that average gradients, before weights are averaged"
    )
    parser.add_argument("--every", type=int, default=8, help="steps between averages of the weights")
    parser.add_argument("--group", type=int, default=1, help="ranks that still average gradients, 1 for none")
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", default="", help="file for the weights")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first weights")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, although there are GPUs")
    options = parser.parse_args(arguments)
    if min(options.steps, options.every, options.group, options.batch) < 1:
        parser.error("--steps, --every, --group and --batch must be 1 or more")
    return options


if __name__ == "__main__":
    options = parse()
    run(options, join(options.cpu))
    dist.destroy_process_group()  # after success only: after an error it would wait for ranks that never join
    sys.stdout.flush()
    os._exit(0)  # at once: a thread of gloo that frees a tensor while Python is being torn down aborts the process
