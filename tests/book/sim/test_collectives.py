"""Do collectives of the stand-in give what they must, and wait as NCCL's do? One start per world."""

import gc
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook import ranks
from dpbook.book import sim
from dpbook.collectives import ring, simulate, tree
from dpbook.core import RankFailed
from dpbook.ddp import HookDDP
from tests.book.sim.sim import needs_sim, refusal, stream_of
from tests.scenarios import Scenarios, gathered

pytestmark = needs_sim
scenario = Scenarios(sim.join)
SHORT = timedelta(seconds=2)


def full(value, count=2):
    return torch.full((count,), float(value), device="sim")


def row(rank, world):
    """World numbers that tell rank and place: 10 rank + place."""
    return torch.arange(float(world), device="sim") + 10 * rank


def rows(rank, world):
    return list(row(rank, world).split(1))


@scenario
def reductions_give_every_rank_what_they_must(rank, world):
    x = full(rank + 1)
    dist.all_reduce(x)
    assert x.tolist() == [world * (world + 1) / 2] * 2
    x = full(rank)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.tolist() == [world - 1.0] * 2
    x = full(rank + 1)
    dist.reduce(x, dst=1)
    assert rank != 1 or x.tolist() == [world * (world + 1) / 2] * 2
    tens, x = 10 * sum(range(world)), full(0, 1)
    dist.reduce_scatter(x, rows(rank, world))
    assert x.tolist() == [tens + world * rank]
    x = full(0, 1)
    dist.reduce_scatter_tensor(x, row(rank, world))
    assert x.tolist() == [tens + world * rank]


@scenario
def collectives_that_only_move_give_every_rank_what_they_must(rank, world):
    x = full(rank)
    dist.broadcast(x, src=1)
    assert x.tolist() == [1.0] * 2
    many = [full(0, 1) for _ in range(world)]
    dist.all_gather(many, full(rank, 1))
    assert [t.item() for t in many] == list(range(world))
    x = full(0, 2 * world)
    dist.all_gather_into_tensor(x, full(rank))
    assert x.tolist() == [r for r in range(world) for _ in range(2)]
    many = [full(0, 1) for _ in range(world)]
    dist.all_to_all(many, rows(rank, world))
    assert [t.item() for t in many] == [10 * r + rank for r in range(world)]
    x = full(0, world)
    dist.all_to_all_single(x, row(rank, world))
    assert x.tolist() == [10 * r + rank for r in range(world)]
    many = [full(0, 1) for _ in range(world)]
    dist.gather(full(rank, 1), many if rank == 0 else None)
    assert [t.item() for t in many] == [r if rank == 0 else 0 for r in range(world)]
    x = full(0, 1)
    dist.scatter(x, rows(rank, world) if rank == 0 else None)
    assert x.tolist() == [rank]
    assert gathered(f"rank {rank}") == [f"rank {r}" for r in range(world)]


