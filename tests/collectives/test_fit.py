"""Does a fit find α and β, and say where they hold?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import AlphaBeta, Fit, fit
from dpbook.core.errors import InvalidArgument
from tests.cases import each

SIZES = 4.0 ** np.arange(4, 16)  # 256 B to 1 GiB


def loss(model, nbytes, seconds):
    return float(((model(np.asarray(nbytes, float)) / np.asarray(seconds, float) - 1) ** 2).sum())


@given(st.floats(1e-7, 1e-2), st.floats(1e-12, 1e-7))
def test_times_of_the_model_give_the_model_back(alpha, beta):
    found = fit(SIZES, AlphaBeta(alpha, beta)(SIZES))
    if beta * SIZES[0] < alpha < beta * SIZES[-1]:  # both matter somewhere
        assert found.model.alpha == pytest.approx(alpha, rel=1e-3)
        assert found.model.beta == pytest.approx(beta, rel=1e-3)
    assert np.abs(found.residuals).max() < 1e-6
    assert found.good == (SIZES[0], SIZES[-1])
    assert found.useless == ()


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-6, 10)), min_size=2, max_size=12))
def test_no_other_alpha_and_beta_are_better(points):
    sizes, times = zip(*points, strict=True)
    if len(set(sizes)) < 2:
        return
    found = fit(sizes, times).model
    best = loss(found, sizes, times)
    for alpha in (0, 0.99 * found.alpha, 1.01 * found.alpha, found.alpha + 1e-7):
        for beta in (0, 0.99 * found.beta, 1.01 * found.beta, found.beta + 1e-13):
            assert loss(AlphaBeta(alpha, beta), sizes, times) >= best * (1 - 1e-9) - 1e-12


def test_small_and_large_messages_count_alike():
    """10 % more at the largest size and 10 % less at the smallest move the fit by no more than that anywhere."""
    model = AlphaBeta(1e-5, 1e-10)
    times = model(SIZES)
    times[0] *= 0.9
    times[-1] *= 1.1
    found = fit(SIZES, times)
    assert np.abs(found.model(SIZES) / model(SIZES) - 1).max() < 0.1
    alpha = np.polyfit(SIZES, times, 1)[1]  # plain least squares sees the largest alone
    assert abs(alpha / model.alpha - 1) > 0.3


def test_the_order_of_the_points_does_not_matter():
    times = AlphaBeta(1e-5, 1e-10)(SIZES) * np.linspace(0.9, 1.1, len(SIZES))
    mixed = np.random.default_rng(0).permutation(len(SIZES))
    a, b = fit(SIZES, times), fit(SIZES[mixed], times[mixed])
    assert a.model.alpha == pytest.approx(b.model.alpha, rel=1e-12)
    np.testing.assert_array_equal(a.nbytes, b.nbytes)
    np.testing.assert_allclose(a.residuals, b.residuals, rtol=1e-9)


def test_a_residual_is_positive_where_the_model_predicts_too_long():
    found = fit([1e3, 1e6, 1e6], [1e-5, 1e-3, 2e-3])
    assert found.residuals[1] > 0 > found.residuals[2]


def test_neither_alpha_nor_beta_becomes_negative():
    quadratic = fit([1e6, 2e6, 4e6], [1e-3, 4e-3, 16e-3]).model
    falling = fit([1e3, 1e4, 1e5], [3e-5, 2e-5, 1e-5]).model
    assert quadratic.alpha == 0
    assert quadratic.beta > 0
    assert falling.beta == 0
    assert falling.alpha > 0


def test_where_the_model_holds_and_where_it_is_useless():
    """Large messages follow the line; small ones take now a tenth of what it says and now ten times as much."""
    line = AlphaBeta(1e-4, 1e-9)
    small, large = np.repeat([1e3, 2e3], 2), np.array([1e6, 2e6, 4e6, 8e6, 16e6, 32e6])
    times = np.concatenate([line(small) * [0.1, 10, 0.1, 10], line(large)])
    found = fit(np.concatenate([small, large]), times, tolerance=0.25)
    assert found.useless[:2] == (1e3, 2e3)
    assert found.good is not None
    assert found.good[0] >= 1e6


@pytest.mark.parametrize(
    ("residuals", "good", "useless"),
    [
        ([0.5, 0, 0.1, -0.1, 0.5], (1, 3), ()),
        ([0, 0, 0.5, 0, 0], (3, 4), ()),  # of two runs of one length the larger messages
        ([0, 0, 0.2, 0, -0.9], (0, 1), (4,)),
        ([1, -0.5, 0, 0.99, -0.49], (2, 2), (0, 1)),
        ([0.2] * 5, None, ()),
    ],
)
def test_the_good_range_is_the_longest_run_of_sizes_and_a_factor_of_two_is_useless(residuals, good, useless):
    sizes = np.array([1e3, 1e4, 1e5, 1e6, 1e7])
    found = Fit(AlphaBeta(0, 1), sizes, sizes, np.array(residuals, float), tolerance=0.1)
    assert found.good == (None if good is None else tuple(sizes[list(good)]))
    assert found.useless == tuple(sizes[list(useless)])


def test_a_size_with_one_point_far_off_is_not_good():
    found = fit([1e6, 1e6, 1e6, 2e6, 4e6], [1e-3, 1e-3, 1.5e-3, 2e-3, 4e-3])
    assert found.good == (2e6, 4e6)


def test_a_fit_says_where_it_holds():
    assert repr(fit(SIZES, AlphaBeta(1e-5, 1e-10)(SIZES))) == (
        "10 µs + 100 ps/B · n: at most 10 GB/s, half of it at n½ = 100 kB; within 10% from 256 B to 1.07 GB"
    )
    assert repr(fit([1e3, 1e3, 2e3, 2e3], [1e-6, 9e-6, 1e-6, 9e-6])).endswith(
        "within 10% nowhere; useless at 1 kB, 2 kB"
    )


@each(
    ("nbytes", "seconds", "named"),
    [
        ([1e3], [1e-5], "nbytes"),
        ([1e3, 1e3], [1e-5, 2e-5], "nbytes"),
        ([], [], "nbytes"),
        ([1e3, -1], [1e-5, 2e-5], "nbytes"),
        ([1e3, np.nan], [1e-5, 2e-5], "nbytes"),
        ([[1e3, 2e3]], [[1e-5, 2e-5]], "nbytes"),
        ("two", [1e-5, 2e-5], "nbytes"),
        ([1e3, 2e3], [1e-5, 0], "seconds"),
        ([1e3, 2e3], [1e-5, -1], "seconds"),
        ([1e3, 2e3], [1e-5, np.nan], "seconds"),
        ([1e3, 2e3], [1e-5, np.inf], "seconds"),
        ([1e3, 2e3], [1e-5], "seconds"),
        ([1e3, 2e3], [None, object()], "seconds"),
    ],
)
def test_what_cannot_be_fitted_is_refused(nbytes, seconds, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        fit(nbytes, seconds)


def test_a_tolerance_is_positive():
    with pytest.raises(InvalidArgument, match=r"^tolerance must be"):
        fit([1, 2], [1, 2], tolerance=0)
