"""Do union, intersection and difference of intervals agree with those of sets of whole seconds?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.overlap.timeline.spans import difference, intersection, length, union

moment = st.integers(0, 30)
several = st.lists(st.tuples(moment, moment).map(sorted), max_size=8)


def seconds(intervals):
    """Return the whole seconds that intervals with whole bounds cover."""
    return {second for start, end in intervals for second in range(int(start), int(end))}


def is_a_set(intervals):
    bounds = intervals.ravel()
    return intervals.shape == (len(intervals), 2) and bool((np.diff(bounds) > 0).all())


@given(several)
def test_union_covers_the_same_seconds_once(a):
    assert is_a_set(union(a))
    assert seconds(union(a)) == seconds(a)
    assert length(union(a)) == len(seconds(a))


@given(several, several)
def test_intersection_and_difference_are_those_of_sets(a, b):
    for ours, theirs in [
        (intersection(union(a), union(b)), seconds(a) & seconds(b)),
        (difference(union(a), union(b)), seconds(a) - seconds(b)),
    ]:
        assert is_a_set(ours)
        assert seconds(ours) == theirs
        assert length(ours) == len(theirs)


def test_intervals_that_touch_are_one():
    assert union([[2, 3], [1, 2]]).tolist() == [[1, 3]]


@pytest.mark.parametrize("bad", [[1, 2], [[1, 2, 3]], [[2, 1]], [[0, np.inf]], [[np.nan, 1]]])
def test_what_is_no_interval_is_refused(bad):
    with pytest.raises(InvalidArgument, match="intervals must be"):
        union(bad)
