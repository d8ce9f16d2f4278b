"""Do the distances count what they say?"""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import compare, drift, ulp_distance
from tests.cases import each

DTYPES = [np.float16, np.float32, np.float64]


def test_every_float16_has_its_place():
    """All 63,489 numbers of float16 in their order: the i-th and the j-th are |i − j| apart."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    ordered = np.unique(every[~np.isnan(every)])  # sorted; counts both zeros once
    assert len(ordered) == 63_489
    places = np.arange(len(ordered))
    for j in (0, 1, 1000, len(ordered) // 2, len(ordered) - 1):
        np.testing.assert_array_equal(ulp_distance(ordered, ordered[j]), np.abs(places - j))


@given(st.floats(-1e300, 1e300), st.integers(1, 40))
def test_as_many_steps_as_nextafter_takes(start, steps):
    stop = start
    for _ in range(steps):
        stop = math.nextafter(stop, math.inf)
    assert ulp_distance(start, stop) == ulp_distance(stop, start) == steps


@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_zeros_and_infinities(dtype):
    limits = np.finfo(dtype)
    tiny = limits.smallest_subnormal
    one = dtype(1)
    cases = [
        (dtype(0), dtype(-0.0), 0),
        (-tiny, tiny, 2),
        (dtype(-0.0), tiny, 1),
        (one, one + limits.eps, 1),
        (-one, -one - limits.eps, 1),
        (limits.max, dtype(np.inf), 1),
        (dtype(np.inf), dtype(np.inf), 0),
    ]
    for a, b, steps in cases:
        assert ulp_distance(a, b) == ulp_distance(b, a) == steps


def test_the_whole_line_of_float64_does_not_overflow():
    # From −inf to inf: twice the bit pattern of inf, more than int64 holds.
    assert int(ulp_distance(-np.inf, np.inf)) == 2 * 0x7FF0000000000000


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_far_from_everything(dtype):
    nan = dtype(np.nan)
    for other in (nan, dtype(0), dtype(np.inf)):
        assert int(ulp_distance(nan, other)) == 2**64 - 1


def test_drift_is_the_largest_distance_of_any_two():
    found = drift(np.array([[0.0, 5.0], [1.0, 5.0], [-2.0, 5.5]]))
    assert (found.largest, found.identical) == (3.0, False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_drift_of_equal_replicas_is_zero(dtype):
    found = drift([np.array([1.5, np.inf], dtype)] * 4)
    assert (found.largest, found.identical) == (0.0, True)


def test_drift_sees_a_single_bit_and_the_sign_of_zero():
    assert drift(np.array([[1.0], [np.nextafter(1.0, 2.0)]])).largest == np.finfo(float).eps
    assert not drift(np.array([[0.0], [-0.0]])).identical


def test_drift_of_nan_is_no_agreement():
    assert math.isnan(drift(np.array([[np.nan, 1.0], [0.0, 1.0]])).largest)


def test_drift_of_one_replica_is_zero():
    assert repr(drift(np.ones((1, 3)))) == "Drift(0, bit-identical)"


def test_compare_counts_errors_and_ulps():
    reference = np.array([1.0, -4.0, 0.0, np.inf])
    found = compare(np.array([1.0 + 2**-51, -4.0, -0.0, np.inf]), reference)
    assert (found.max_error, found.ulps, found.differing, found.size) == (2**-51, 2, 1, 4)
    assert repr(found) == "Exactness(max error 4.44e-16, at most 2 ulp, 1 of 4 differ)"
    assert (found.bound, found.verdict) == (None, None)


def test_compare_takes_every_ranks_average_at_once():
    found = compare(np.array([[1, 2], [1, 3]], np.float32), np.array([1, 2], np.float32))
    assert (found.max_error, found.differing, found.size) == (1.0, 1, 4)


def test_compare_says_equal_only_if_all_are():
    assert repr(compare(np.ones(3), np.ones(3))) == "Exactness(bit-identical: all 3 elements equal)"
    assert repr(compare([0.0], [-0.0])) == "Exactness(signs of zero differ: all 1 elements equal)"


def test_verdict_needs_every_element_within_its_own_bound():
    reference, bound = np.array([1.0, 1e-9]), np.array([1e-6, 1e-15])
    found = compare(reference + np.array([1e-7, 1e-16]), reference, bound)
    assert (found.verdict, found.bound) == ("rounding", 1e-6)
    assert re.fullmatch(r"Exactness\(rounding: max error 1e-07, .*, 2 of 2 differ, bound 1e-06\)", repr(found))
    assert compare(reference + np.array([0, 1e-14]), reference, bound).verdict == "different"
    assert compare(np.stack([reference, reference + np.array([0, 1e-14])]), reference, bound).verdict == "different"


def test_an_error_may_be_as_large_as_the_bound():
    assert compare([1.0 + 2**-20], [1.0], 2**-20).verdict == "rounding"


@each(
    ("value", "reference", "verdict"),
    [
        (1.0, 1.0, "bit-identical"),
        (np.inf, np.inf, "bit-identical"),
        (0.0, -0.0, "rounding"),
        (1.0, 1.0 + 2**-52, "rounding"),
        (1.0, 1.5, "different"),
        (np.inf, 1.7e308, "different"),
        (np.nan, np.nan, "different"),
        (np.nan, 1.0, "different"),
    ],
)
def test_verdicts(value, reference, verdict):
    assert compare([value], [reference], 1e-12).verdict == verdict


def test_compare_does_not_overlook_nan():
    found = compare(np.array([1.0, np.nan]), np.ones(2))
    assert math.isnan(found.max_error)
    assert "NaN" in repr(found)


@each(
    "call",
    [
        lambda: ulp_distance([1], [2]),
        lambda: ulp_distance(np.ones(2, np.float32), np.ones(2)),
        lambda: ulp_distance(np.ones(2), np.ones(3)),
        lambda: compare(np.ones(0), np.ones(0)),
        lambda: compare(np.ones(3), np.ones(3), np.ones(2)),
        lambda: compare(np.ones(3), np.ones(3), -1.0),
        lambda: compare(np.ones(3), np.ones(3), np.inf),
        lambda: compare(np.ones(3), np.ones(3), "x"),
        lambda: drift(np.ones(3)),
        lambda: drift(np.ones((0, 3))),
        lambda: drift([np.ones(2), np.ones(3)]),
        lambda: drift([np.ones(2), np.ones(2, np.float32)]),
        lambda: drift([[1, 2], [1, 2]]),
        lambda: drift(1.0),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidArgument):
        call()
