"""Is plain data plain, and does a comparison find exactly the first difference?"""

from collections import namedtuple
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpbook.classroom.tasks.answer import Wrong
from dpbook.classroom.tasks.expectations import expect_close, expect_equal, expect_items, expect_number
from dpbook.classroom.tasks.plain_data import NotPlain, difference, plain
from dpbook.classroom.tasks.report import describe
from dpbook.collectives import ALGORITHMS, Schedule, to_json
from tests.cases import each

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
data = st.recursive(
    scalars | arrays.arrays(arrays.scalar_dtypes().filter(lambda d: d.kind in "biuf"), arrays.array_shapes()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(data)
def test_plain_data_stays_as_it_is(value):
    assert difference(value, plain(value)) is None


@given(data)
def test_plain_arrays_are_copies(value):
    if isinstance(value, np.ndarray):
        assert not np.shares_memory(plain(value), value)


@given(data)
def test_every_value_can_be_described_in_one_short_line(value):
    text = describe(value)
    assert "\n" not in text
    assert len(text) < 1000


class Colour(IntEnum):
    RED = 3


Pair = namedtuple("Pair", "a b")


@each(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array(7), 7),
        (Colour.RED, 3),
        (Pair(1, 2), (1, 2)),
        (np.ma.masked_array([1, 2]), np.array([1, 2])),
        (type("S", (str,), {})("text"), "text"),
        ({1, 2}, {1, 2}),
        ({"a": np.int64(1)}, {"a": 1}),
    ],
)
def test_subclasses_become_their_base(value, expected):
    got = plain(value)
    assert type(got) is type(expected)
    assert difference(expected, got) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([object()]), "an array of dtype object"),
        (iter([]), "a list_iterator"),
        (print, "a builtin_function_or_method"),
        (NotPlain("x"), "a NotPlain"),
        ([[print]], "a builtin_function_or_method"),
    ],
)
def test_other_kinds_are_named(value, message):
    with pytest.raises(NotPlain, match=message):
        plain(value)


def test_a_list_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NotPlain, match="nested"):
        plain(value)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_schedule_survives(name):
    schedule = ALGORITHMS[name](4)
    got = plain(schedule)
    assert type(got) is Schedule
    assert to_json(got) == to_json(schedule)


@given(arrays.arrays(np.float64, arrays.array_shapes(min_dims=1, max_dims=3), elements=st.floats(-1e6, 1e6)), st.data())
def test_the_first_wrong_element_is_found(expected, choice):
    index = tuple(choice.draw(st.integers(0, n - 1)) for n in expected.shape)
    got = expected.copy()
    got[index] += 1
    axes = [f"axis{k}" for k in range(expected.ndim)]
    found = difference(expected, got, axes=axes)
    assert found.where.startswith(", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True)) + ": ")
    assert found.where.endswith(f"1 of {expected.size} elements are wrong")


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_bound_is_a_bound(error, bound):
    expected, got = np.zeros(1), np.array([error])
    assert (difference(expected, got, bound) is None) == (error <= bound)
    assert (difference(0.0, error, bound) is None) == (error <= bound)


NAN, INF = float("nan"), float("inf")


@each(
    ("expected", "got", "bound", "agrees"),
    [
        (NAN, NAN, None, True),
        (NAN, NAN, 1, False),
        (0.0, NAN, 1e300, False),
        (INF, INF, 1, True),
        (INF, -INF, 1, False),
        (0.0, -0.0, None, True),
    ],
)
@each("wrap", [float, lambda x: np.array([x, 0.0])])
def test_nan_and_infinity(wrap, expected, got, bound, agrees):
    assert (difference(wrap(expected), wrap(got), bound) is None) == agrees


@each(
    ("expected", "got"),
    [
        (1, True),
        (True, 1),
        (1, "1"),
        ("a", b"a"),
        (None, 0),
        ([1, 2], [1]),
        ([1, 2], [1, 3]),
        ([1, [2]], [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({1}, {2}),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros(3), [0.0, 0.0, 0.0]),
        (2**63, float(2**63) * 2),
        (np.array([2**60]), np.array([2**60 + 1])),
    ],
)
def test_what_is_not_the_same(expected, got):
    assert difference(expected, got) is not None


@pytest.mark.parametrize(
    ("expected", "got"), [(6, 6.0), ([1, 2], (1, 2)), ([0, 3], np.array([0, 3])), ((1, (2, 3)), [1, [2, 3]])]
)
def test_what_is_the_same_in_another_form(expected, got):
    assert difference(expected, got) is None


def test_a_place_in_nested_data_is_named():
    found = difference({"a": [1, np.zeros(3)]}, {"a": [1, np.array([0, 0, 1.0])]})
    assert found.where.startswith("'a', item 1, element 2: 0.0 expected, 1.0 got")


def test_a_numpy_scalar_that_is_expected_is_a_plain_number():
    """An answer's result arrives as plain data: a judge that computes with NumPy must not ask for NumPy's type."""
    expect_close(np.float64(0.5), 0.5, 1e-9)
    expect_equal(np.int64(3), 3)
    with pytest.raises(Wrong):
        expect_equal(np.int64(3), 4)


@pytest.mark.parametrize("got", [(1, 2), [1, 2]])
def test_two_items_are_a_pair(got):
    assert expect_items(got, 2, "a pair") is got


@pytest.mark.parametrize(
    ("got", "described"),
    [((1,), "a tuple of 1: (1)"), ([1, 2, 3], "a list of 3: [1, 2, 3]"), ("ab", "a str, 'ab'"), (None, "None")],
)
def test_what_is_no_pair_is_described(got, described):
    with pytest.raises(Wrong) as wrong:
        expect_items(got, 2, "a pair", "world 2")
    assert (wrong.value.expected, wrong.value.got, wrong.value.where) == ("a pair", described, "world 2")


def test_what_has_another_form_is_one_cause_wherever_it_is_met():
    causes = set()
    for got, where in (((1,), "world 1"), ([1, 2, 3], "world 2")):
        with pytest.raises(Wrong) as wrong:
            expect_items(got, 2, "a pair", where)
        causes.add(wrong.value.cause)
    assert causes == {"not a pair"}


@pytest.mark.parametrize("got", ["3", None, [3], np.zeros(1), 1j])
def test_what_is_no_number_fails(got):
    with pytest.raises(Wrong, match="one number"):
        expect_number(got)


def test_a_number_comes_as_a_float():
    assert [type(expect_number(got)) for got in (3, 2.5)] == [float, float]
