"""Is the register of tasks sound, and are made-up faults in tasks found?"""

import subprocess
import sys

import pytest

from dpbook import book
from dpbook.errors import InvalidArgument
from dpbook.grading import Check, Task, register, task, tasks


def run(answer, rng):
    """A check that asks nothing."""


CHECK = Check("name", 1, "why", run)


def test_tasks_come_in_the_order_of_their_numbers():
    assert [t.id for t in tasks(90)] == ["90.1", "90.2", "90.10"]


def test_a_chapter_has_a_sum():
    assert sum(t.points for t in tasks(90)) == 4 + 1 + 3


def test_a_task_names_its_cells():
    assert (task("90.10").answer_cell, task("90.10").check_cell) == ("answer-90-10", "check-90-10")


@pytest.mark.parametrize("id", ["90.3", "5.1", "", "ch90", None, 90.1, "../x"])
def test_an_unknown_task_lists_the_known_ones(id):
    with pytest.raises(InvalidArgument, match=r"task must be one of .*90\.1, 90\.2, 90\.10, got"):
        task(id)


def test_an_id_is_taken_once():
    with pytest.raises(InvalidArgument, match=r"id must be an id that no other task has, got '90\.1'"):
        register(task("90.1"))


@pytest.mark.parametrize("points", [0, -1, 1.5, True])
def test_points_are_positive_and_whole(points):
    with pytest.raises(InvalidArgument, match="points"):
        Check("name", points, "why", run)


@pytest.mark.parametrize(("name", "why"), [("", "why"), ("name", " ")])
def test_a_check_says_what_and_why(name, why):
    with pytest.raises(InvalidArgument, match="a sentence"):
        Check(name, 1, why, run)


@pytest.mark.parametrize(
    ("id", "answer", "checks"),
    [
        ("1.1", "name", [CHECK]),
        ("01.0", "name", [CHECK]),
        ("01.1", "no name", [CHECK]),
        ("01.1", "name", []),
        ("01.1", "name", [CHECK, CHECK]),
    ],
)
def test_a_task_is_well_formed(id, answer, checks):
    with pytest.raises(InvalidArgument):
        Task(id, "title", answer, checks)


def test_the_tasks_of_the_book_load():
    assert all(t.id in {known.id for known in tasks(t.chapter)} for t in tasks())


def test_grading_is_a_light_import():
    heavy = "{'torch', 'matplotlib', 'ipywidgets', 'IPython', 'nbformat'}"
    code = f"import sys, dpbook.grading; print(*sorted({heavy} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], cwd=book.root(), capture_output=True, text=True, check=True)
    assert child.stdout.split() == []
