"""Does the simulated step take as long as the formulas of chapter 07, and longer for each cost?"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch08 import cnn
from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import (
    STRATEGIES,
    Layer,
    Plan,
    Tensor,
    bucketed,
    equal_layers,
    hook,
    layers_of,
    naive,
    naive_flat,
    per_tensor_plan,
    plan,
    simulate_step,
    single,
    tensors_of,
)
from tests.cases import each
from tests.overlap import shapes

WORLDS = [*range(1, 10), 16]


def rate(seconds_per_byte, latency=0.0):
    return lambda nbytes: latency + seconds_per_byte * nbytes


def two_layers(forward=0.0, backward=1.0):
    """Two layers of ten bytes each."""
    return equal_layers(2, 2 * forward, 2 * backward, 20)


def times(timeline, kind, rank=0):
    """Return (start, end) of each span of a kind, in order."""
    found = sorted((s.start, s.end) for s in timeline.spans if s.kind == kind and s.rank == rank)
    return [(pytest.approx(a), pytest.approx(b)) for a, b in found]


# The formulas of chapter 07


@each("k", [1, 2, 5, 7, 10, 35])
def test_100_ms_of_compute_and_35_ms_of_communication(k):
    layers, price = equal_layers(k, 0, 0.1, 7000 * k), rate(0.035 / (7000 * k))
    took = {name: simulate_step(layers, make(layers), price) for name, make in STRATEGIES.items()}
    assert took["single"].duration == pytest.approx(0.1)
    assert took["naive"].duration == pytest.approx(0.135)
    assert took["flat"].duration == pytest.approx(0.135)
    assert took["hook"].duration == pytest.approx(0.1 + 0.035 / k)
    assert took["hook"].exposed() == pytest.approx(0.035 / k)
    cut = plan(tensors_of(layers), cap=7000, first=None)
    assert simulate_step(layers, cut, price).duration == took["hook"].duration


def test_overlap_gains_at_most_five_thirds_where_backward_is_twice_forward():
    layers = equal_layers(1000, 1.0, 2.0, 1000)
    gains = []
    for communication in (0.5, 1.0, 1.9, 2.0, 2.1, 3.0, 10.0):
        price = rate(communication / 1000)
        gains.append(
            simulate_step(layers, naive(layers), price).duration / simulate_step(layers, hook(layers), price).duration
        )
    assert max(gains) == gains[3] == pytest.approx(5 / 3, rel=1e-3)
    assert max(gains) < 5 / 3


def test_latency_is_paid_once_per_call():
    layers = two_layers()
    assert simulate_step(layers, naive(layers), rate(0.1, latency=5)).duration == pytest.approx(2 + 2 + 10)
    assert simulate_step(layers, naive_flat(layers), rate(0.1, latency=5)).duration == pytest.approx(2 + 2 + 5)


def test_the_usual_price_is_a_collectives_alpha_beta():
    layers = two_layers()
    price = AlphaBeta(0.5, 0.05)
    assert simulate_step(layers, hook(layers), price).duration == pytest.approx(3)
    assert times(simulate_step(layers, naive(layers), price, streams=2), "communication") == [(2, 3.5), (2, 3.5)]


# When a bucket goes out


def test_a_full_bucket_waits_for_the_buckets_before_it():
    layers = two_layers()
    last_first = Plan(tensors_of(layers), ((0,), (1,)))
    assert times(simulate_step(layers, last_first, rate(0.1)), "communication") == [(2, 3), (3, 4)]
    assert times(simulate_step(layers, hook(layers), rate(0.1)), "communication") == [(1, 2), (2, 3)]


def test_a_bucket_goes_out_with_its_last_gradient():
    layers = equal_layers(3, 0, 3, 30)
    assert times(simulate_step(layers, Plan(tensors_of(layers), ((2, 0), (1,))), rate(0.1)), "communication") == [
        (3, 5),
        (5, 6),
    ]


@given(shapes.layers(), st.integers(0, 800), st.floats(0, 1e-3), st.floats(0, 1e-2))
def test_without_side_effects_it_is_a_recursion_over_the_buckets(layers, cap, beta, alpha):
    cut = plan(tensors_of(layers), cap, None)
    forward, end, first = sum(layer.forward for layer in layers), 0.0, len(tensors_of(layers))
    for group in cut.groups:
        first = min(first, *group)
        ready, seen = forward, len(tensors_of(layers))
        for layer in reversed(layers):
            ready, seen = ready + layer.backward, seen - len(layer.tensors)
            if seen <= first:
                break
        end = max(end, ready) + alpha + beta * sum(4 * tensors_of(layers)[i].elements for i in group)
    whole = sum(layer.forward + layer.backward for layer in layers)
    found = simulate_step(layers, cut, rate(beta, alpha)).duration
    assert found == pytest.approx(max(whole, end), rel=1e-9, abs=1e-9)


# What holds for every step

step_arguments = st.fixed_dictionaries(
    {
        "accumulation": st.integers(1, 3),
        "no_sync": st.booleans(),
        "factors": st.lists(st.sampled_from([1.0, 1.25, 2.0]), min_size=1, max_size=3),
        "contention": st.sampled_from([1.0, 1.5, 3.0]),
        "streams": st.integers(1, 3),
        "kernel_launch": st.sampled_from([0.0, 0.001]),
        "optimizer": st.sampled_from([0.0, 0.01]),
    }
)
prices = st.builds(rate, st.floats(0, 1e-3), st.floats(0, 1e-2))


@given(shapes.layers(), st.sampled_from(sorted(STRATEGIES)), prices, step_arguments)
def test_exposed_time_is_never_negative_nor_more_than_communication(layers, name, price, arguments):
    timeline = simulate_step(layers, STRATEGIES[name](layers), price, **arguments)
    for rank in timeline.ranks:
        assert 0 <= timeline.exposed(rank) <= timeline.busy("communication", rank) <= timeline.duration * (1 + 1e-9)


@given(shapes.layers(), st.sampled_from(sorted(STRATEGIES)), prices, step_arguments)
def test_nothing_overlaps_within_a_lane(layers, name, price, arguments):
    timeline = simulate_step(layers, STRATEGIES[name](layers), price, **arguments)
    for rank in range(len(arguments["factors"])):
        for lane in timeline.lanes(rank):
            spans = [span for span in timeline.spans if (span.rank, span.lane) == (rank, lane)]
            assert all(a.end <= b.start for a, b in pairwise(spans))


@given(shapes.layers(), st.integers(0, 800), step_arguments)
def test_every_bucket_is_sent_once_per_sync_on_every_rank(layers, cap, arguments):
    cut = plan(tensors_of(layers), cap, None)
    timeline = simulate_step(layers, cut, rate(0.0, latency=0.001), **arguments)
    syncs = 1 if arguments["no_sync"] else arguments["accumulation"]
    for rank in range(len(arguments["factors"])):
        sent = [s.name for s in timeline.spans if s.rank == rank and s.kind == "communication"]
        assert sorted(sent) == sorted(syncs * [f"all-reduce {b + 1}" for b in range(cut.calls)])


@given(shapes.layers(), st.integers(0, 800), st.floats(0, 1e-3), st.floats(0, 1e-2))
def test_a_bucketed_step_lies_between_the_longer_part_and_their_sum(layers, cap, beta, alpha):
    cut = plan(tensors_of(layers), cap, None)
    price = rate(beta, alpha)
    took = simulate_step(layers, cut, price).duration
    computation = sum(layer.forward + layer.backward for layer in layers)
    communication = sum(map(price, cut.nbytes.tolist()))
    assert took >= max(computation, communication) * (1 - 1e-9)
    assert took <= (computation + communication) * (1 + 1e-9)
    flat = simulate_step(layers, naive_flat(layers), rate(beta)).duration
    assert simulate_step(layers, cut, rate(beta)).duration <= flat * (1 + 1e-9)


@given(
    shapes.layers(),
    st.sampled_from(sorted(STRATEGIES)),
    st.floats(0, 1e-3),
    st.floats(0, 1e-2),
    st.floats(1, 10),
    step_arguments,
)
def test_more_bandwidth_never_slows_a_step(layers, name, beta, alpha, faster, arguments):
    strategy = STRATEGIES[name](layers)
    slow = simulate_step(layers, strategy, rate(beta, alpha), **arguments).duration
    fast = simulate_step(layers, strategy, rate(beta / faster, alpha), **arguments).duration
    assert fast <= slow * (1 + 1e-9)


# What costs more


def test_backward_slows_down_while_bytes_move():
    layers = two_layers()
    timeline = simulate_step(layers, hook(layers), rate(0.05), contention=2)
    assert times(timeline, "computation") == [(0, 1), (1, 2.25)]  # half a second at half speed
    assert times(timeline, "communication") == [(1, 1.5), (2.25, 2.75)]


def test_two_streams_share_the_bandwidth_but_not_the_latency():
    layers = two_layers(backward=0)
    price = rate(0.2, latency=1)
    assert simulate_step(layers, hook(layers), price).duration == pytest.approx(6)
    two = simulate_step(layers, hook(layers), price, streams=2)
    assert times(two, "communication") == [(0, 5), (0, 5)]
    assert two.lanes(0) == ("communication", "communication 2")


def test_a_stream_that_comes_later_shares_from_then_on():
    layers = two_layers(backward=1)
    timeline = simulate_step(layers, hook(layers), rate(0.2), streams=2)
    # Alone from 1 to 2; then both at half speed: the first has 1 s left, which takes 2; the other 1 s alone.
    assert times(timeline, "communication") == [(1, 4), (2, 5)]


@each("world", WORLDS)
def test_all_ranks_wait_for_the_straggler(world):
    layers = two_layers()
    factors = [1.0] * (world - 1) + [2.0]
    timeline = simulate_step(layers, hook(layers), rate(0.05), factors=factors)
    assert timeline.ranks == tuple(range(world))
    assert times(timeline, "communication", 0) == [(2, 2.5), (4, 4.5)]
    assert times(timeline, "communication", world - 1) == [(2, 2.5), (4, 4.5)]
    assert times(timeline, "wait", world - 1) == []
    if world > 1:
        assert times(timeline, "wait", 0) == [(1, 2), (2.5, 4)]


def test_accumulation_syncs_once_where_it_may():
    layers = two_layers(forward=1)
    price = rate(0.05)
    alone = 4.0
    once = simulate_step(layers, hook(layers), price, accumulation=3)
    assert once.duration == pytest.approx(3 * alone + 0.5)
    each = simulate_step(layers, hook(layers), price, accumulation=3, no_sync=False)
    assert each.duration == pytest.approx(3 * (alone + 0.5))
    assert each.busy("communication") == pytest.approx(3 * once.busy("communication"))


def test_the_optimizer_comes_after_the_last_collective():
    layers = two_layers()
    timeline = simulate_step(layers, hook(layers), rate(0.1), optimizer=0.25)
    assert times(timeline, "computation")[-1] == (3, 3.25)
    assert timeline.duration == pytest.approx(3.25)


def test_nothing_starts_before_it_is_launched():
    layers = two_layers(forward=0.1, backward=1)
    timeline = simulate_step(layers, hook(layers), rate(0.1), kernel_launch=2)
    assert times(timeline, "launch") == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert times(timeline, "computation") == [(2, 2.1), (4, 4.1), (6, 7), (8, 9)]
    assert times(timeline, "communication") == [(7, 8), (9, 10)]


def test_a_collective_says_when_its_gradients_were_complete():
    layers = two_layers()
    spans = simulate_step(layers, naive(layers), rate(0.1)).spans
    assert [s.ready for s in spans if s.kind == "communication"] == [1, 2]


def test_every_rank_has_a_launch_row():
    layers = two_layers()
    timeline = simulate_step(layers, single(), rate(0), kernel_launch=0.5, factors=(1, 2))
    assert times(timeline, "launch", 0) == times(timeline, "launch", 1) != []


# Layers


def test_layers_share_the_models_time_by_their_elements():
    layers = layers_of(cnn(), forward=1.0)
    assert [layer.name for layer in layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert tensors_of(layers) == cnn()
    assert [layer.forward for layer in layers] == pytest.approx([n / 206_922 for n in (160, 4640, 200_832, 1290)])
    assert sum(layer.backward for layer in layers) == pytest.approx(2.0)


LAYERS = two_layers()


@each(
    ("call", "message"),
    [
        (lambda: simulate_step([], single(), rate(1)), "layers must be a sequence of one or more"),
        (lambda: simulate_step([1], single(), rate(1)), r"layers\[0\] must be a Layer"),
        (lambda: simulate_step(LAYERS, "hook", rate(1)), "sync must be a Plan or a Strategy"),
        (lambda: simulate_step(LAYERS, per_tensor_plan(cnn()), rate(1)), "a plan of the tensors of these layers"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), 3), "price must be a function"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(-1)), r"price\(10\) must be a finite number of at least 0"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), accumulation=0), "accumulation must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), streams=0), "streams must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), contention=0.5), "contention must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), factors=()), "factors must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), factors=(1, 0)), r"factors\[1\] must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), optimizer=-1), "optimizer must be"),
        (lambda: simulate_step(LAYERS, hook(LAYERS), rate(1), kernel_launch="a"), "kernel_launch must be"),
        (lambda: bucketed(3), "buckets must be a Plan"),
        (lambda: tensors_of(3), "layers must be"),
        (lambda: layers_of((Tensor("a", 0),), 1), "of one element or more"),
        (lambda: layers_of(cnn(), -1), "forward must be"),
        (lambda: Layer("a", 0, float("nan")), "backward of a must be"),
        (lambda: Layer("a", 0, 0, (1,)), r"tensors\[0\] must be a Tensor"),
        (lambda: equal_layers(0, 1, 1, 1), "count must be"),
        (lambda: equal_layers(3, 1, 1, 16), "nbytes must be a multiple of 3 × 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
