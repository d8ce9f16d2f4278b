"""Are collectives and waits seen as they are, and does watching change neither bits nor functions?"""

import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from dpbook.collectives import ring
from dpbook.ddp import BucketedDDP, over
from dpbook.ranks import start
from dpbook.runs.watching import read_journal, read_update
from dpbook.runs.watching.installation import record_moments

WORLD = 3
WRAPPERS = {
    "torch": lambda net: DistributedDataParallel(net, bucket_cap_mb=0.001),
    "views": lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True),
    "ours": lambda net: BucketedDDP(net, cap=1000, first=1000),
}


def net():
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))


def train(model, updates=6, between=lambda model: None):
    optimizer = SGD(model.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(updates):
        model(torch.randn(4, 8)).square().mean().backward()
        between(model)
        optimizer.step()
        optimizer.zero_grad()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def watched(run):
    """Return the result of ``run`` while it is watched, and the updates of this rank."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = record_moments(Path(folder), dist.get_rank(), WORLD, {})
        try:
            result = run()
        finally:
            recorder.close()
        events = read_journal(Path(folder), dist.get_rank())
        assert not [event for event in events if event["kind"] == "trouble"], events
        return result, [read_update(event, WORLD) for event in events if event["kind"] == "update"]


def same_bits():
    found = {}
    for name, wrap in WRAPPERS.items():
        plain = train(wrap(net()))
        bits, updates = watched(lambda wrap=wrap: train(wrap(net())))
        calls = [[(call.name, call.nbytes, call.averages) for call in one.calls] for one in updates]
        found[name] = bits == plain, calls[-1]
    return found


def sum_by_hand(model, *, async_op):
    works = [dist.all_reduce(p.grad, async_op=async_op) for p in model.parameters()]
    for work in filter(None, works):
        work.wait()


def own_sums():
    """A script's own sums, for which it waits at once or later; rank 1 comes 30 ms late."""
    found = {}
    for async_op in (False, True):

        def between(model, async_op=async_op):
            time.sleep(0.03 * (dist.get_rank() == 1))
            sum_by_hand(model, async_op=async_op)

        _, updates = watched(lambda between=between: train(net(), between=between))
        found[async_op] = [(len(one.calls), len(one.waits), one.blocked.sum() > 0) for one in updates]
    return found


def elsewhere():
    """Sum in another thread, which keeps nobody waiting, and by a schedule, for which backward waits."""

    def in_a_thread(model):
        thread = threading.Thread(target=sum_by_hand, args=(model,), kwargs={"async_op": False})
        thread.start()
        thread.join()

    _, updates = watched(lambda: train(net(), between=in_a_thread))
    all_reduce = over(ring)
    _, scheduled = watched(lambda: train(BucketedDDP(net(), all_reduce=all_reduce)))
    return len(updates[-1].calls), [call.name for call in scheduled[-1].calls], len(scheduled[-1].waits) > 0


def messages():
    """Return the names of the calls of an update that passes a tensor round, and whether it was waited for."""

    def between(model):
        x, (before, after) = torch.ones(4), ((dist.get_rank() + step) % WORLD for step in (-1, 1))
        for work in (dist.isend(x, after), dist.irecv(torch.zeros(4), before)):
            work.wait()

    _, updates = watched(lambda: train(net(), between=between))
    return [call.name for call in updates[-1].calls], len(updates[-1].waits)


def unchanged():
    before = dist.all_reduce, dist.Work.wait, torch.futures.Future.wait, DistributedDataParallel._sync_buffers
    watched(lambda: train(DistributedDataParallel(net())))
    after = dist.all_reduce, dist.Work.wait, torch.futures.Future.wait, DistributedDataParallel._sync_buffers
    return before == after


def everything():
    torch.set_num_threads(1)
    return {
        "same": same_bits(),
        "own": own_sums(),
        "elsewhere": elsewhere(),
        "messages": messages(),
        "unchanged": unchanged(),
    }


pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks():
    return start(everything, [()] * WORLD, timeout=120)


BYTES = 4 * (8 * 32 + 32 + 32 * 8 + 8)


def test_watching_changes_no_bit(ranks):
    """Three ranks: a third is rounded, and a sum has an order."""
    assert all(same for rank in ranks for same, _ in rank["same"].values())


@pytest.mark.parametrize(("wrapper", "count"), [("torch", 2), ("views", 1), ("ours", 2)])
def test_every_bucket_is_seen_with_its_bytes(ranks, wrapper, count):
    for rank in ranks:
        calls = rank["same"][wrapper][1]
        assert len(calls) == count
        assert sum(nbytes for _, nbytes, _ in calls) == BYTES
        assert {(name, averages) for name, _, averages in calls} == {("all_reduce", True)}


def test_sums_of_a_script_are_seen_and_those_who_wait_are_blocked(ranks):
    for rank in ranks:
        assert rank["own"] == {async_op: [(4, 4, True)] * 6 for async_op in (False, True)}


def test_what_another_thread_sends_keeps_nobody_waiting(ranks):
    for rank in ranks:
        assert rank["elsewhere"] == (0, ["all_reduce"], True)


def test_messages_are_seen_and_waited_for(ranks):
    assert {str(rank["messages"]) for rank in ranks} == {"(['isend', 'irecv'], 2)"}


def test_everything_is_as_before_afterwards(ranks):
    assert all(rank["unchanged"] for rank in ranks)
