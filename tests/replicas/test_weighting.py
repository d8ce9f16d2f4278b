"""Is the weighted mean of the ranks' means the mean over everything?"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.core.errors import InvalidArgument
from dpbook.replicas import (
    MLP,
    average,
    both_means,
    compare,
    gradient_bound,
    local_gradients,
    rank_weights,
    shard,
    synthetic_task,
)
from tests.cases import each

WORLDS = [*range(2, 10), 16]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=16).filter(any))
def test_weights_are_shares_relative_to_an_equal_one(counts):
    exact = [Fraction(len(counts) * n, sum(counts)) for n in counts]
    assert rank_weights(counts).tolist() == [float(weight) for weight in exact]


@each("world", range(1, 100))
def test_weights_of_equal_counts_are_exactly_one(world):
    for n in (1, 3, 7, 49, 10**9):
        assert rank_weights([n] * world).tolist() == [1.0] * world


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=9), min_size=1, max_size=16))
def test_weighted_mean_is_the_mean_over_all_examples(ranks):
    found = both_means([np.mean(rank) for rank in ranks], [len(rank) for rank in ranks])
    everything = [value for rank in ranks for value in rank]
    assert found.weighted == pytest.approx(np.mean(everything), abs=1e-12 * (1 + np.abs(everything).max()))
    assert found.plain == pytest.approx(np.mean([np.mean(rank) for rank in ranks]))
    assert found.bias == found.plain - found.weighted


def test_a_case_by_hand():
    found = both_means([1.0, 5.0], [3, 1])  # 1, 1, 1 on one rank and 5 on the other
    assert (found.plain, found.weighted, found.bias) == (3.0, 2.0, 1.0)
    assert repr(found) == "Means(plain 3, weighted 2, bias 1)"
    assert repr(both_means([[1.0, 0.0], [5.0, 0.0]], [3, 1])) == "Means(2 elements, largest bias 1)"


@each("world", WORLDS)
def test_mean_per_token_needs_token_weights(world):
    """Every rank has two sequences, and the plain mean of the ranks' means per token is still biased."""
    rng = np.random.default_rng(world)
    tokens = rng.integers(1, 30, (world, 2)).sum(axis=1)
    model, (x, y) = MLP(3, 4), synthetic_task(int(tokens.sum()), 3, seed=world)
    params = rng.standard_normal(model.size)
    gradients = local_gradients(model, np.tile(params, (world, 1)), shard(x, y, world, tokens))
    big, bound = model.gradient(params, x, y), gradient_bound(model, params, x, y)
    ring = collectives.ring(world)
    assert compare(average(gradients, ring, tokens), big, bound).verdict in ("rounding", "bit-identical")
    assert compare(average(gradients, ring, [2] * world), big, bound).verdict == "different"
    means = both_means(gradients, tokens)
    assert compare(means.weighted, big, bound).verdict in ("rounding", "bit-identical")
    assert compare(means.plain, big, bound).verdict == "different"


@each(
    ("name", "call"),
    [
        ("counts", lambda: rank_weights([])),
        ("counts", lambda: rank_weights([0, 0])),
        ("counts", lambda: rank_weights([1, -1])),
        ("counts", lambda: rank_weights([1, 0.5])),
        ("local_means", lambda: both_means([1.0, 2.0], [1, 2, 3])),
        ("local_means", lambda: both_means(1.0, [1])),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
