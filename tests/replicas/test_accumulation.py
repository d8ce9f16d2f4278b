"""Do several small batches make one big one?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.core.errors import InvalidArgument
from dpbook.replicas import (
    MLP,
    SGD,
    Linear,
    Sampler,
    accumulate,
    accumulated_gradients,
    accumulation_for,
    average,
    compare,
    contiguous,
    effective_batch,
    feed,
    gradient_bound,
    groups,
    keep,
    shard,
    synthetic_task,
)
from tests.cases import each

WORLDS = [*range(1, 10), 16]


# How many


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_accumulation_and_effective_batch_are_inverse(per_device, world, accumulation):
    batch = effective_batch(per_device, world, accumulation)
    assert batch == per_device * world * accumulation
    assert accumulation_for(batch, per_device, world) == accumulation


# When to step and what to divide by

counts = st.integers(0, 200)
lengths = st.integers(1, 20)


@given(counts, lengths)
def test_stepping_uses_every_micro_batch_and_every_update_is_a_mean(n, every):
    shares = [0.0]
    for index, turn in enumerate(accumulate(n, every)):
        assert turn.index == index
        shares[-1] += 1 / turn.divisor
        if turn.update:
            shares.append(0.0)
    assert shares.pop() == 0  # nothing stays in the buffer
    assert len(shares) == -(-n // every)
    np.testing.assert_allclose(shares, 1, rtol=1e-12)


@given(counts, lengths)
def test_dropping_leaves_out_what_does_not_fill_an_update(n, every):
    turns = list(accumulate(n, every, "drop"))
    assert [turn.index for turn in turns] == list(range(n // every * every))
    assert {turn.divisor for turn in turns} <= {every}
    assert [turn.index for turn in turns if turn.update] == list(range(every - 1, len(turns), every))


@given(counts, lengths)
def test_carrying_leaves_the_rest_in_the_buffer(n, every):
    turns = list(accumulate(n, every, "carry"))
    assert [turn.index for turn in turns] == list(range(n))
    after_last_update = [turn.update for turn in reversed(turns)]
    assert (after_last_update.index(True) if any(after_last_update) else n) == n % every


# The leftover seven


def updates_of(leftover, gradients, epochs=2, lr=1.0):
    """A program's loop, with gradients that are given."""
    w, buffer, changes = 0.0, 0.0, []
    for _ in range(epochs):
        for turn in accumulate(len(gradients), 8, leftover):
            buffer += gradients[turn.index] / turn.divisor
            if turn.update:
                w, before = w - lr * buffer, w
                changes.append(before - w)
                buffer = 0.0
    return changes


def test_seven_of_119_carried_over_make_the_next_update_15_eighths():
    assert 119 % 8 == 7
    ones = np.ones(119)
    assert updates_of("carry", ones) == [1.0] * 14 + [1.875] + [1.0] * 13
    assert updates_of("drop", ones) == [1.0] * 28
    assert updates_of("step", ones) == pytest.approx([1.0] * 30, rel=1e-15)


def test_groups_of_a_feed_show_the_leftover():
    fed = feed([Sampler(237, 2, rank) for rank in range(2)], 237, batch=1, epochs=2)
    carried = list(groups(fed, 8, "carry"))
    assert [len(group.micro_batches) for group in carried] == [8] * 14 + [15] + [8] * 13
    assert {group.divisor for group in carried} == {8}
    assert repr(carried[14]) == "UpdateGroup(15 micro-batches, 30 examples, divided by 8)"
    stepped = list(groups(fed, 8))
    assert [(len(group.micro_batches), group.divisor) for group in stepped] == ([(8, 8)] * 14 + [(7, 7)]) * 2
    assert len(list(groups(fed, 8, "drop"))) == 28


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_groups_read_the_feed_once_and_in_order(examples, world, batch, every):
    fed = feed([Sampler(examples, world, rank, fit=keep) for rank in range(world)], examples, batch, epochs=2)
    for rank in range(world):
        read = [local[rank] for group in groups(fed, every) for local in group.micro_batches]
        expected = np.concatenate([fed.orders[0][rank], fed.orders[1][rank]])
        assert np.concatenate(read).tolist() == expected.tolist()


# The gradient


def micro_batches(x, y, world, sizes):
    """Cut a batch into micro-batches of the given sizes, and each of them among the ranks as evenly as it goes."""
    ends = np.cumsum(sizes)[:-1]
    parts = zip(np.split(x, ends), np.split(y, ends), strict=True)
    return [[(a[i], b[i]) for i in contiguous(np.arange(len(a)), world)] for a, b in parts]


