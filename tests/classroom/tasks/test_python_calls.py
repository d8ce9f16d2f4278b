"""Does a call that is shown make the same call again, and do rows show where two arrays differ?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpbook.classroom.tasks.plain_data import difference
from dpbook.classroom.tasks.report import MAX_CALL, rows, written
from dpbook.collectives import ring
from dpbook.overlap import Span, Tensor
from tests.cases import each

dtypes = st.sampled_from([np.int64, np.float64, np.float32, np.int32, np.bool_])
arguments = st.lists(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
        | arrays.arrays(dtypes, arrays.array_shapes(min_dims=1, max_dims=3, max_side=3)),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.integers(), inner),
        max_leaves=5,
    ),
    max_size=3,
)  # fmt: skip


@given(arguments)
def test_what_is_written_makes_the_same_call(args):
    text = written("f", args)
    if text:
        again = eval(text, {"f": lambda *given: list(given), "np": np})
        assert difference(args, again) is None


@each(
    ("args", "text"),
    [
        ((4, [1.5, 80.0], "a"), "f(4, [1.5, 80.0], 'a')"),
        ((3.18e14,), "f(3.18e+14)"),
        ((np.array([1, 2]), np.float32(0.5)), "f(np.array([1, 2]), 0.5)"),
        ((np.array([[1, 2], [3, 4]]),), "f(np.array([[1, 2],\n            [3, 4]]))"),
        (([np.zeros(1), np.ones(1)], 2), "f([np.array([0.0]),\n   np.array([1.0])],\n  2)"),
        ((np.array([1], np.float32),), "f(np.array([1.0], np.float32))"),
        ((np.zeros((4, 0)),), "f(np.zeros((4, 0)))"),
        ((Tensor("w", 4), Tensor("b", 4, "bfloat16")), "f(Tensor('w', (4,)), Tensor('b', (4,), 'bfloat16'))"),
        ((Span("s", 0, "lane", "wait", 0.0, 1.0),), "f(Span('s', 0, 'lane', 'wait', 0.0, 1.0))"),
        (([10**9] * 9,), "f([" + ", ".join(["1000000000"] * 8) + ",\n   1000000000])"),
        ((float("inf"),), "f(float('inf'))"),
    ],
)
def test_how_a_call_is_written(args, text):
    assert written("f", args) == text


@each("args", [(print,), ([ring(2)],), (list(range(MAX_CALL)),), (np.zeros(10**6),)])
def test_what_has_no_short_form_is_not_written(args):
    assert written("f", args) == ""


def test_ranks_stand_below_each_other_and_the_wrong_one_is_marked():
    expected, got = np.array([[1, 20, 3], [4, 5, 6]]), np.array([[1, 20, 3], [4, -5, 6]])
    assert rows(expected, expected != got, "rank") == "rank 0  [ 1, 20,  3]\nrank 1  [ 4,  5,  6]"
    assert rows(got, expected != got, "rank", " !").splitlines()[1] == "rank 1  [ 4, -5,  6] !"


@pytest.mark.parametrize(("row", "column"), [(0, 0), (15, 99), (7, 50)])
def test_a_large_array_is_cut_around_the_first_wrong_element(row, column):
    expected = np.zeros((16, 100))
    got = expected.copy()
    got[row, column] = 7
    lines = rows(got, got != expected, "rank", " !").splitlines()
    assert [line.startswith(f"rank {row}") and "7" in line.partition("[")[2] for line in lines].count(True) == 1
    assert len(lines) <= 10
    assert max(map(len, lines)) < 60
    assert (lines[0] == "…", lines[-1] == "…") == (row > 3, row < 12)


def test_two_dimensions_are_compared_in_rows():
    found = difference(np.zeros((2, 2)), np.eye(2), axes=("rank", "element"))
    assert found.expected == "rank 0  [0, 0]\nrank 1  [0, 0]"
    assert found.got == "rank 0  [1, 0]  ←\nrank 1  [0, 1]  ←"
