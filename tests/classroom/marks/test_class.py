"""A class hands in the whole book: one command gives all what they have earned, in its memory, and leaves nothing."""

import pytest

from dpbook.classroom import list_tasks
from tests.classroom.school_class import classroom, graded

pytestmark = [pytest.mark.proof, pytest.mark.processes, pytest.mark.timeout(1800)]

WHOLE = {"perfect": 1, "partial": 1}
"""Of the whole book. A hundred are graded by tests/benchmarks/bench_grade.py."""
SHORT, CHAPTERS = {"stub": 1, "hostile": 2, "broken": 5}, (1, 11)
"""Of two exercises, one of which needs torch."""
ALONE = ("hostile01", "broken02", "partial00")
"""Graded again, one by one and in this order, by one judge."""
SEED = 7
GB = 10**9
TRAVELS_HERE = {"10.4"}
"""Has a mistake that only processes started from a notebook can show."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("class")


@pytest.fixture(scope="module")
def submissions(place):
    return classroom(place / "class", WHOLE) + classroom(place / "class", SHORT, CHAPTERS)


@pytest.fixture(scope="module")
def run(place, submissions):
    (place / "temporary").mkdir()
    return graded([place / "class"], SEED, 2, place / "temporary")


def test_each_task_gets_what_it_has_earned(run, submissions):
    for submission in submissions:
        earned = run.points[submission.name]
        match submission.kind:
            case "perfect" | "partial" | "stub":
                full = {task for task, (points, possible) in earned.items() if points == possible}
                right = {task for task, given in submission.given.items() if given == "right"}
                assert full - TRAVELS_HERE == right - TRAVELS_HERE, submission.name
                none = earned.keys() - submission.given.keys()
                assert sum(earned[task][0] for task in none) == 0, submission.name
            case "hostile":
                assert sum(points for points, _ in earned.values()) == 0, submission.name


def test_of_broken_notebooks_all_that_can_be_found_is_graded_and_the_rest_is_reported(run):
    broken = [each for each in run.marks["submissions"] if each["name"].startswith("broken")]
    full = sum(task.points for chapter in CHAPTERS for task in list_tasks(chapter))
    assert [each["points"] for each in broken] == [0, 0, full, full, 0]
    remarks = [" ".join(e["remarks"]) + " ".join(r for t in e["tasks"] for r in (t["reason"], *t["remarks"]))
            for each in broken for e in each["exercises"][:1]]  # fmt: skip
    for text, words in zip(remarks, ["SyntaxError", "old format", "another cell that", "2 cells", "not a notebook"],
                           strict=True):  # fmt: skip
        assert words in text


def test_marks_are_those_of_each_graded_alone(run, place, submissions):
    for name in ALONE:
        temporary = place / f"temporary {name}"
        temporary.mkdir()
        alone = graded([place / "class" / name], SEED, 1, temporary)
        assert alone.points == {name: run.points[name]}


def test_two_gigabytes_are_enough_and_nothing_is_left(run, place):
    assert 0.1 * GB < run.memory < 2 * GB
    assert run.leftover == set()
    assert [path.name for path in (place / "temporary").iterdir()] == ["marks.json"]
