"""Is the α–β model the straight line that it says it is?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import AlphaBeta, Slowest, crossover
from dpbook.collectives.pricing.alpha_beta import slowest
from dpbook.core.errors import InvalidArgument
from tests.cases import each

ALPHAS, BETAS = st.floats(0, 1e-2), st.floats(0, 1e-6)
MODELS = st.builds(AlphaBeta, ALPHAS, BETAS)
BYTES = st.floats(0, 1e12)


@given(MODELS, BYTES)
def test_time_is_affine_in_the_bytes(model, nbytes):
    assert model(nbytes) == model.alpha + model.beta * nbytes
    assert isinstance(model(nbytes), float)


def test_an_array_of_sizes_gives_an_array_of_times():
    times = AlphaBeta(1e-5, 1e-9)(np.array([0, 1000, 10**6]))
    np.testing.assert_allclose(times, [1e-5, 1.1e-5, 1.01e-3])


def test_at_the_half_bandwidth_size_half_the_bandwidth_is_reached():
    model = AlphaBeta(2e-5, 4e-11)
    size = model.half_bandwidth_bytes
    assert size == pytest.approx(500_000)
    assert size / model(size) == pytest.approx(model.bandwidth / 2)


def test_a_model_without_a_price_per_byte_has_no_end_to_its_bandwidth():
    assert (AlphaBeta(1e-6, 0).bandwidth, AlphaBeta(1e-6, 0).half_bandwidth_bytes) == (math.inf, math.inf)


@given(MODELS, MODELS, BYTES)
def test_one_after_the_other_takes_the_sum(a, b, nbytes):
    assert (a + b)(nbytes) == pytest.approx(a(nbytes) + b(nbytes), rel=1e-12)


def test_it_says_what_it_is():
    assert repr(AlphaBeta(30e-6, 30e-12)) == ("30 µs + 30 ps/B · n: at most 33.3 GB/s, half of it at n½ = 1 MB")
    assert repr(AlphaBeta(30e-6, 0)) == "30 µs, whatever the size"


@given(MODELS, MODELS)
def test_at_the_crossover_both_take_equally_long_and_the_order_turns(a, b):
    size = crossover(a, b)
    if size is None or not 0 < size < 1e12:
        return
    assert a(size) == pytest.approx(b(size), rel=1e-6, abs=1e-15)
    assert crossover(b, a) == size
    small, large = (a, b) if a.alpha < b.alpha else (b, a)
    assert small(size / 2) <= large(size / 2)
    assert small(size * 2) >= large(size * 2)


@pytest.mark.parametrize(
    ("a", "b"),
    [(AlphaBeta(1, 1), AlphaBeta(2, 2)), (AlphaBeta(1, 1), AlphaBeta(1, 2)), (AlphaBeta(1, 1), AlphaBeta(2, 1))],
)
def test_where_one_is_never_slower_there_is_no_crossover(a, b):
    assert crossover(a, b) is crossover(b, a) is crossover(a, a) is None


@given(st.lists(MODELS, min_size=1, max_size=4), BYTES)
def test_the_slowest_is_the_largest_at_every_size(models, nbytes):
    assert slowest(*models)(nbytes) == max(model(nbytes) for model in models)


def test_the_slowest_is_one_of_them_where_it_is_slowest_everywhere():
    assert slowest(AlphaBeta(1, 1), AlphaBeta(2, 1), AlphaBeta(2, 0.5)) == AlphaBeta(2, 1)
    both = slowest(AlphaBeta(1e-6, 2e-9), AlphaBeta(2e-6, 1e-9))
    assert isinstance(both, Slowest)
    np.testing.assert_allclose(both(np.array([0, 1e3, 1e6])), [2e-6, 3e-6, 2001e-6])
    assert repr(both).startswith("the slowest of 1 µs + 2 ns/B")


@each(
    ("call", "named"),
    [
        (lambda: AlphaBeta(-1, 0), "alpha"),
        (lambda: AlphaBeta(0, -1), "beta"),
        (lambda: AlphaBeta(math.nan, 0), "alpha"),
        (lambda: AlphaBeta(0, math.inf), "beta"),
        (lambda: AlphaBeta("x", 0), "alpha"),
        (lambda: AlphaBeta(0, 0)(-1), "nbytes"),
        (lambda: AlphaBeta(0, 0)(math.nan), "nbytes"),
        (lambda: AlphaBeta(0, 0)("x"), "nbytes"),
        (lambda: AlphaBeta(0, 0)(np.array([1, -1])), "nbytes"),
        (lambda: crossover(1, AlphaBeta(0, 0)), "a"),
        (lambda: crossover(AlphaBeta(0, 0), None), "b"),
    ],
)
def test_what_is_no_model_or_size_is_named(call, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()


def test_a_model_adds_to_models_alone():
    with pytest.raises(TypeError):
        AlphaBeta(0, 0) + 1
