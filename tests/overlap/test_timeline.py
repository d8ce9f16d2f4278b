"""Do a timeline's figures count spans at the same time once, and are bad spans reported?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.core.errors import InvalidArgument
from dpbook.overlap import KINDS, Span, Timeline, merge, split_waits
from tests.cases import each


def comm(start, end, rank=0, lane="communication"):
    return Span("all-reduce", rank, lane, "communication", start, end)


def comp(start, end, rank=0, lane="compute"):
    return Span("backward", rank, lane, "computation", start, end)


SPANS = (comp(0, 4), comp(1, 2), comm(3, 6), comm(5, 8, lane="communication 2"), comp(7, 9, 1), comm(6, 8, 1))
TIMELINE = Timeline(SPANS)


def test_nested_and_concurrent_spans_count_once():
    assert [TIMELINE.busy(kind, 0) for kind in ("computation", "communication", "wait")] == [4, 5, 0]
    assert (TIMELINE.exposed(0), TIMELINE.hidden(0), TIMELINE.idle(0)) == (4, 1, 5)
    assert (TIMELINE.exposed(1), TIMELINE.hidden(1), TIMELINE.idle(1)) == (1, 1, 7)
    assert (TIMELINE.overlap(0), TIMELINE.overlap(1)) == (1 / 5, 1 / 2)


def test_without_a_rank_a_figure_is_the_mean():
    assert TIMELINE.busy("communication") == 3.5
    assert TIMELINE.exposed() == 2.5
    assert TIMELINE.overlap() == 1 / 3.5


def test_only_what_lies_in_the_window_counts():
    inside = Timeline(SPANS, (3.5, 5))
    assert inside.duration == 1.5
    assert (inside.busy("computation", 0), inside.busy("communication", 0), inside.exposed(0)) == (0.5, 1.5, 1)
    assert inside.busy("computation", 1) == 0


def test_a_timeline_without_communication_overlaps_nothing():
    assert Timeline((comp(0, 1),)).overlap() == 0


def test_a_timeline_says_what_it_is():
    milli = Timeline(tuple(s._replace(start=s.start / 1000, end=s.end / 1000) for s in SPANS if s.rank == 0))
    expected = "Timeline of 8 ms, 1 rank: computation 4 ms, communication 5 ms, exposed 4 ms"
    assert repr(milli) == expected
    assert repr(Timeline((), (0, 2))) == "Timeline of 2,000 ms, no spans"


def test_one_rank_of_it_has_the_same_window_and_lanes():
    assert TIMELINE.of(1).window == TIMELINE.window == (0, 9)
    assert TIMELINE.of(1).ranks == (1,)
    assert TIMELINE.lanes(0) == ("communication", "communication 2", "compute")


def test_merging_puts_shifted_ranks_together():
    late = TIMELINE.of(1).shifted(2.0)
    both = merge([TIMELINE.of(0), late])
    assert (both.ranks, both.window) == ((0, 1), (0, 11))
    assert both.of(1).spans == late.spans
    with pytest.raises(InvalidArgument, match=r"timelines\[1\] must be without rank 0"):
        merge([TIMELINE, TIMELINE])
    with pytest.raises(InvalidArgument, match="timelines must be one or more"):
        merge([])


def test_until_the_last_rank_comes_a_collective_is_waiting():
    spans = (comm(1, 5, 0), comm(6, 8, 0), comm(3, 5, 1), comm(6, 8, 1), comp(0, 3, 1))
    apart = split_waits(Timeline(spans))
    assert [(s.kind, s.start, s.end) for s in apart.of(0).spans] == [
        ("wait", 1, 3),
        ("communication", 3, 5),
        ("communication", 6, 8),
    ]
    assert [apart.busy("wait", rank) for rank in (0, 1)] == [2, 0]
    assert apart.busy("communication") == 4
    with pytest.raises(InvalidArgument, match="equally many collectives"):
        split_waits(Timeline(spans[1:]))


moments = st.floats(-1e6, 1e6)
spans = st.builds(
    lambda name, rank, lane, kind, times: Span(name, rank, lane, kind, *sorted(times)),
    st.text(),
    st.integers(0, 5),
    st.text(),
    st.sampled_from(KINDS),
    st.tuples(moments, moments),
)
timelines = st.lists(spans, min_size=1, max_size=12).map(lambda drawn: Timeline(tuple(drawn)))


@given(timelines)
def test_exposed_and_hidden_add_up_to_communication(timeline):
    for rank in timeline.ranks:
        busy = timeline.busy("communication", rank)
        assert 0 <= timeline.exposed(rank) <= busy <= timeline.duration * (1 + 1e-12)
        assert timeline.exposed(rank) + timeline.hidden(rank) == pytest.approx(busy, rel=1e-12, abs=1e-9)


@each(
    ("call", "message"),
    [
        (lambda: Timeline(()), "window must be"),
        (lambda: Timeline((), (2, 1)), "the end not before the start"),
        (lambda: Timeline((), 3), "window must be"),
        (lambda: Timeline((1,)), r"spans\[0\] must be a Span"),
        (lambda: Timeline(3), "spans must be"),
        (lambda: Timeline((comm(2, 1),)), "time of all-reduce"),
        (lambda: Timeline((comm(0, float("inf")),)), "time of all-reduce"),
        (lambda: Timeline((comm(0, 1, -1),)), "rank of a span"),
        (lambda: TIMELINE.busy("idle"), "kind must be one of"),
        (lambda: TIMELINE.busy("wait", 2), "rank must be one of 0, 1"),
        (lambda: TIMELINE.shifted("a"), "seconds must be"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
