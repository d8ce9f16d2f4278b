"""Is the register of tasks sound, and are made-up faults in tasks found?"""

import subprocess
import sys

import pytest

from dpbook.classroom import Check, LocalAnswer, Task, judge, list_tasks, task
from dpbook.classroom.tasks import load_tasks
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from tests.cases import each


def run(answer, rng):
    """A check that asks nothing."""


CHECK = Check("name", 1, "why", run)


def test_tasks_come_in_the_order_of_their_numbers():
    assert [t.id for t in list_tasks(90)] == ["90.1", "90.2", "90.10"]


def test_a_chapter_has_a_sum():
    assert sum(t.points for t in list_tasks(90)) == 4 + 1 + 3


def test_a_task_names_its_cells():
    assert (task("90.10").answer_cell, task("90.10").check_cell) == ("answer-90-10", "check-90-10")


@each("id", ["90.3", "5.1", "", "ch90", None, 90.1, "../x"])
def test_an_unknown_task_lists_the_known_ones(id):
    with pytest.raises(InvalidArgument, match=r"task must be one of .*90\.1, 90\.2, 90\.10, got"):
        task(id)


@pytest.mark.parametrize("points", [0, -1, 1.5, True])
def test_points_are_positive_and_whole(points):
    with pytest.raises(InvalidArgument, match="points"):
        Check("name", points, "why", run)


@pytest.mark.parametrize(("name", "why"), [("", "why"), ("name", " ")])
def test_a_check_says_what_and_why(name, why):
    with pytest.raises(InvalidArgument, match="some text"):
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


TASK = {"id": '"00.1"', "title": '"Sum"', "answer": '"total"'}
ONE = {"name": '"sum"', "points": "1", "why": '"Because."', "run": '"sums"'}


def toml(task=TASK, *checks):
    """A ``tasks.toml`` with one task: pairs of a key and what is written behind it."""
    tables = [("[[task]]", task), *(("[[task.check]]", check) for check in checks or (ONE,))]
    return "\n".join(line for head, table in tables for line in (head, *(f"{k} = {v}" for k, v in table.items())))


def without(table, key):
    return {k: v for k, v in table.items() if k != key}


def test_a_declaration_has_every_field():
    (found,) = load_tasks.parse(toml({**TASK, "hints": '["one", "two"]'}, {**ONE, "points": "3", "seconds": "60"}), 0)
    (check,) = found.checks
    assert (found.id, found.title, found.answer, found.hints) == ("00.1", "Sum", "total", ["one", "two"])
    assert (check.name, check.points, check.why, check.seconds) == ("sum", 3, "Because.", 60)


def test_a_declared_check_judges():
    (found,) = load_tasks.parse(toml(), 0)
    assert [judge(found, LocalAnswer(answer)).points for answer in (sum, max)] == [1, 0]


FORM = "must be a table for each task, with the fields of `Task` and `Check`"


@each(
    ("text", "message"),
    [
        ("[[task]]\nid = 00.1", f"{FORM}, got .*line 2"),
        ("", "task must be given"),
        (toml().replace("[[task]]", "[task]"), f"{FORM}, got "),
        (toml({**TASK, "titel": "1"}), f"task 00.1 {FORM}, got .* argument 'titel'"),
        (toml(without(TASK, "title")), f"task 00.1 {FORM}, got .* argument: 'title'"),
        (toml(without(TASK, "id")), f"task Sum {FORM}, got .* argument: 'id'"),
        (toml({**TASK, "title": "1"}), "task 00.1: title must be some text, got 1"),
        (toml({**TASK, "answer": "'a b'"}), "task 00.1: answer must be a name in Python, got 'a b'"),
        (toml({**TASK, "hints": "'one'"}), "task 00.1: hints must be a list of sentences, got 'one'"),
        (toml({**TASK, "hints": "['one', 2]"}), "task 00.1: hints must be some text, got 2"),
        (toml({**TASK, "id": "'1'"}), "task 1: id must be two digits of the chapter, a dot and a number"),
        (toml({**TASK, "id": "'01.1'"}), "id must be one that begins with 00 and that no other task has, got '01.1'"),
        (toml() + "\n" + toml(), "id must be one that begins with 00 and that no other task has, got '00.1'"),
        (toml(TASK, ONE, ONE), "task 00.1: checks must be one or more, each with a name of its own"),
        (toml({**TASK, "check": "[]"}).split("[[task.check]]")[0], "task 00.1: checks must be one or more"),
        (toml({**TASK, "check": "[1]"}).split("[[task.check]]")[0], f"task 00.1 {FORM}, got "),
        (toml(TASK, without(ONE, "run")), "task 00.1: check 'sum': run must be given"),
        (toml(TASK, {**ONE, "worth": "1"}), f"task 00.1: check 'sum' {FORM}, got .* argument 'worth'"),
        (toml(TASK, {**ONE, "points": "0"}), "task 00.1: check 'sum': points must be an integer of at least 1, got 0"),
        (toml(TASK, {**ONE, "why": "' '"}), "task 00.1: check 'sum': why must be some text, got ' '"),
        (
            toml(TASK, {**ONE, "seconds": "'60'"}),
            "task 00.1: check 'sum': seconds must be a finite number above 0, got '60'",
        ),
    ],
)
def test_what_is_wrong_in_a_declaration_is_named(text, message):
    with pytest.raises(InvalidArgument, match=rf"^ch00/tasks\.toml:? {message}"):
        load_tasks.parse(text, 0)


@pytest.mark.parametrize("name", ['"no_such"', '"__name__"', "1"])
def test_a_function_that_is_none_is_reported_before_an_answer_is_judged(name, monkeypatch):
    (found,) = load_tasks.parse(toml(TASK, {**ONE, "run": name}), 0)
    monkeypatch.setitem(load_tasks._registered, "00.1", found)
    place, module = r"ch00/tasks\.toml: task 00\.1: check 'sum'", r"dpbook\.book\.ch00\.judge"
    with pytest.raises(InvalidArgument, match=rf"^{place}: run must be the name of a function in {module}, got "):
        task("00.1")


def test_the_tasks_of_the_book_load():
    assert len({task(t.id).id for t in list_tasks()}) == len(list_tasks()) > 3  # three are made up


def test_grading_is_a_light_import_and_lists_tasks_without_their_checks():
    heavy = "{'torch', 'matplotlib', 'IPython', 'nbformat'}"
    code = "import sys, dpbook.classroom; assert dpbook.classroom.list_tasks()"
    code += f"; print(*sorted({heavy} & set(sys.modules)))"
    code += "; print(*(name for name in sys.modules if name.endswith('.judge')))"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == []
