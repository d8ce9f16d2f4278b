"""Is an emulated link as slow as it says, and a collective on it one, without touching a bit? One start of three."""

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
from dpbook.ddp.emulated_link import ObservedLink, SlowLink, slow
from dpbook.ddp.wrappers import BucketedDDP, NaiveDDP
from dpbook.ranks import start

pytestmark = pytest.mark.processes
APART = 0.05
LINK = Link(2e-3, 20e6)  # slow enough that this machine's own speed does not count
NBYTES = 400_000


def on_one_rank(rank, world):
    torch.set_num_threads(1)
    return {
        "one": one(rank), "staggered": staggered(rank, world), "queue": queue(), "core": core(), "bits": bits(rank),
        "refused": refused(),
    }  # fmt: skip


def one(rank):
    """Seconds of one all-reduce, and its result."""
    buffer = torch.full((NBYTES // 4,), float(rank + 1))
    dist.barrier()
    begun = time.monotonic()
    slow(LINK)(buffer).wait()
    return time.monotonic() - begun, buffer.unique().tolist()


def staggered(rank, world):
    """Two calls at once, to which the ranks come one after another, through a handle and through torch's hook.

    Of each: when this rank came, when it had its result, and when the link is said to have carried the two.
    """
    ways = {}
    for name in ("handle", "hook"):
        link, buffers = ObservedLink(LINK), [torch.ones(NBYTES // 4) for _ in range(2)]
        if rank < world - 1:  # the last rank comes first
            dist.recv(torch.zeros(1), rank + 1)
            time.sleep(APART)
        came = time.monotonic()
        if rank > 0:
            dist.send(torch.zeros(1), rank - 1)
        if name == "handle":
            handles = [link.all_reduce(buffer) for buffer in buffers]
        else:
            handles = [link.hook(None, Bucket(buffer)) for buffer in buffers]
        for handle in handles:
            handle.wait()
        ways[name] = came, time.monotonic(), [(call.begin, call.end) for call in link.calls]
    return ways


class Bucket:
    def __init__(self, buffer):
        self.buffer = lambda: buffer


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
    """The least share of a core that waiting takes in five calls: beside other work a call may take more."""
    shares = []
    for _ in range(5):
        handle = slow(LINK)(torch.zeros(NBYTES))
        used, begun = time.process_time(), time.monotonic()
        handle.wait()
        shares.append((time.process_time() - used) / (time.monotonic() - begun))
    return min(shares)


def bits(rank):
    """Whether training ends with the same bits with and without the link, for ours and for torch's DDP."""
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 3))
    quick = Link(1e-4, 1e9)
    models = [
        DistributedDataParallel(copy.deepcopy(module)),
        DistributedDataParallel(copy.deepcopy(module)),
        BucketedDDP(copy.deepcopy(module), all_reduce=slow(quick)),
        NaiveDDP(copy.deepcopy(module)),
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
    return found[1] == found[0], found[2] == found[0], found[4] == found[3]


def refused():
    try:
        SlowLink(400e9)
    except InvalidArgument as error:
        return str(error)


@pytest.fixture(scope="module")
def ranks():
    return start(on_one_rank, [(rank, 3) for rank in range(3)], timeout=120)


def charged(nbytes):
    """By hand: a ring of three takes four rounds of a third of the bytes."""
    seconds = 4 * (LINK.latency + nbytes / 3 / LINK.bandwidth)
    assert closed_forms.ring(3, LINK)(nbytes) == pytest.approx(seconds)
    return seconds


def test_a_call_is_never_done_before_its_bytes_have_gone_out(ranks):
    for rank in ranks:
        seconds, result = rank["one"]
        assert seconds >= charged(NBYTES)
        assert result == [6.0]


@pytest.mark.parametrize("name", ["handle", "hook"])
def test_no_rank_is_done_before_the_last_has_come_and_its_bytes_have_gone_out(ranks, name):
    """Ranks come 50 ms apart; the two calls take longer, so that a link of each rank's own would end too early."""
    came, done, carried = zip(*(rank["staggered"][name] for rank in ranks), strict=True)
    assert max(came) - min(came) >= APART
    assert min(done) >= max(came) + 2 * charged(NBYTES)
    assert carried[0] == carried[1] == carried[2]
    (begin, end), (second, _) = carried[0]
    assert begin >= max(came)
    assert second >= end == pytest.approx(begin + charged(NBYTES))  # later, where a rank came late to the second, too


def test_calls_queue(ranks):
    for rank in ranks:
        assert rank["queue"] >= 3 * charged(NBYTES)


def test_waiting_takes_no_core(ranks):
    assert max(rank["core"] for rank in ranks) < 0.5


def test_no_bit_changes(ranks):
    for rank in ranks:
        assert rank["bits"] == (True, True, True)


def test_a_number_is_no_link(ranks):
    assert ranks[0]["refused"].startswith("link must be a Link")