@each("sizes", [(16,), (16, 16), (16, 16, 16, 16), (32, 16), (16, 3), (1, 1, 1), (2, 0, 7)])
@each("world", WORLDS)
def test_accumulated_and_averaged_is_the_big_batch_gradient_within_rounding(world, sizes):
    model, (x, y) = MLP(3, 5), synthetic_task(sum(sizes), 3)
    params = np.random.default_rng(world).standard_normal(model.size)
    parts = micro_batches(x, y, world, sizes)
    local = accumulated_gradients(model, np.tile(params, (world, 1)), parts)
    per_rank = [sum(len(part[rank][0]) for part in parts) for rank in range(world)]
    averaged = average(local, collectives.ring(world), per_rank)
    bound = gradient_bound(model, params, x, y)
    assert compare(averaged, model.gradient(params, x, y), bound).verdict in ("rounding", "bit-identical")


def integer_task(examples, seed=0):
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-9, 10, (examples, columns)).astype(float) for columns in (4, 2))
    return Linear(4, 2), rng.integers(-9, 10, 10).astype(float), x, y


@pytest.mark.parametrize("per_device", [1, 4])
def test_twice_the_world_and_half_the_accumulation_give_the_same_gradient(per_device):
    """Integers and powers of two: nothing is rounded, so the order does not matter and equal means equal."""
    model, params, x, y = integer_task(64)
    big_batch = model.gradient(params, x, y)
    for world in (1, 2, 4, 8, 16):
        n = accumulation_for(64, per_device, world)
        parts = [shard(*pair, world) for pair in zip(np.split(x, n), np.split(y, n), strict=True)]
        local = accumulated_gradients(model, np.tile(params, (world, 1)), parts)
        np.testing.assert_array_equal(average(local, collectives.ring(world)), np.tile(big_batch, (world, 1)))


def test_without_weights_a_small_last_micro_batch_counts_too_much():
    model, params, x, y = integer_task(5)
    parts = [shard(x[:4], y[:4], 1), shard(x[4:], y[4:], 1)]
    plain = accumulated_gradients(model, params[None], parts, weighted=False)[0]
    np.testing.assert_array_equal(
        plain, (model.gradient(params, x[:4], y[:4]) + model.gradient(params, x[4:], y[4:])) / 2
    )
    weighted = accumulated_gradients(model, params[None], parts)[0]
    np.testing.assert_allclose(weighted, model.gradient(params, x, y), rtol=1e-12)
    assert np.abs(plain - weighted).max() > 1


def test_weights_change_no_bit_where_sizes_are_equal():
    model, (x, y) = MLP(3, 4), synthetic_task(30, 3, dtype=np.float32)
    params = model.init(np.random.default_rng(0), np.float32)[None]
    parts = micro_batches(x, y, 1, (10, 10, 10))
    weighted, plain = (accumulated_gradients(model, params, parts, weighted=w) for w in (True, False))
    np.testing.assert_array_equal(weighted, plain)
    assert weighted.dtype == np.float32


def test_one_micro_batch_is_the_local_gradient_to_the_bit():
    model, (x, y) = MLP(3, 4), synthetic_task(7, 3)
    params = model.init(np.random.default_rng(0))
    local = accumulated_gradients(model, params[None], [[(x, y)]])
    assert local.tobytes() == model.gradient(params, x, y).tobytes()


def test_a_divisor_of_ones_own_scales_the_sum():
    model, params, x, y = integer_task(16)
    parts = [shard(x[:8], y[:8], 1), shard(x[8:], y[8:], 1)]
    half = accumulated_gradients(model, params[None], parts, 1)
    np.testing.assert_array_equal(half, 2 * accumulated_gradients(model, params[None], parts))
    assert SGD(1.0).step(params, half[0]).tolist() == (params - half[0]).tolist()


X, Y = np.zeros((6, 3)), np.zeros((6, 1))


@each(
    ("name", "call"),
    [
        ("per_device", lambda: effective_batch(0, 1)),
        ("world", lambda: effective_batch(1, 0)),
        ("accumulation", lambda: effective_batch(1, 1, 0)),
        ("effective", lambda: accumulation_for(24, 4, 4)),
        ("effective", lambda: accumulation_for(0, 4, 4)),
        ("micro_batches", lambda: next(accumulate(-1, 8))),
        ("accumulation", lambda: next(accumulate(8, 0))),
        ("leftover", lambda: next(accumulate(8, 8, "keep"))),
        ("leftover", lambda: next(groups(feed([Sampler(4, 1, 0)], 4, 1), 2, None))),
        ("accumulation", lambda: next(groups(feed([Sampler(4, 1, 0)], 4, 1), 0))),
        ("micro_batches", lambda: accumulated_gradients(Linear(3), np.zeros((1, 4)), [])),
        ("divisor", lambda: accumulated_gradients(Linear(3), np.zeros((1, 4)), [[(X, Y)]], 0)),
        ("shards", lambda: accumulated_gradients(Linear(3), np.zeros((2, 4)), [[(X, Y)]])),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