@scenario
def messages_arrive_alone_and_in_a_batch(rank, world):
    x = full(rank)
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        dist.recv(x, src=0)
    assert x.tolist() == [0.0 if rank == 1 else rank] * 2
    operations = [
        dist.P2POp(dist.isend, full(rank), (rank + 1) % world),
        dist.P2POp(dist.irecv, x, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert x.tolist() == [(rank - 1) % world] * 2


@scenario
def wait_lets_the_stream_wait_and_the_host_go_on(rank, world):
    """Without a wait a sum is read too early."""
    x, total = full(rank + 1), [sum(range(world + 1))] * 2
    torch.accelerator.synchronize()
    with sim.hold(stream_of(dist.group.WORLD)):
        work = dist.all_reduce(x, async_op=True)
        assert (x * 1).tolist() == [rank + 1.0] * 2
        assert not work.is_completed()
        work.wait()
        after = x * 1
        event = torch.Event()
        event.record()
        assert not event.query()  # the host is here, its stream waits
    assert after.tolist() == total
    assert work.is_completed()
    assert dist.all_reduce(full(1), async_op=True).get_future().wait()[0].tolist() == [world] * 2


@scenario
def a_collective_begins_after_the_callers_stream_and_groups_run_beside_each_other(rank, world):
    other, x, y = dist.new_group(backend="simccl"), full(0), full(1)
    torch.accelerator.synchronize()
    with sim.hold():
        x.fill_(rank + 1)
        behind = dist.all_reduce(x, async_op=True)
        with torch.Stream():
            beside = dist.all_reduce(y, group=other, async_op=True)
            beside.wait(timedelta(seconds=30))
        assert (behind.is_completed(), beside.is_completed()) == (False, True)
    behind.wait()
    assert x.tolist() == [world * (world + 1) / 2] * 2
    assert y.tolist() == [world] * 2


@scenario
def a_barrier_and_a_limit_hold_up_the_host(rank, world):
    x, barrier = full(1), dist.barrier(async_op=True)
    barrier.wait()
    assert barrier.is_completed()
    with sim.hold(stream_of(dist.group.WORLD)):
        work = dist.all_reduce(x, async_op=True)
        error = refusal(lambda: work.wait(timedelta(milliseconds=10)))
        assert error.startswith("DistBackendError: a collective of simccl timed out after 0:00:00.01")
    work.wait()
    assert x.tolist() == [world] * 2


@scenario
def collectives_that_are_over_keep_no_memory(rank, world):
    gc.collect()
    before = torch.accelerator.memory_allocated()
    for _ in range(100):
        dist.all_reduce(full(1))
    torch.accelerator.synchronize()
    gc.collect()
    assert torch.accelerator.memory_allocated() - before <= 20 * 512  # a few may be kept


@scenario
def a_group_for_the_device_alone_refuses_tensors_of_the_cpu(rank, world):
    """In the words that a group of NCCL alone has for them."""
    alone, x = dist.new_group(backend="simccl"), torch.ones(2)
    error = refusal(lambda: dist.all_reduce(x, group=alone))
    assert error == "RuntimeError: No backend type associated with device type cpu"
    names = dist.get_backend(alone), dist.get_default_backend_for_device(torch.device("sim"))
    assert names == ("simccl", "simccl")
    dist.barrier(group=alone)


@scenario
def a_group_for_both_serves_both_but_not_in_one_call(rank, world):
    """And gloo takes tensors of the device, as it takes those of CUDA."""
    x, y = torch.full((2,), rank + 1.0), full(rank + 1)
    dist.all_reduce(x)
    dist.all_reduce(y, group=dist.new_group(backend="gloo"))
    assert x.tolist() == y.tolist() == [sum(range(world + 1))] * 2
    error = refusal(lambda: dist.all_to_all_single(full(0, world), torch.ones(world)))
    assert error.startswith("ValueError: Tensors must be on sim:0 and dense")


def trained(rank, where):
    """Return the bits of a model after some steps under torch's DDP."""
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


@scenario
def torchs_ddp_trains_to_the_bits_of_the_cpu(rank, world):
    """The same buckets over the same backend: on three ranks the order of each sum counts."""
    bits = trained(rank, "cpu")
    assert trained(rank, "sim") == bits
    assert gathered(bits) == [bits] * world


@scenario
def two_ranks_that_first_send_and_then_receive_wait_for_ever_without_a_batch(rank, world):
    """Until the timeout of one, which ends the other's wait too. It is the last scenario: the group is lost."""
    group, x = dist.new_group(backend="simccl", timeout=SHORT), full(rank)
    dist.barrier()  # all are connected: one that ends at once would cut off another that is not
    error = ""
    if rank <= 1:
        dist.isend(x, 1 - rank, group=group)
        dist.irecv(full(0), 1 - rank, group=group)
        error = refusal(torch.accelerator.synchronize)
        assert error.startswith("RuntimeError: sim error: RuntimeError:")
    assert "Timed out" in "".join(gathered(error))


@scenario
def only_a_rank_with_unused_parameters_waits_for_what_the_others_have_used(rank, world):
    """Rank 0 uses all, the others half; with a wait its backward would not return before its stream goes on."""
    model = HookDDP(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}).to("sim"), find_unused=True)
    model.module.forward = lambda x: sum(layer(x) for layer in list(model.module.values())[: 2 - (rank > 0)])
    for step in range(2):  # none has grown the memory in the second
        loss, goes_on, waited = model(full(1)).sum(), threading.Event(), []
        if rank == 0:
            torch.accelerator.current_stream().submit(lambda e=goes_on, w=waited: w.append(not e.wait(10)))
        loss.backward()
        goes_on.set()
        assert [p.grad.abs().sum().item() > 0 for p in model.parameters()] == [True] * 4
        assert not any(waited), step


failures, test_scenario = scenario.tests(
    pytest.param(2, marks=pytest.mark.proof), 3, pytest.param(4, marks=pytest.mark.proof)
)


@pytest.mark.parametrize(("make", "world"), [(ring, 3), (tree, 2), (tree, 4)])
def test_ranks_run_a_schedule_on_their_accelerators(make, world):
    buffers = np.random.default_rng(world).normal(size=(world, 1003)).astype(np.float32)
    sums = ranks.run(make(world), buffers, join=sim.join)
    assert np.stack(sums).tobytes() == simulate(make(world), buffers).buffers.tobytes()


def test_a_rank_without_an_accelerator_is_refused():
    with pytest.raises(RankFailed, match="this machine does not have an accelerator with a backend"):
        ranks.run(ring(2), np.zeros((2, 4)), join=ranks.join_accelerator)
