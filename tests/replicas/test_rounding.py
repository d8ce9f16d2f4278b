"""Does the bound tell rounding from a real difference, wrong in neither direction?"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import compare, gamma, rounding_bound, unit_roundoff
from tests.cases import each

BFLOAT16_UNIT = 2.0**-8


def to_bfloat16(values):
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).to(torch.float32).numpy()


FORMATS = {
    "float64": (np.float64, 2.0**-53, lambda x: x),
    "float32": (np.float32, 2.0**-24, lambda x: x),
    "bfloat16": (np.float32, BFLOAT16_UNIT, to_bfloat16),
}


def realistic_gradients(rng, world, size, number_format):
    """Heavy tails, scales over ten decades, and elements in which half of the ranks nearly cancel the others."""
    dtype, _, rounded = FORMATS[number_format]
    gradients = rng.standard_t(2, (world, size)) * 10.0 ** rng.uniform(-8, 2, size)
    half = world // 2
    gradients[half : 2 * half, ::3] = -gradients[:half, ::3] * (1 + 1e-3 * rng.standard_normal((half, size))[:, ::3])
    return rounded(gradients.astype(dtype))


def sequential(terms, rounded):
    total = terms[0]
    for term in terms[1:]:
        total = rounded(total + term)
    return total


def pairwise(terms, rounded):
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return rounded(pairwise(terms[:half], rounded) + pairwise(terms[half:], rounded))


def tree(terms, rounded):
    """The order of a binomial tree: neighbours first."""
    while len(terms) > 1:
        pairs = [rounded(a + b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, *terms[2 * len(pairs) :]]
    return terms[0]


def ring(terms, rounded):
    """The order of a ring: each chunk begins at another rank."""
    world = len(terms)
    chunks = np.array_split(np.arange(terms[0].size), world)
    return np.concatenate(
        [sequential([terms[(c + k) % world][chunk] for k in range(world)], rounded) for c, chunk in enumerate(chunks)]
    )


ORDERS = [sequential, pairwise, tree, ring]


@pytest.mark.parametrize("trials", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
@pytest.mark.parametrize("number_format", FORMATS)
def test_honest_orders_are_called_rounding(number_format, trials):
    rng = np.random.default_rng(1)
    _, unit, rounded = FORMATS[number_format]
    closest, verdicts = 0.0, set()
    for trial in range(trials):
        if trial % 50 == 0:
            world = [2, 3, 4, 5, 7, 8, 9, 16][trial // 50 % 8]
            gradients = realistic_gradients(rng, world, 24, number_format)
            reference = sequential(gradients, rounded)
            bound = rounding_bound(gradients, unit=unit)
        terms = list(gradients[rng.permutation(world)])
        found = compare(ORDERS[trial % 4](terms, rounded), reference, bound)
        assert found.verdict in ("rounding", "bit-identical"), (trial, found)
        verdicts.add(found.verdict)
        closest = max(closest, float((np.abs(ORDERS[trial % 4](terms, rounded) - reference) / bound).max()))
    assert verdicts == {"rounding", "bit-identical"}
    assert closest > 0.1  # the orders come within a factor of ten of the bound, so it is not idle


@each(("number_format", "relative"), [("float64", 3.2e-15), ("float32", 1.7e-6), ("bfloat16", 0.118)])
@each("order", ORDERS)
def test_smallest_error_that_is_always_caught(number_format, relative, order):
    """Eight terms: an error of ``relative`` times Σ|x|, just above 4 γ_7, planted in one element of an honest sum."""
    rng = np.random.default_rng(2)
    dtype, unit, rounded = FORMATS[number_format]
    assert 4 * gamma(7, unit) < relative < 4.3 * gamma(7, unit)
    for _ in range(100):
        gradients = realistic_gradients(rng, 8, 24, number_format)
        reference = sequential(gradients, rounded)
        wrong = order(list(gradients[rng.permutation(8)]), rounded).astype(np.float64)
        element = rng.integers(24)
        wrong[element] += rng.choice([-1, 1]) * relative * np.abs(gradients.astype(np.float64)[:, element]).sum()
        found = compare(rounded(wrong.astype(dtype)), reference, rounding_bound(gradients, unit=unit))
        assert found.verdict == "different"


@pytest.mark.parametrize("number_format", FORMATS)
def test_a_missing_division_and_a_lost_rank_are_different(number_format):
    _, unit, rounded = FORMATS[number_format]
    gradients = np.abs(realistic_gradients(np.random.default_rng(3), 5, 24, number_format))
    total, bound = sequential(gradients, rounded), rounding_bound(gradients, 5, unit=unit)
    mean = rounded(total / np.float32(5) if number_format != "float64" else total / 5)
    assert compare(total, mean, bound / 5).verdict == "different"
    assert compare(sequential(gradients[:-1], rounded), total, bound).verdict == "different"


@given(st.data(), st.sampled_from([16, 32, 64]))
def test_no_order_of_any_numbers_exceeds_the_bound(data, width):
    dtype = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    largest = float(np.finfo(dtype).max) / 64
    numbers = st.floats(-largest, largest, width=width)
    terms = np.array(data.draw(st.lists(numbers, min_size=1, max_size=20)), dtype)
    order = data.draw(st.permutations(range(len(terms))))
    forward, other = (
        np.array(s(list(t.reshape(-1, 1)), lambda x: x)) for s, t in ((sequential, terms), (tree, terms[order]))
    )
    assert compare(other, forward, rounding_bound(terms)).verdict in ("rounding", "bit-identical")


def test_bound_is_nearly_reached():
    """Terms that all lose what one order keeps: u is absorbed 1 − 1/n of the times."""
    n, u = 1001, 2.0**-53
    terms = np.array([1.0] + [u] * (n - 1))  # 1 + u rounds back to 1
    error = abs(
        sequential(terms[::-1].reshape(-1, 1), lambda x: x)[0] - sequential(terms.reshape(-1, 1), lambda x: x)[0]
    )
    assert error == (n - 1) * u
    assert 0.49 < error / rounding_bound(terms) <= 0.5


def test_the_first_term_of_a_sum_is_not_rounded():
    """Two sums of n terms differ by 2 γ with n − 1 roundings at most; one term has no rounding at all."""
    assert rounding_bound(np.ones((3, 1))) == pytest.approx(2 * 3 * gamma(2, 2.0**-53), rel=2e-3)
    assert rounding_bound(np.ones((1, 1))) == 0


def test_height_of_a_tree_is_enough_for_trees():
    rng = np.random.default_rng(4)
    terms = rng.standard_normal((256, 50)).astype(np.float32)
    exact = terms.astype(np.float64).sum(axis=0)
    error = np.abs(tree(list(terms), lambda x: x) - exact)
    assert (error <= rounding_bound(terms, n_ops=8) / 2).all()
    assert rounding_bound(terms, n_ops=8).max() < rounding_bound(terms).max() / 31


def test_probable_bound_is_sharper_for_many_terms_and_still_holds():
    rng = np.random.default_rng(5)
    terms = rng.random((4096, 200), np.float32)  # all positive: sums grow, and so do their rounding errors
    certain, probable = rounding_bound(terms), rounding_bound(terms, failure=1e-9)
    assert (certain / probable).min() > 5
    for _ in range(20):
        a, b = (sequential(terms[rng.permutation(4096)], lambda x: x) for _ in range(2))
        assert compare(a, b, probable).verdict == "rounding"
    np.testing.assert_array_equal(rounding_bound(terms[:8], failure=1e-9), rounding_bound(terms[:8]))


def test_gamma_is_what_the_roundings_can_make():
    unit = 2.0**-24
    assert gamma(0, unit) == 0
    for n in (1, 10, 1000):
        assert (1 + unit) ** n - 1 <= gamma(n, unit)
        assert 1 - (1 - unit) ** n <= gamma(n, unit)
        assert gamma(n, unit) == pytest.approx(n * unit, rel=2 * n * unit)


def test_unit_roundoff_is_half_the_gap_above_one():
    for dtype in (np.float16, np.float32, np.float64):
        u = unit_roundoff(dtype)
        assert dtype(1) + dtype(u) == 1 < dtype(1) + dtype(2 * u)
    assert torch.finfo(torch.bfloat16).eps / 2 == BFLOAT16_UNIT


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n_ops", lambda: gamma(-1, 1e-3)),
        ("n_ops", lambda: gamma(256, BFLOAT16_UNIT)),
        ("unit", lambda: gamma(1, 0.0)),
        ("failure", lambda: gamma(1, 1e-3, 1.0)),
        ("terms", lambda: rounding_bound(np.ones((0, 3)))),
        ("terms", lambda: rounding_bound(np.ones(3, int))),
        ("terms", lambda: rounding_bound(1.0)),
        ("n_ops", lambda: rounding_bound(np.ones((300, 1)), unit=BFLOAT16_UNIT)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
