"""Which parameters that are spread over ranks belong to ranks with examples of their own?"""

from types import SimpleNamespace

import torch
from torch.distributed.tensor import Replicate, Shard

from dpbook.runs.watching.hooks import has_own_data
from tests.cases import each


@each(
    ("size", "placements", "expected"),
    [
        (4, [Shard(0)], True),  # fully_shard
        (4, [Replicate(), Shard(0)], True),  # on a mesh of two dimensions: replicas of shards
        (4, [Shard(0), Shard(1)], False),  # tensor parallelism inside it
        (2, [Shard(0)], False),  # over some of the ranks
    ],
)
def test_ranks_that_hold_parts_of_one_model_may_read_the_same(size, placements, expected):
    spread = SimpleNamespace(device_mesh=SimpleNamespace(size=lambda: size), placements=placements)
    assert has_own_data(spread, 4) is expected
    assert has_own_data(torch.zeros(2), 4)
