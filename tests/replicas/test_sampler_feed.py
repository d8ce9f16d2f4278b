"""Does the feed say what the ranks read, and what is wrong with it?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dpbook import collectives
from dpbook.core.errors import Deadlock, InvalidArgument
from dpbook.replicas import Sampler, contiguous, drop, expected_distinct, feed, keep, pad, strided
from tests.cases import each

WORLDS = [*range(1, 10), 16]


def samplers(examples, world, **settings):
    return [Sampler(examples, world, rank, **settings) for rank in range(world)]


# What was read


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.sampled_from([pad, drop, keep]), st.booleans())
def test_batches_are_the_samplers_lists_in_pieces(examples, world, batch, fit, drop_last):
    ranks = samplers(examples, world, fit=fit)
    fed = feed(ranks, examples, batch, epochs=2, drop_last=drop_last)
    for epoch in range(2):
        steps = list(fed.batches(epoch))
        assert len(steps) == fed.steps[epoch].max()
        for rank, sampler in enumerate(ranks):
            sampler.set_epoch(epoch)
            pieces = [local[rank].tolist() for local in steps]
            assert all(len(piece) in ((0, batch) if drop_last else range(batch + 1)) for piece in pieces)
            read = [index for piece in pieces for index in piece]
            assert read == list(sampler)[: len(sampler) - len(sampler) % batch if drop_last else None]
            assert sum(1 for piece in pieces if piece) == fed.steps[epoch, rank]


@each("world", WORLDS)
def test_a_good_feed_reads_everything_once_in_every_epoch(world):
    fed = feed(samplers(12 * world, world), 12 * world, 4, epochs=3)
    assert fed.coverage.tolist() == [1, 1, 1]
    assert (fed.times_read == 1).all()
    assert fed.distinct().tolist() == [4 * world] * 3
    assert fed.repeated_epochs == []
    assert fed.hang is None


def test_padding_repeats_one_of_237_and_dropping_loses_one():
    padded = feed(samplers(237, 2), 237, 8)
    assert sorted(padded.times_read[0].tolist()) == [1] * 236 + [2]
    dropped = feed(samplers(237, 2, fit=drop), 237, 8, epochs=5)
    assert (dropped.times_read == 0).sum(axis=1).tolist() == [1] * 5
    assert (dropped.times_read.sum(axis=0) > 0).all()  # each epoch loses another one


def test_a_batch_that_is_not_full_and_left_out_is_not_read():
    fed = feed(samplers(237, 2), 237, 8, drop_last=True)
    assert fed.steps.tolist() == [[14, 14]]
    assert fed.times_read.sum() == 2 * 14 * 8
    assert fed.coverage[0] == 2 * 14 * 8 / 237  # the repeated example is in the part that is left out


def test_without_set_epoch_the_order_repeats_and_what_is_dropped_is_never_read():
    fed = feed(samplers(237, 2, fit=drop), 237, 8, epochs=5, set_epoch=False)
    assert fed.repeated_epochs == [1, 2, 3, 4]
    assert (fed.times_read.sum(axis=0) == 0).sum() == 1


def test_the_same_seed_for_all_and_no_parts_is_one_local_batch_k_times():
    fed = feed([Sampler(1000, 1, 0, seed=3) for _ in range(8)], 1000, 25)
    assert fed.distinct().tolist() == [25] * 40
    assert (fed.times_read == 8).all()


def test_a_shuffle_without_a_sampler_shows_in_the_reads_alone():
    """Each rank reads all 50,000 in an order of its own: the counts in a step are as above, and nothing is left out."""
    fed = feed([Sampler(50_000, 1, 0, seed=rank) for rank in range(8)], 50_000, 32)
    assert abs(fed.distinct().mean() - expected_distinct(50_000, 32, 8)) < 0.25
    assert fed.coverage.tolist() == [1]
    assert fed.reads.tolist() == [8]
    assert fed.steps[0, 0] == -(-50_000 // 32)
    assert "each 8.0 times on average" in repr(fed)


@each("world", WORLDS)
def test_padding_is_not_reported_as_reading_twice(world):
    for fit in (pad, drop, keep):
        fed = feed(samplers(2 * world + 1, world, fit=fit), 2 * world + 1, 2)
        assert "times on average" not in repr(fed)


def test_seeds_of_their_own_hardly_show_in_a_step_but_in_an_epoch():
    """A step's 195 counts have a standard deviation of about 0.7 each; the epoch's coverage of about 0.0014."""
    fed = feed([Sampler(50_000, 8, rank, seed=rank) for rank in range(8)], 50_000, 32, drop_last=True)
    assert abs(fed.distinct().mean() - expected_distinct(50_000, 32, 8)) < 0.25
    assert abs(fed.coverage[0] - 0.656) < 0.007


def test_torch_samplers_can_be_fed():
    ranks = [DistributedSampler(range(237), 2, rank) for rank in range(2)]
    fed = feed(ranks, 237, 8, epochs=2)
    assert fed.coverage.tolist() == [1, 1]
    assert fed.repeated_epochs == []
    assert feed(ranks, 237, 8, epochs=2, set_epoch=False).repeated_epochs == [1]


# Unequal numbers of steps


def hangs(steps):
    """Whether ranks that exchange once in each of their own steps end in a deadlock."""

    def program(comm, x):
        for _ in range(steps[comm.rank]):
            left, right = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
            comm.sendrecv(x[:1], right, x[1:], left)

    try:
        collectives.run(program, [np.zeros(2)] * len(steps))
    except Deadlock:
        return True
    return False


@each("world", WORLDS[1:])
@each("cut", [strided, contiguous])
def test_a_feed_that_hangs_hangs_rank_programs(world, cut):
    found = set()
    for examples in range(1, 3 * world + 1):
        fed = feed(samplers(examples, world, fit=keep, cut=cut), examples, 2)
        assert (fed.hang is not None) == hangs(fed.steps[0].tolist())
        found.add(fed.hang is not None)
    assert found == {True, False}


def test_the_hang_is_named():
    fed = feed(samplers(237, 2, fit=keep), 237, 1)
    assert fed.hang == "epoch 0: rank 0 waits in step 119 for rank 1, which had only 118 batches"
    fed = feed(samplers(25, 6, fit=keep), 25, 2)
    assert fed.hang == "epoch 0: rank 0 waits in step 3 for ranks 1, 2, 3, 4, 5, which had only 2 batches"


def test_unequal_parts_with_equal_steps_do_not_hang():
    fed = feed(samplers(237, 2, fit=keep), 237, 8)
    assert [len(local) for local in list(fed.batches(0))[-1]] == [7, 6]
    assert fed.hang is None


def test_a_rank_that_reads_nothing_is_waited_for():
    fed = feed(samplers(2, 3, fit=keep), 2, 1)
    assert fed.hang == "epoch 0: ranks 0, 1 wait in step 1 for rank 2, which had only 0 batches"


def test_repr_is_a_report():
    lines = repr(feed(samplers(237, 2, fit=keep), 237, 1, epochs=2, set_epoch=False)).splitlines()
    assert lines[:2] == [
        "Feed: 2 ranks × 1, 2 epochs of 118 or 119 steps",
        "  examples: 237 of 237 read, 100.0% in epoch 0",
    ]
    assert lines[2:] == [
        "  a step: 2.0 different examples of 2.0 on average",
        "  order: the same as in the epoch before, in 1 epoch",
        "  hang: epoch 0: rank 0 waits in step 119 for rank 1, which had only 118 batches",
    ]
    assert len(repr(feed(samplers(2, 2), 2, 1)).splitlines()) == 3
    assert "0 steps" in repr(feed(samplers(1, 2, fit=drop), 1, 1))


class Yields:
    def __init__(self, *indices):
        self.indices = indices

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        return iter(self.indices)


@each(
    ("name", "call"),
    [
        ("examples", lambda: feed(samplers(5, 1), 0, 1)),
        ("batch", lambda: feed(samplers(5, 1), 5, 0)),
        ("epochs", lambda: feed(samplers(5, 1), 5, 1, 0)),
        ("samplers", lambda: feed([], 5, 1)),
        ("samplers", lambda: feed(samplers(6, 1), 5, 1)),
        ("samplers", lambda: feed([Yields(0, -1)], 5, 1)),
        ("samplers", lambda: feed([Yields(0.5)], 5, 1)),
        ("epoch", lambda: next(feed(samplers(5, 1), 5, 1).batches(1))),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
