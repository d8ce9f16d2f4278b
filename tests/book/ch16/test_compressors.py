"""Compressors of a rank's vector: what they keep, and whose vector they take."""

import numpy as np
import pytest

from dpbook.book.ch16 import Drawn, Largest, Multiples
from dpbook.core import InvalidArgument
from tests.cases import each

VECTOR = np.array([3.0, -7.0, 0.0, 7.0, -1.0])


@each("k", range(7))
def test_the_largest_leave_an_error_no_other_choice_undercuts(k):
    kept = Largest(k)(VECTOR)
    assert ((kept == VECTOR) | (kept == 0)).all()
    assert np.abs(VECTOR - kept).sum() == sum(sorted(np.abs(VECTOR))[: max(0, 5 - k)])


def test_of_equal_magnitudes_the_first_is_kept():
    assert Largest(1)(VECTOR).tolist() == [0, -7, 0, 0, 0]


def test_multiples_are_the_nearest():
    assert Multiples(4)(VECTOR).tolist() == [4, -8, 0, 8, 0]


def test_what_is_drawn_differs_from_call_to_call_and_is_the_same_again_from_the_same_seed():
    first, again = Drawn(2, 0), Drawn(2, 0)
    calls = [first(VECTOR).tolist() for _ in range(8)]
    assert calls == [again(VECTOR).tolist() for _ in range(8)]
    assert len({tuple(call) for call in calls}) > 1
    assert all(number in (0, own) for call in calls for number, own in zip(call, VECTOR, strict=True))
    assert max(np.count_nonzero(call) for call in calls) == 2


@each("compress", [Largest(1), Multiples(2), Drawn(1, 0)])
def test_the_vectors_of_several_ranks_are_refused(compress):
    with pytest.raises(InvalidArgument, match="one rank's vector"):
        compress(np.stack([VECTOR, VECTOR]))
