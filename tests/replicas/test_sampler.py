"""Does every rank read its own part of one common order?"""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import Sampler, contiguous, drop, expected_distinct, keep, pad, permutation, strided
from tests.cases import each

WORLDS = [*range(1, 10), 16]
SIZES = [1, 2, 3, 5, 7, 8, 16, 17, 31, 237]


def joined(parts):
    return sorted(np.concatenate(parts).tolist())


# Parts of an order

orders = st.integers(1, 60).flatmap(lambda n: st.permutations(range(n)))
worlds = st.integers(1, 20)
cuts = st.sampled_from([strided, contiguous])


@given(orders, worlds, cuts)
def test_parts_are_disjoint_and_exhaustive_and_differ_by_one_at_most(order, world, cut):
    parts = cut(keep(order, world), world)
    assert joined(parts) == list(range(len(order)))
    lengths = [len(part) for part in parts]
    assert len(parts) == world
    assert max(lengths) - min(lengths) <= 1


@given(orders, worlds, cuts)
def test_padded_parts_are_equal_and_lose_nothing(order, world, cut):
    parts = cut(pad(order, world), world)
    assert {len(part) for part in parts} == {-(-len(order) // world)}
    assert set(joined(parts)) == set(order)
    times = np.bincount(np.concatenate(parts))
    assert times.max() - times.min() <= 1


@given(orders, worlds, cuts)
def test_dropped_parts_are_equal_and_repeat_nothing(order, world, cut):
    parts = cut(drop(order, world), world)
    assert {len(part) for part in parts} == {len(order) // world}
    assert len(set(joined(parts))) == len(joined(parts)) > len(order) - world


@given(orders, worlds)
def test_contiguous_parts_are_the_order(order, world):
    assert np.concatenate(contiguous(order, world)).tolist() == order


@given(orders, worlds)
def test_strided_parts_are_dealt_like_cards(order, world):
    parts = [part.tolist() for part in strided(order, world)]
    assert [parts[i % world][i // world] for i in range(len(order))] == order


# The same as torch's


@each("world", WORLDS)
@each(("fit", "drop_last"), [(pad, False), (drop, True)])
def test_in_order_as_torch_deals_it(world, fit, drop_last):
    for size, rank in product(SIZES, range(world)):
        theirs = DistributedSampler(range(size), world, rank, shuffle=False, drop_last=drop_last)
        ours = Sampler(size, world, rank, shuffle=False, fit=fit)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


@each("world", WORLDS)
@each(("fit", "drop_last"), [(pad, False), (drop, True)])
def test_any_order_as_torch_deals_it(world, fit, drop_last):
    """torch's order is its own; fed with it, our rule gives torch's parts."""
    for size in SIZES:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(5 + 2)).tolist()
        parts = strided(fit(order, world), world)
        for rank in range(world):
            theirs = DistributedSampler(range(size), world, rank, seed=5, drop_last=drop_last)
            theirs.set_epoch(2)
            assert parts[rank].tolist() == list(theirs)


# Orders


def test_orders_depend_on_seed_and_epoch_alone():
    orders = {(seed, epoch): tuple(permutation(50, seed, epoch)) for seed, epoch in product(range(4), range(4))}
    assert len(set(orders.values())) == 16  # seed + epoch would give 7
    assert all(tuple(permutation(50, *key)) == order for key, order in orders.items())


def test_orders_are_children_of_one_seed_sequence():
    children = np.random.SeedSequence(9).spawn(5)
    for epoch, child in enumerate(children):
        np.testing.assert_array_equal(permutation(30, 9, epoch), np.random.default_rng(child).permutation(30))


def test_without_set_epoch_every_epoch_is_the_same():
    sampler = Sampler(100, 4, 1)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_in_its_own_order_an_epoch_changes_nothing():
    sampler = Sampler(10, 2, 1, shuffle=False, cut=contiguous)
    sampler.set_epoch(3)
    assert list(sampler) == [5, 6, 7, 8, 9]


def test_repr_says_whose_list_it_is():
    sampler = Sampler(237, 2, 1, seed=4)
    sampler.set_epoch(3)
    assert repr(sampler) == "Sampler(rank 1 of 2: 119 of 237 examples, seed 4, epoch 3)"
    assert repr(Sampler(5000, 2, 0, shuffle=False)) == "Sampler(rank 0 of 2: 2,500 of 5,000 examples, in order)"


# Ranks that draw on their own


def test_the_figures_of_the_book():
    assert f"{expected_distinct(50_000, 32, 8):.1f}" == "255.4"
    assert f"{expected_distinct(50_000, 50_000 // 8, 8) / 50_000:.3f}" == "0.656"


@given(st.integers(1, 200), st.integers(1, 20))
def test_an_epochs_worth_leaves_out_a_share_of_one_minus_one_over_k_to_the_k(share, world):
    assert expected_distinct(share * world, share, world) == pytest.approx(
        share * world * (1 - (1 - 1 / world) ** world)
    )


@pytest.mark.parametrize(("examples", "drawn", "world"), [(4, 2, 2), (5, 2, 3), (3, 1, 4), (4, 4, 3), (4, 0, 2)])
def test_expectation_is_the_average_over_all_draws(examples, drawn, world):
    draws = list(combinations(range(examples), drawn))
    distinct = [len(set().union(*ranks)) for ranks in product(draws, repeat=world)]
    assert expected_distinct(examples, drawn, world) == pytest.approx(np.mean(distinct), abs=1e-12)


@each(
    ("name", "call"),
    [
        ("examples", lambda: permutation(0)),
        ("seed", lambda: permutation(5, -1)),
        ("epoch", lambda: permutation(5, 0, -1)),
        ("world", lambda: pad([1], 0)),
        ("world", lambda: drop([1], 0)),
        ("world", lambda: keep([1], 0)),
        ("world", lambda: strided([1], 0)),
        ("world", lambda: contiguous([1], 0)),
        ("order", lambda: pad([], 2)),
        ("order", lambda: drop([[1]], 2)),
        ("order", lambda: strided(3, 2)),
        ("examples", lambda: Sampler(0, 1, 0)),
        ("world", lambda: Sampler(5, 0, 0)),
        ("rank", lambda: Sampler(5, 2, 2)),
        ("seed", lambda: Sampler(5, 2, 1, seed=0.5)),
        ("fit", lambda: Sampler(5, 2, 1, fit="pad")),
        ("cut", lambda: Sampler(5, 2, 1, cut=None)),
        ("epoch", lambda: Sampler(5, 2, 1).set_epoch(-1)),
        ("drawn", lambda: expected_distinct(5, 6, 1)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
