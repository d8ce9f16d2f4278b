"""Are the parts of an update what a count of single moments says, and do waits divide as they should?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.runs.watching import PARTS, in_rounds, read_update, rounds, split

END = 30
KINDS = ("loader", "forward", "backward", "optimizer", "wait", "call")


def event(spans, marks=(), synced=(), **fields):
    """An update of ``END`` seconds; a span is (kind, begin, end)."""
    named = [(kind, begun, ended, "all_reduce", 8, None) for kind, begun, ended in spans]
    plain = {"number": 5, "own_hook": False, "examples": 4, "tokens": 0, "loaded": 0, "stepped": [0], "models": 1}
    return {
        **plain,
        "marks": [("begun", 0), *marks, ("stepped", END)],
        "spans": named,
        "synced": list(synced),
        **fields,
    }


def part_of(moment, spans, blocked):
    """The part to which a second belongs, as the module's docstring lists them."""
    inside = {kind for kind, begun, ended in spans if begun <= moment < ended}
    if "loader" in inside:
        return "loader"
    if "wait" in inside or any(begun <= moment < ended for begun, ended in blocked):
        return "blocked"
    if inside & {"forward", "backward"}:
        return "computation"
    return "optimizer" if "optimizer" in inside else "rest"


spans_of = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, END - 1), st.integers(1, 9)).map(
        lambda drawn: (drawn[0], drawn[1], min(END, drawn[1] + drawn[2]))
    ),
    max_size=12,
)


@given(st.lists(spans_of, min_size=1, max_size=4), st.integers(1, 20), st.integers(0, 5))
def test_every_moment_belongs_to_one_part(ranks, ready, later):
    """The last gradient is ready at a moment, and backward returns a while later; a wrapper averages."""
    marks = [("backward", 0), (0, ready), ("returned", ready + later)]
    updates = [read_update(event(spans, marks, [True]), len(ranks)) for spans in ranks]
    parts = split([updates])
    for rank, spans in enumerate(ranks):
        arrived = [ended for kind, begun, ended in spans if kind == "call" and begun <= ready + later]
        until = min(ready + later, max(arrived)) if arrived else ready + later
        blocked = [(ready, until)] if len(ranks) > 1 else []
        counted = [part_of(moment, spans, blocked) for moment in range(END)]
        got = {name: parts[name][0, rank] for name in PARTS}
        assert got["exposed"] + got["waiting"] == pytest.approx(counted.count("blocked"))
        for name in ("loader", "computation", "optimizer", "rest"):
            assert got[name] == pytest.approx(counted.count(name))
        assert sum(got.values()) == pytest.approx(END)
        assert min(got.values()) > -1e-9


def test_of_each_wait_the_shortest_is_communication_and_the_rest_of_it_waiting():
    ranks = [[("wait", 0, 5), ("wait", 10, 12)], [("wait", 3, 5), ("wait", 10, 16)]]
    parts = split([[read_update(event(spans), 2) for spans in ranks]])
    assert parts["exposed"].tolist() == [[4, 4]]
    assert parts["waiting"].tolist() == [[3, 4]]


def test_ranks_that_wait_a_different_number_of_times_are_compared_as_a_whole():
    ranks = [[("wait", 0, 5), ("wait", 10, 12)], [("wait", 3, 6)]]
    parts = split([[read_update(event(spans), 2) for spans in ranks]])
    assert parts["exposed"].tolist() == [[3, 3]]
    assert parts["waiting"].tolist() == [[4, 0]]


def test_communication_is_hidden_where_nothing_waits_for_it():
    marks = [("backward", 0), (0, 10), ("returned", 14)]
    one = read_update(event([("backward", 0, 14), ("call", 4, 8), ("call", 6, 13)], marks, [True]), 2)
    assert one.hidden == 6  # from 4 to 10
    assert one.blocked.tolist() == [[10, 13]]
    assert [call.averages for call in one.calls] == [True, True]


def test_a_sum_by_a_hook_of_the_script_arrives_when_backward_returns():
    marks = [("backward", 0), (0, 10), ("returned", 14)]
    one = read_update(event([("backward", 0, 14), ("call", 4, 11)], marks, [True], own_hook=True), 2)
    assert one.blocked.tolist() == [[10, 14]]


def test_a_backward_that_is_not_averaged_waits_for_nothing():
    marks = [("backward", 0), (0, 4), ("returned", 6), ("backward", 8), (0, 12), ("returned", 13)]
    one = read_update(event([("backward", 0, 6), ("backward", 8, 13)], marks, [False, True]), 2)
    assert one.blocked.tolist() == [[12, 13]]


def steps(*optimizers, first=0):
    return [event([], number=first + k, stepped=[each]) for k, each in enumerate(optimizers)]


@pytest.mark.parametrize(
    ("events", "period"),
    [
        (steps(0, 0, 0, 0), 1),
        (steps(0, 1, 0, 1, 0), 2),
        (steps(0, 0, 1, 0, 0, 1, 0), 3),
        ([*steps(0, 1, 0, 1), *steps(1, 0, 1, 0, first=101)], 2),
        (steps(0, 1, 1, 0, 1, 0, 0, 0), 0),
        (steps(0), 0),
    ],
)
def test_optimizers_in_turn_are_found_by_their_period(events, period):
    assert rounds(events) == period


def test_a_round_is_its_updates_one_after_another():
    first = event([("loader", 0, 2)], [("forward", 2)], number=4, stepped=[0], examples=3)
    second = event([("wait", 1, 4)], [("forward", 5)], number=5, stepped=[1], examples=4)
    lost = event([], number=6)
    (joined,) = in_rounds([first, second, lost], 2)
    one = read_update(joined, 2)
    assert (one.seconds, one.examples, joined["stepped"]) == (2 * END, 7, [0, 1])
    assert one.loader.tolist() == [[0, 2]]
    assert one.waits.tolist() == [[END + 1, END + 4]]
    assert [mark for mark in joined["marks"] if mark[0] == "forward"] == [("forward", 2), ("forward", END + 5)]
    np.testing.assert_equal(joined["number"], 4)
