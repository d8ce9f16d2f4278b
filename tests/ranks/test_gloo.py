"""Does `gloo_ring` predict in NumPy, bit for bit, what an all-reduce over gloo returns? One start per world."""

import hashlib

import numpy as np
import pytest

from dpbook.collectives import gloo_ring, simulate
from dpbook.ranks import start

pytestmark = pytest.mark.processes
WORLDS = [*(pytest.param(world, marks=pytest.mark.proof) for world in (2, 3, 4)), 5]
SIZES = [1, 2, 3, 7, 9, 100, 1001, 65_537, 262_145, 4_000_000]
DTYPES = ["f4", "f8", "f2", "i4"]
CASES = [(size, dtype) for size in SIZES for dtype in (DTYPES if size < 100_000 else DTYPES[:1])]


def noise(rank, world, size, dtype):
    """Return the buffer of one rank: the sum depends on the order, and no sum of integers overflows."""
    rng = np.random.default_rng([world, size, rank])
    if dtype[0] == "i":
        return rng.integers(-1000, 1000, size).astype(dtype)
    return rng.standard_normal(size, dtype=np.float32).astype(dtype, copy=False)


def on_one_rank(rank, world, cases, data):
    """Return the digest of each result, since four million numbers need not be sent."""
    import torch
    import torch.distributed as dist

    digests = []
    for size, dtype in cases:
        buffer = torch.from_numpy(data(rank, world, size, dtype))
        dist.all_reduce(buffer)
        digests.append(hashlib.sha256(buffer.numpy().tobytes()).hexdigest())
    return digests


@pytest.fixture(scope="module", params=WORLDS)
def returned(request):
    """Return the digests of gloo's results on each rank in each case."""
    world = request.param
    return world, start(on_one_rank, [(rank, world, CASES, noise) for rank in range(world)], timeout=120)


def test_every_bit_is_predicted(returned):
    world, by_rank = returned
    schedule = gloo_ring(world)
    for case, digests in zip(CASES, zip(*by_rank, strict=True), strict=True):
        predicted = simulate(schedule, np.stack([noise(rank, world, *case) for rank in range(world)])).buffers
        assert list(digests) == [hashlib.sha256(b.tobytes()).hexdigest() for b in predicted], case
