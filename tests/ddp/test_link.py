"""Is an emulated link as slow as it says, and not slower, without touching a bit? One start of two ranks."""

import copy
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.collectives import Link
from dpbook.collectives.pricing import closed_forms
from dpbook.core.errors import InvalidArgument
from dpbook.ddp.emulated_link import SlowLink, slow
from dpbook.ddp.wrappers import BucketedDDP, NaiveDDP
from dpbook.ranks import start

pytestmark = pytest.mark.processes
LINK = Link(2e-3, 20e6)  # slow enough that this machine's own speed does not count
NBYTES = 400_000


def on_one_rank(rank, world):
    torch.set_num_threads(1)
    return {"one": one(rank), "queue": queue(), "core": core(), "bits": bits(rank), "refused": refused()}


def one(rank):
    """Seconds of one all-reduce, and its result."""
    buffer = torch.full((NBYTES // 4,), float(rank + 1))
    dist.barrier()
    begun = time.monotonic()
    slow(LINK)(buffer).wait()
    return time.monotonic() - begun, buffer.unique().tolist()


def queue():
    """Seconds until three at once have gone out: they are carried one after another."""
    link = SlowLink(LINK)
    dist.barrier()
    begun = time.monotonic()
    handles = [link.all_reduce(torch.zeros(NBYTES // 4)) for _ in range(3)]
    for handle in handles:
        handle.wait()
    return time.monotonic() - begun


def core():
    """The share of a core that waiting takes."""
    handle = slow(LINK)(torch.zeros(NBYTES))
    used, begun = time.process_time(), time.monotonic()
    handle.wait()
    return (time.process_time() - used) / (time.monotonic() - begun)


def bits(rank):
    """Whether training ends with the same bits with and without the link, for ours and for torch's DDP."""
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3))
    quick = Link(1e-4, 1e9)
    models = [
        DistributedDataParallel(copy.deepcopy(module)),
        DistributedDataParallel(copy.deepcopy(module)),
        BucketedDDP(copy.deepcopy(module), all_reduce=slow(quick)),
        NaiveDDP(copy.deepcopy(module), all_reduce=slow(quick)),
    ]
    models[1].register_comm_hook(None, SlowLink(quick).hook)
    found = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            x = torch.randn(8, 30, generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found.append([p.detach().numpy().tobytes() for p in model.parameters()])
    return [f == found[0] for f in found]


def refused():
    try:
        SlowLink(400e9)
    except InvalidArgument as error:
        return str(error)


@pytest.fixture(scope="module")
def ranks():
    return start(on_one_rank, [(rank, 2) for rank in range(2)], timeout=120)


def charged(nbytes):
    """By hand: a ring of two takes two rounds of half of the bytes."""
    seconds = 2 * (LINK.latency + nbytes / 2 / LINK.bandwidth)
    assert closed_forms.ring(2, LINK)(nbytes) == pytest.approx(seconds)
    return seconds


def test_a_call_is_never_done_before_its_bytes_have_gone_out(ranks):
    for rank in ranks:
        seconds, result = rank["one"]
        assert seconds >= charged(NBYTES)
        assert result == [3.0]


def test_calls_queue(ranks):
    for rank in ranks:
        assert rank["queue"] >= 3 * charged(NBYTES)


def test_waiting_takes_no_core(ranks):
    assert max(rank["core"] for rank in ranks) < 0.5


def test_no_bit_changes(ranks):
    for rank in ranks:
        assert rank["bits"] == [True] * 4


def test_a_number_is_no_link(ranks):
    assert ranks[0]["refused"].startswith("link must be a Link")
