"""Is a released notebook whole again, whatever became of it, and does each check cell say what its answer earned?"""

import json

import pytest

from dpbook.classroom.marks import ExerciseMarks, TaskMarks, answered, exercise_named, read_exercise, reported
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import DpbookError
from tests.cases import each
from tests.classroom.submissions import cell, exercise, hand_in

STUB = "YOUR ANSWER HERE"
MINE = {"2": "def step(params, gradient, x, y, lr):\n    return params", "4": "shows = {}"}


def text(nb, id):
    return "".join(cell(nb, id)["source"])


def without_everything(nb):
    nb["cells"] = []


def with_metadata_of_any_kind(nb):
    for number, each_cell in enumerate(nb["cells"]):
        each_cell["metadata"]["nbgrader"] = [None, 3, {"schema_version": 99}, {"grade": "yes"}][number % 4]


def doubled(nb):
    nb["cells"] += json.loads(json.dumps(nb["cells"]))


def without_checks(nb):
    nb["cells"] = [each_cell for each_cell in nb["cells"] if not each_cell["id"].startswith("check-")]


@each(
    ["change", "expected"],
    [
        (lambda nb: None, True),
        (without_everything, False),
        (with_metadata_of_any_kind, True),
        (doubled, True),
        (without_checks, True),
    ],
)
def test_only_answers_are_taken_over(change, expected, tmp_path):
    handed = hand_in(tmp_path / "01_x.ipynb", 1, MINE, change=change)
    released, whole = exercise(1), answered(exercise(1), read_exercise(handed))
    assert [c["id"] for c in whole["cells"]] == [c["id"] for c in released["cells"]]
    assert [c["metadata"] for c in whole["cells"]] == [c["metadata"] for c in released["cells"]]
    given = {f"answer-{number}": source for number, source in MINE.items()} if expected else {}
    expected = {c["id"]: given.get(c["id"], text(released, c["id"])) for c in released["cells"]}
    assert {c["id"]: text(whole, c["id"]) for c in whole["cells"]} == expected
    assert not any(c.get("outputs") for c in whole["cells"])


def test_what_cannot_be_read_leaves_the_stubs():
    assert text(answered(exercise(1), None), "answer-4") == text(exercise(1), "answer-4")


@each(
    ["written", "expected"],
    [("Because.", "Because."), ("YOUR ANSWER HERE", "YOUR ANSWER HERE"), ("", "YOUR ANSWER HERE")],
)
def test_an_argument_in_words_is_taken_over(written, expected, tmp_path):
    def write(nb):
        cell(nb, "words-02-1")["source"] = written

    handed = hand_in(tmp_path / "02_x.ipynb", 2, {}, change=write)
    assert text(answered(exercise(2), read_exercise(handed)), "words-02-1") == expected


def marks(chapter=1, points=2):
    cases = (Case("a", 2, points >= 2), Case("b", 2, points == 4, expected="4 < 5", got="<script>", why="that is why"))
    step = TaskMarks("01.2", "Write the step", 4, Report("01.2", "Write the step", cases), ("a <b> remark",))
    return ExerciseMarks("01.ipynb", chapter, (step,), ("another edition",))


def output(nb, id):
    (expected,) = cell(nb, id)["outputs"]
    assert expected["output_type"] == "execute_result"
    return expected["data"]["text/plain"], expected["data"]["text/html"]


def test_a_check_cells_value_is_its_points_and_it_shows_the_report():
    nb = reported(exercise(1, solved=True), marks(), 1)
    points, page = output(nb, "check-2")
    assert points == "2"
    for fragment in ("4 &lt; 5", "&lt;script&gt;", "that is why", "a &lt;b&gt; remark"):
        assert fragment in page
    points, page = output(nb, "check-1")
    assert points == "0"
    assert "01.1 Predict the average: 0 of 2 points" in page
    assert "another edition" in page
    assert text(nb, "check-2") == 'check("01.2", step)'


def test_points_count_as_much_as_the_course_says():
    nb = exercise(1, solved=True)
    cell(nb, "check-2")["metadata"]["nbgrader"]["points"] = 1
    assert output(reported(nb, marks(points=2), 1), "check-2")[0] == "0.5"


def test_a_course_may_leave_tasks_out():
    nb = exercise(1)
    for id in ("answer-1", "check-1"):
        nb["cells"].remove(cell(nb, id))
    points, page = output(reported(nb, marks(), 1), "check-2")
    assert (points, "another edition" in page) == ("2", True)


def test_another_exercise_under_this_name_earns_nothing_and_is_reported():
    points, page = output(reported(exercise(2), marks(chapter=1), 2), "check-1")
    assert points == "0"
    assert "not graded: this is exercise 01, submitted as exercise 02" in page


def test_a_check_cell_of_nobodys_is_refused_as_nbgrader_would_give_it_all_points():
    nb = exercise(1)
    cell(nb, "check-2")["metadata"]["nbgrader"]["grade_id"] = "my-own-test"
    with pytest.raises(DpbookError, match="my-own-test belongs to no task"):
        reported(nb, marks(), 1)


def test_an_exercise_is_known_by_its_name():
    assert exercise_named("01_four_phase_loop") == 1
    assert [exercise_named(name) for name in ("01_mine", "homework", "../exercises/01_four_phase_loop", "")] == [
        None
    ] * 4
