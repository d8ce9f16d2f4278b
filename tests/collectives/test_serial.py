"""Does a schedule survive being written down, and is anything else refused with its name?"""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import (
    FixedBounds,
    Schedule,
    from_json,
    hierarchical_ring,
    record,
    reduce_scatter,
    ring,
    simulate,
    to_json,
    verify,
)
from dpbook.core.errors import DpbookError, InvalidArgument, ScheduleError
from tests.cases import each
from tests.collectives.oracles import (
    ALL_SCHEDULES,
    collective_schedules,
    integers,
    legal_schedules,
    torch_reduce_scatter,
)


def same(a, b):
    fields = ("world", "n_chunks", "bounds", "before", "after", "name")
    return all(getattr(a, f) == getattr(b, f) for f in fields) and [list(r) for r in a.rounds] == [
        list(r) for r in b.rounds
    ]


def lopsided(comm, x):
    """A rank program whose chunks are not even."""
    if comm.rank == 0:
        comm.recv(x[:2], 1, op="sum")
    elif comm.rank == 1:
        comm.send(x[:2], 0)


@each(("world", "name"), [(w, n) for w, n in ALL_SCHEDULES if w in (1, 2, 5, 8)])
def test_every_schedule_survives(world, name):
    schedule = collective_schedules(world)[name]
    assert same(from_json(to_json(schedule)), schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        hierarchical_ring(2, 3),
        reduce_scatter(4).then(Schedule(4, 4, [], before=reduce_scatter(4).after, after=reduce_scatter(4).after)),
        torch_reduce_scatter(5),
        record(lopsided, 3, 7, after=({0: frozenset({0, 1})}, {})),
        Schedule(2, 3, [], FixedBounds((0, 0, 4, 9)), after=({}, {1: frozenset()}, {0: frozenset({1})})),
    ],
    ids=["composed", "followed", "relabelled", "recorded", "of odd placements"],
)
def test_composed_and_recorded_schedules_survive(schedule):
    assert same(from_json(to_json(schedule)), schedule)


@given(legal_schedules())
def test_any_schedule_survives(schedule):
    assert same(from_json(to_json(schedule)), schedule)


def test_what_was_read_verifies_and_simulates():
    read = from_json(to_json(ring(4)))
    assert verify(read)
    assert simulate(read, integers(4, 9)).buffers.tolist() == simulate(ring(4), integers(4, 9)).buffers.tolist()


def test_the_text_is_json_with_a_format_and_a_version():
    data = json.loads(to_json(ring(2)))
    assert (data["format"], data["version"]) == ("dpbook.schedule", 1)


def test_bounds_of_integers_of_numpy_are_written_as_numbers():
    schedule = Schedule(2, 2, [], FixedBounds(tuple(np.array([0, 1, 3]))))
    assert json.loads(to_json(schedule))["bounds"]["offsets"] == [0, 1, 3]


def test_bounds_of_an_unknown_rule_are_refused():
    class Foreign:
        n_chunks = 1

        def __call__(self, size, itemsize):
            return np.array([0, size])

    with pytest.raises(InvalidArgument, match="EvenSplit, FixedBounds or GlooBounds"):
        to_json(Schedule(1, 1, [], Foreign()))


def test_an_illegal_schedule_is_not_written():
    with pytest.raises(ScheduleError, match="round 1"):
        to_json(Schedule(2, 1, [next(iter(ring(4).rounds))]))


# What is refused

GOOD = json.loads(to_json(ring(2)))


def wrong(path, value):
    """The good data with the value at ``path`` replaced."""
    data = copy.deepcopy(GOOD)
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(data)


@each("text", ["", "{", "[1, 2]", "null", "7", '"ring"', "{}", to_json(ring(2))[:-1]])
def test_what_is_no_schedule_is_refused(text):
    with pytest.raises(InvalidArgument, match=r"^text must be"):
        from_json(text)


@pytest.mark.parametrize(("key", "value"), [("format", "other"), ("version", 2), ("version", None), ("version", "1")])
def test_another_format_or_version_is_refused_by_name(key, value):
    with pytest.raises(InvalidArgument, match=rf"format 'dpbook.schedule', version 1.*{value!r}"):
        from_json(wrong([key], value))


@each("key", [key for key in GOOD if key not in ("format", "version")])
def test_a_missing_field_is_refused_by_name(key):
    data = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(InvalidArgument, match=key):
        from_json(json.dumps(data))


@each(
    ("path", "value"),
    [
        (["world"], 0),
        (["world"], 2.0),
        (["world"], "2"),
        (["world"], True),
        (["n_chunks"], 3),
        (["n_chunks"], None),
        (["bounds", "rule"], "odd"),
        (["bounds"], {"rule": "fixed", "offsets": [0, 1.5, 2]}),
        (["bounds"], {"rule": "fixed", "offsets": "012"}),
        (["before"], ["partial"]),
        (["before"], ["partial", "elsewhere"]),
        (["before"], ["partial", {"0": "01"}]),
        (["before"], ["partial", {"0": [0.5]}]),
        (["before"], ["partial", {"zero": [0]}]),
        (["before"], ["partial", {"2": [0]}]),
        (["after"], ["complete", {"0": [2]}]),
        (["after"], 5),
        (["rounds"], 5),
        (["rounds", 0], []),
        (["rounds", 0, "source"], [0]),
        (["rounds", 0, "source"], [0, 2]),
        (["rounds", 0, "source"], [0, 0.5]),
        (["rounds", 0, "source"], [[0, 1]]),
        (["rounds", 0, "source"], [[0], [1, 2]]),
        (["rounds", 0, "source"], [0, 2**70]),
        (["rounds", 0, "dest"], [0, 1]),
        (["rounds", 0, "chunk"], ["a", "b"]),
        (["rounds", 0, "reduce"], None),
        (["rounds", 0, "reduce"], "yes"),
        (["rounds", 0, "reduce"], [0, 1]),
        (["rounds", 0, "reduce"], [True, True, True]),
    ],
)
def test_a_wrong_value_is_refused(path, value):
    with pytest.raises(DpbookError):
        from_json(wrong(path, value))


def paths(data, here=()):
    yield from [here] if here else []
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from paths(value, (*here, key))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(path=st.sampled_from(list(paths(GOOD))), value=JSON)
def test_any_damage_is_refused_or_leaves_a_legal_schedule(path, value):
    """Whatever stands in place of a value: an error of dpbook, or a schedule that can be written and read again."""
    try:
        schedule = from_json(wrong(list(path), value))
    except DpbookError:
        return
    assert same(from_json(to_json(schedule)), schedule)
