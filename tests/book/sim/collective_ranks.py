"""Scenarios for the ranks of test_collectives.py, in one start per world: results as data."""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.book import sim
from dpbook.book.sim.collectives import communicator

SHORT = timedelta(seconds=2)


def full(value, count=2):
    return torch.full((count,), float(value), device="sim")


def row(rank, world):
    """World numbers that tell rank and place: 10 rank + place."""
    return torch.arange(float(world), device="sim") + 10 * rank


def results(rank, world):
    """Every collective on tensors of the device."""
    found, many = {}, [full(0, 1) for _ in range(world)]

    def keep(name, tensors):
        found[name] = tensors.tolist() if isinstance(tensors, torch.Tensor) else [t.tolist() for t in tensors]

    x = full(rank + 1)
    dist.all_reduce(x)
    keep("all_reduce", x)
    x = full(rank)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    keep("all_reduce max", x)
    x = full(rank)
    dist.broadcast(x, src=1)
    keep("broadcast", x)
    x = full(rank + 1)
    dist.reduce(x, dst=1)
    found["reduce"] = x.tolist() if rank == 1 else None
    dist.all_gather(many, full(rank, 1))
    keep("all_gather", many)
    x = full(0, 2 * world)
    dist.all_gather_into_tensor(x, full(rank))
    keep("all_gather_into_tensor", x)
    x = full(0, 1)
    dist.reduce_scatter(x, list(row(rank, world).split(1)))
    keep("reduce_scatter", x)
    x = full(0, 1)
    dist.reduce_scatter_tensor(x, row(rank, world))
    keep("reduce_scatter_tensor", x)
    many = [full(0, 1) for _ in range(world)]
    dist.all_to_all(many, list(row(rank, world).split(1)))
    keep("all_to_all", many)
    x = full(0, world)
    dist.all_to_all_single(x, row(rank, world))
    keep("all_to_all_single", x)
    many = [full(0, 1) for _ in range(world)]
    dist.gather(full(rank, 1), many if rank == 0 else None)
    keep("gather", many)
    x = full(0, 1)
    dist.scatter(x, list(row(rank, world).split(1)) if rank == 0 else None)
    keep("scatter", x)
    x = full(rank)
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        dist.recv(x, src=0)
    keep("send", x)
    x = full(0)
    operations = [
        dist.P2POp(dist.isend, full(rank), (rank + 1) % world),
        dist.P2POp(dist.irecv, x, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    keep("batch", x)
    names = [None] * world
    dist.all_gather_object(names, f"rank {rank}")
    found["objects"] = names
    return found


def waiting(rank, world):
    """Values that a kernel after an all-reduce reads, with and without a wait, while the collective is stopped."""
    x, stream = full(rank + 1), communicator(dist.group.WORLD).stream
    torch.accelerator.synchronize()
    with sim.hold(stream):
        work = dist.all_reduce(x, async_op=True)
        early = (x * 1).tolist()  # nobody has waited: the default stream goes on
        pending = work.is_completed()
        work.wait()
        after = x * 1
        event = torch.Event()
        event.record()
        stalled = event.query()  # the host is here, its stream waits
    late = after.tolist()
    return {
        "early": early, "pending": pending, "stalled": stalled, "late": late, "done": work.is_completed(),
        "future": dist.all_reduce(full(1), async_op=True).get_future().wait()[0].tolist(),
    }  # fmt: skip


def left_over():
    """Bytes that are still counted of the tensors of many collectives, a few of which may be kept."""
    gc.collect()
    before = torch.accelerator.memory_allocated()
    for _ in range(100):
        dist.all_reduce(full(1))
    torch.accelerator.synchronize()
    gc.collect()
    return torch.accelerator.memory_allocated() - before


def order(rank, world):
    """A collective of what is not computed yet, beside one of another group whose stream nothing holds up."""
    other, x = dist.new_group(backend="simccl"), full(0)
    y = full(1)
    torch.accelerator.synchronize()
    with sim.hold():
        x.fill_(rank + 1)
        behind = dist.all_reduce(x, async_op=True)
        with torch.Stream():
            beside = dist.all_reduce(y, group=other, async_op=True)
            beside.wait(timedelta(seconds=30))
        found = behind.is_completed(), beside.is_completed()
    behind.wait()
    return found, x.tolist(), y.tolist()


def blocking(rank, world):
    """Waits that block the host: a barrier's, and one with a limit."""
    stream, x = communicator(dist.group.WORLD).stream, full(1)
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    through = barrier.is_completed()
    with sim.hold(stream):
        work = dist.all_reduce(x, async_op=True)
        limited = refusal(lambda: work.wait(timedelta(milliseconds=10)))
    work.wait()
    return through, limited, x.tolist()


def devices(rank, world):
    """Tensors that the groups accept."""
    both, alone, x = dist.group.WORLD, dist.new_group(backend="simccl"), torch.full((2,), float(rank + 1))
    gloo, y = dist.new_group(backend="gloo"), full(rank + 1)
    dist.all_reduce(y, group=gloo)
    dist.all_reduce(x, group=both)
    return {
        "sim, gloo": y.tolist(), "cpu, both": x.tolist(),
        "cpu, alone": refusal(lambda: dist.all_reduce(x, group=alone)),
        "mixed": refusal(lambda: dist.all_to_all_single(full(0, world), torch.ones(world), group=both)),
        "names": (dist.get_backend(alone), dist.get_default_backend_for_device(torch.device("sim"))),
        "barrier": refusal(lambda: dist.barrier(group=alone)),
    }  # fmt: skip


def crossing(rank, world):
    """Ranks 0 and 1 first send and then receive, without a batch."""
    group, x = dist.new_group(backend="simccl", timeout=SHORT), full(rank)
    dist.barrier()  # all are connected: one that ends at once would cut off another that is not
    if rank > 1:
        return None
    dist.isend(x, 1 - rank, group=group)
    dist.irecv(full(0), 1 - rank, group=group)
    return refusal(torch.accelerator.synchronize)


def trained(rank, world, where):
    """The bits of a model after some steps under torch's DDP."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(where)
    ids = None if where == "cpu" else [0]
    model = DistributedDataParallel(net, device_ids=ids, bucket_cap_mb=1e-3, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + rank)).to(where)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]


def refusal(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def everything(rank, world):
    torch.set_num_threads(1)
    sim.join()
    found = {
        "results": results(rank, world), "waiting": waiting(rank, world), "order": order(rank, world),
        "blocking": blocking(rank, world), "left over": left_over(), "devices": devices(rank, world),
        "trained": [trained(rank, world, where) for where in ("cpu", "sim")],
    }  # fmt: skip
    dist.barrier()
    found["crossing"] = crossing(rank, world)
    return found
