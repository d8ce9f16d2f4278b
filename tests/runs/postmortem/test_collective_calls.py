"""Do the records of three ranks show which rank is behind, which one skipped a call, and what is not a fault?"""

import json

import pytest

from dpbook.ranks.failure_files import CALLS_FILE
from dpbook.runs.postmortem.collective_calls import read_calls

BACKWARD = {
    "op": "all_reduce",
    "sizes": [[10]],
    "call_site": "backward, a.py:5 in step",
    "frames": [["a.py", "main", 12], ["a.py", "step", 5]],
}
SUM = {"op": "all_reduce", "sizes": [[3]], "call_site": "all_reduce, a.py:14 in main", "frames": [["a.py", "main", 14]]}
END = {
    "op": "barrier",
    "sizes": [],
    "dtypes": [],
    "call_site": "barrier, a.py:20 in main",
    "frames": [["a.py", "main", 20]],
}
START = {
    "op": "broadcast",
    "sizes": [[10]],
    "call_site": "broadcast, a.py:11 in main",
    "frames": [["a.py", "main", 11]],
}
ALL, PAIR = {"0": [0, 1, 2]}, {"0": [0, 1, 2], "1": [0, 1]}


@pytest.fixture
def records(tmp_path):
    def write(*ranks, groups=ALL):
        """Return the records of ranks that have made these calls."""
        for rank, calls in enumerate(ranks):
            numbers = dict.fromkeys(groups, 0)
            entries = []
            for call in calls:
                name = call.get("group", "0")
                numbers[name] += 1
                common = {
                    "backend": "gloo",
                    "group": name,
                    "number": numbers[name],
                    "dtypes": ["Float"],
                    "completed": True,
                }
                entries.append(common | call)
            mine = {name: ranks for name, ranks in groups.items() if rank in ranks}
            (tmp_path / CALLS_FILE.format(rank)).write_text(json.dumps({"groups": mine, "calls": entries}))
        return read_calls(tmp_path, 3)

    return write


def skipped(mismatch):
    return {rank: (call.description, call.location) for rank, call in mismatch.skipped.items()}


def test_equal_calls_do_not_differ_though_one_rank_is_behind(records):
    assert records([START, SUM, END], [START, SUM, END], [START]).first_mismatch() is None


def test_the_first_mismatch_has_the_call_of_each_rank(records):
    other = SUM | {"dtypes": ["Double"], "sizes": [[2, 3]]}
    mismatch = records([START, SUM, END], [START, other], [START, SUM]).first_mismatch()
    assert ({call.number for call in mismatch.calls.values()}, mismatch.skipped) == ({2}, {})
    assert [call.payload for call in mismatch.calls.values()] == ["3 × float32", "(2, 3) × float64", "3 × float32"]


def test_sizes_that_differ_do_no_harm_if_all_ranks_went_on(records):
    other = SUM | {"sizes": [[5]]}
    assert records([SUM, END], [other, END], [SUM, END]).first_mismatch() is None
    assert records([SUM, END], [other], [SUM, END]).first_mismatch().calls[0].number == 1
    assert records([SUM, END], [other | {"completed": False}, END], [SUM, END]).first_mismatch().calls[0].number == 1


def test_sizes_may_differ_in_a_collective_that_allows_it(records):
    uneven = [SUM | {"op": "gather", "sizes": [[size]]} for size in (1, 2, 3)]
    assert records(*([call] for call in uneven)).first_mismatch() is None


def test_a_rank_that_is_past_the_line_of_a_call_skipped_it(records):
    mismatch = records([START, SUM], [START, END], [START, SUM]).first_mismatch()
    assert skipped(mismatch) == {1: ("all_reduce of 3 × float32", ", a.py:14 in main")}


def test_a_rank_that_is_back_at_the_begin_of_a_loop_skipped_the_call_that_always_came_between(records):
    begun = [START, BACKWARD, SUM, BACKWARD, SUM, BACKWARD]
    mismatch = records([*begun, SUM], [*begun, BACKWARD], [*begun, SUM]).first_mismatch()
    assert skipped(mismatch) == {1: ("all_reduce of 3 × float32", ", a.py:14 in main")}
    steps = [START, BACKWARD, BACKWARD, SUM, BACKWARD, BACKWARD, SUM, BACKWARD]
    mismatch = records([*steps, BACKWARD], [*steps, SUM], [*steps, BACKWARD]).first_mismatch()
    assert skipped(mismatch) == {1: ("all_reduce of 10 × float32", " in backward, a.py:5 in step")}


def test_a_call_that_was_never_made_before_may_be_one_too_many_so_no_rank_skipped_one(records):
    begun = [START, BACKWARD, BACKWARD, BACKWARD]
    assert records([*begun, BACKWARD], [*begun, END], [*begun, BACKWARD]).first_mismatch().skipped == {}


def test_a_call_of_one_of_three_may_be_one_too_many_though_the_others_are_past_its_line(records):
    assert records([START, END], [START, SUM], [START, END]).first_mismatch().skipped == {}


def test_of_two_ranks_that_wait_for_each_other_in_two_groups_one_is_past_the_line_of_the_others_call(records):
    calls = records([SUM | {"group": "1"}], [END], [END], groups=PAIR)
    sites = enumerate([SUM["call_site"], END["call_site"], END["call_site"]])
    passed = [calls.is_past(rank, calls.missed_call(rank, {0, 1, 2} - {rank}), site) for rank, site in sites]
    assert passed == [False, True, False]


def test_of_the_calls_that_a_rank_missed_that_of_the_smallest_group_is_returned(records):
    calls = records([SUM | {"group": "1"}], [], [END], groups=PAIR)
    call = calls.missed_call(1, [0, 2])
    assert calls.group_suffix(call.group) == " of the group of ranks 0, 1"
    assert (call.number, call.description) == (1, "all_reduce of 3 × float32")
    assert calls.missed_call(1, [2]).description == "barrier"
    assert calls.missed_call(0, [1]) is None


def test_a_rank_that_has_destroyed_its_groups_is_compared_too(records, tmp_path):
    records([SUM, END], [SUM], [SUM])
    path = tmp_path / CALLS_FILE.format(1)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"groups": {}}))
    call = read_calls(tmp_path, 3).missed_call(1, [0])
    assert (call.group[1], call.description) == ((0, 1, 2), "barrier")


def test_without_records_nothing_is_known(tmp_path):
    calls = read_calls(tmp_path, 3)
    assert calls.first_mismatch() is None
    assert calls.missed_call(1, [0]) is None
    assert not calls.ranks
