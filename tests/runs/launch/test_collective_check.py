"""Do all ranks that are about to make different calls raise an error before any of them waits or computes?"""

from datetime import timedelta
from pathlib import Path

import pytest

from dpbook.core.errors import Deadlock, MessageError
from dpbook.ranks import start

FILE = Path(__file__).name
DIFFERENT_CALLS = {
    "shape": ("all_reduce of (5,) float32, op SUM", "all_reduce of (3,) float32, op SUM"),
    "dtype": ("all_reduce of (3,) float32, op SUM", "all_reduce of (3,) float64, op SUM"),
    "operation": ("all_reduce of (3,) float32, op SUM", "all_reduce of (3,) float32, op MAX"),
    "collective": ("barrier", "all_reduce of (3,) float32, op SUM"),
    "source": ("broadcast of (3,) float32, src 0", "broadcast of (3,) float32, src 1"),
    "gathered": ("all_gather of (2,) float32", "all_gather of (3,) float32"),
    "inside another": ("broadcast of (1,) int64", "barrier"),
}


def on_one_rank(rank):
    """Return the error of each case on this rank, and then the results of equal calls."""
    import torch
    import torch.distributed as dist

    from dpbook.runs.launch import collective_check

    collective_check.install(timedelta(seconds=20))
    first = rank == 0
    calls = {
        "shape": lambda: dist.all_reduce(torch.ones(5 if first else 3)),
        "dtype": lambda: dist.all_reduce(torch.ones(3, dtype=torch.float32 if first else torch.float64)),
        "operation": lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.SUM if first else dist.ReduceOp.MAX),
        "collective": lambda: dist.barrier() if first else dist.all_reduce(torch.ones(3)),
        "source": lambda: dist.broadcast(torch.ones(3), rank),
        "gathered": lambda: dist.all_gather([torch.empty(2), torch.empty(2)], torch.ones(2 if first else 3)),
        "inside another": lambda: dist.broadcast_object_list([None], 0) if first else dist.barrier(),
    }
    raised = {}
    for name, call in calls.items():
        try:
            call()
        except MessageError as error:
            raised[name] = str(error)
    pair = dist.new_group([0, 1])
    x, gathered = torch.full((3,), 10.0**rank), [None, None]
    dist.all_reduce(x, group=pair)
    dist.all_gather_object(gathered, rank)
    alone = [dist.new_group([r]) for r in range(2)]
    dist.barrier(group=alone[rank])
    return raised, x.tolist(), gathered, absent(rank)


def absent(rank):
    """Make a call on rank 0 that rank 1 does not join in time; return the error."""
    import torch
    import torch.distributed as dist

    from dpbook.runs.launch import collective_check

    dist.barrier()
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["over"], timedelta(seconds=20))
        return ""
    collective_check.install(timedelta(seconds=1))
    try:
        dist.all_reduce(torch.ones(3))
    except Deadlock as error:
        return str(error)
    finally:
        dist.distributed_c10d._get_default_store().set("over", "")


@pytest.fixture(scope="module")
def ranks():
    return start(on_one_rank, [(rank,) for rank in range(2)], timeout=60)


@pytest.mark.processes
@pytest.mark.parametrize("name", DIFFERENT_CALLS)
def test_calls_that_differ_are_reported_on_every_rank(ranks, name):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines, 1) if line.strip().startswith(f'"{name}": lambda: '))
    at = f"{FILE}:{number} in <lambda>"
    for rank, (raised, *_) in enumerate(ranks):
        mine, theirs = DIFFERENT_CALLS[name][rank], DIFFERENT_CALLS[name][1 - rank]
        assert f"is {mine} on rank {rank}, at {at}, " in raised[name]
        assert f"but {theirs} on rank {1 - rank}, at {at}" in raised[name]


@pytest.mark.processes
def test_equal_calls_return_their_results(ranks):
    for _, total, gathered, _ in ranks:
        assert total == [11.0] * 3
        assert gathered == [0, 1]


@pytest.mark.processes
def test_a_rank_that_does_not_join_is_named_with_its_last_call(ranks):
    error = ranks[0][3]
    assert f", all_reduce of (3,) float32, op SUM, at {FILE}:" in error
    assert f"rank 1 has not joined it. The last call of rank 1 was barrier, at {FILE}:" in error
