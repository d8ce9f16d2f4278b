"""Is gloo's ring an exact all-reduce in gloo's own chunks and order? (Its bits: tests/ranks/test_gloo.py.)"""

from itertools import pairwise

import numpy as np
import pytest

from dpbook.collectives import GlooBounds, from_json, gloo_ring, simulate, to_json, verify
from dpbook.core.errors import InvalidArgument
from tests.cases import each

WORLDS = [*range(1, 10), 16]


@pytest.mark.parametrize(
    ("size", "world", "lengths"), [(7, 3, [4, 3, 0]), (9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (0, 2, [0, 0])]
)
def test_chunks_as_gloo_cuts_them(size, world, lengths):
    assert np.diff(GlooBounds(world)(size, 4)).tolist() == lengths


@each("world", WORLDS)
@each("itemsize", [1, 2, 4, 8])
@each("size", [0, 1, 5, 17, 1000, 2**18, 3 * 2**20 + 1])
def test_chunks_cover_the_buffer_in_segments_of_at_most_a_mebibyte(world, itemsize, size):
    offsets = GlooBounds(world)(size, itemsize)
    assert (offsets[0], offsets[-1]) == (0, size)
    assert (np.diff(offsets) >= 0).all()
    per_chunk = -(-max(-(-size * itemsize // 2**20), 2 * world) // world)
    assert np.diff(offsets).max() * itemsize <= per_chunk * (2**20 + itemsize)


@each("world", WORLDS)
def test_it_is_an_exact_all_reduce(world):
    verify(gloo_ring(world))
    assert len(gloo_ring(world).rounds) == 2 * (world - 1)


@each("world", WORLDS)
@each("size", [1, 7, 100])
def test_a_chunk_is_summed_from_the_rank_before_its_own_downwards(world, size):
    buffers = np.random.default_rng([world, size]).standard_normal((world, size)).astype(np.float32)
    offsets = GlooBounds(world)(size, 4)
    result = simulate(gloo_ring(world), buffers).buffers
    for chunk, (begin, end) in enumerate(pairwise(offsets)):
        total = buffers[chunk - 1, begin:end].copy()
        for step in range(2, world + 1):
            total += buffers[(chunk - step) % world, begin:end]
        for rank in range(world):
            assert result[rank][begin:end].tobytes() == total.tobytes()


def test_it_survives_json():
    again = from_json(to_json(gloo_ring(3)))
    assert again.bounds == GlooBounds(3)
    verify(again)


@pytest.mark.parametrize("world", [0, -1, 2.5])
def test_a_bad_world_is_named(world):
    with pytest.raises(InvalidArgument, match="world must be"):
        gloo_ring(world)
