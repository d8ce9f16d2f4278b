"""What do the records of three ranks say: who is behind, who left a call out, and what is no fault at all?"""

import json

import pytest

from dpbook.ranks.failure_files import CALLS
from dpbook.runs.postmortem.collective_calls import read

BACKWARD = {
    "op": "all_reduce",
    "sizes": [[10]],
    "where": "backward, line 5 of step",
    "path": [["a.py", "main", 12], ["a.py", "step", 5]],
}
SUM = {"op": "all_reduce", "sizes": [[3]], "where": "all_reduce, line 14 of main", "path": [["a.py", "main", 14]]}
END = {"op": "barrier", "sizes": [], "dtypes": [], "where": "barrier, line 20 of main", "path": [["a.py", "main", 20]]}
START = {"op": "broadcast", "sizes": [[10]], "where": "broadcast, line 11 of main", "path": [["a.py", "main", 11]]}
ALL, PAIR = {"0": [0, 1, 2]}, {"0": [0, 1, 2], "1": [0, 1]}


@pytest.fixture
def records(tmp_path):
    def write(*ranks, groups=ALL):
        """The records of ranks that have made these calls."""
        for rank, calls in enumerate(ranks):
            numbers = dict.fromkeys(groups, 0)
            told = []
            for call in calls:
                name = call.get("group", "0")
                numbers[name] += 1
                common = {"backend": "gloo", "group": name, "number": numbers[name], "dtypes": ["Float"], "ended": True}
                told.append(common | call)
            mine = {name: ranks for name, ranks in groups.items() if rank in ranks}
            (tmp_path / CALLS.format(rank)).write_text(json.dumps({"groups": mine, "calls": told}))
        return read(tmp_path, 3)

    return write


def skipped(found):
    return {rank: (call.what, call.place) for rank, call in found.skipped.items()}


def test_equal_calls_do_not_differ_though_one_rank_is_behind(records):
    assert records([START, SUM, END], [START, SUM, END], [START]).difference() is None


def test_the_first_difference_is_told_with_what_each_called(records):
    other = SUM | {"dtypes": ["Double"], "sizes": [[2, 3]]}
    found = records([START, SUM, END], [START, other], [START, SUM]).difference()
    assert (found.number, found.skipped) == (2, {})
    assert [call.payload for call in found.calls.values()] == ["3 × float32", "(2, 3) × float64", "3 × float32"]


def test_sizes_that_differ_do_no_harm_where_all_went_on(records):
    other = SUM | {"sizes": [[5]]}
    assert records([SUM, END], [other, END], [SUM, END]).difference() is None
    assert records([SUM, END], [other], [SUM, END]).difference().number == 1
    assert records([SUM, END], [other | {"ended": False}, END], [SUM, END]).difference().number == 1


def test_where_ranks_may_send_what_they_like_sizes_do_not_count(records):
    uneven = [SUM | {"op": "gather", "sizes": [[size]]} for size in (1, 2, 3)]
    assert records(*([call] for call in uneven)).difference() is None


def test_who_has_gone_past_the_line_left_the_call_out(records):
    found = records([START, SUM], [START, END], [START, SUM]).difference()
    assert skipped(found) == {1: ("all_reduce of 3 × float32", ", line 14 of main")}


def test_who_is_back_at_the_begin_of_a_loop_left_out_what_always_came_between(records):
    begun = [START, BACKWARD, SUM, BACKWARD, SUM, BACKWARD]
    found = records([*begun, SUM], [*begun, BACKWARD], [*begun, SUM]).difference()
    assert skipped(found) == {1: ("all_reduce of 3 × float32", ", line 14 of main")}
    steps = [START, BACKWARD, BACKWARD, SUM, BACKWARD, BACKWARD, SUM, BACKWARD]
    found = records([*steps, BACKWARD], [*steps, SUM], [*steps, BACKWARD]).difference()
    assert skipped(found) == {1: ("all_reduce of 10 × float32", " in backward, line 5 of step")}


def test_a_call_that_has_never_been_made_before_may_be_one_too_many_so_nobody_left_one_out(records):
    begun = [START, BACKWARD, BACKWARD, BACKWARD]
    assert records([*begun, BACKWARD], [*begun, END], [*begun, BACKWARD]).difference().skipped == {}


def test_a_call_of_one_of_three_may_be_one_too_many_though_the_others_are_past_its_line(records):
    assert records([START, END], [START, SUM], [START, END]).difference().skipped == {}


def test_of_two_that_wait_for_each_other_in_two_groups_one_has_passed_the_line_of_the_others_call(records):
    found = records([SUM | {"group": "1"}], [END], [END], groups=PAIR)
    wheres = enumerate([SUM["where"], END["where"], END["where"]])
    passed = [found.passed(rank, found.awaited(rank, {0, 1, 2} - {rank}), where) for rank, where in wheres]
    assert passed == [False, True, False]


def test_of_the_calls_to_which_a_rank_has_not_come_that_of_the_smallest_group_is_told(records):
    found = records([SUM | {"group": "1"}], [], [END], groups=PAIR)
    key, call = found.awaited(1, [0, 2])
    assert (found.group(key), call.number, call.what) == (" of the group of ranks 0, 1", 1, "all_reduce of 3 × float32")
    assert found.awaited(1, [2])[1].what == "barrier"
    assert found.awaited(0, [1]) is None


def test_a_rank_that_has_destroyed_its_groups_is_compared_all_the_same(records, tmp_path):
    records([SUM, END], [SUM], [SUM])
    path = tmp_path / CALLS.format(1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"groups": {}}))
    key, call = read(tmp_path, 3).awaited(1, [0])
    assert (key[1], call.what) == ((0, 1, 2), "barrier")


def test_without_records_nothing_is_known(tmp_path):
    found = read(tmp_path, 3)
    assert found.difference() is None
    assert found.awaited(1, [0]) is None
    assert not found.pending(0)
