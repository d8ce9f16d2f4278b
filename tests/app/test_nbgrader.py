"""Does nbgrader give the marks of ``dpbook grade`` for exercises of the book, whatever is handed in?"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from dpbook.app import main
from dpbook.core import checkout
from dpbook.grading import tasks
from dpbook.grading.marking import find, grade
from tests.grading.handed_in import cell, exercise, hand_in, solutions

pytestmark = [pytest.mark.proof, pytest.mark.processes]

SEED = 5
SOLVED = {chapter: solutions(chapter) for chapter in (1, 2, 11)}
NAMES = {int(path.name[:2]): path.stem for path in sorted((checkout.root() / "exercises").glob("[0-9][0-9]_*.ipynb"))}
FORGING = """
import numpy as np, dpbook.grading, dpbook.grading.cases as cases
from IPython import get_ipython
np.allclose = lambda *values, **options: True
check = lambda *values, **options: type("Report", (), {"points": 2})
dpbook.grading.check = check
cases.Report.points = property(lambda self: self.possible)
get_ipython().ast_node_interactivity = "none"
"""
FAR = "\nwhile True:\n    pass"
IN_C = "\nsum(iter(int, 1))"


def without(*ids):
    return lambda nb: [nb["cells"].remove(cell(nb, id)) for id in ids]


def twice(nb):
    nb["cells"] += [json.loads(json.dumps(cell(nb, id))) | {"id": f"{id}-copy"} for id in ("answer-2", "check-2")]


def of_a_later_nbgrader(nb):
    cell(nb, "check-2")["metadata"]["nbgrader"]["schema_version"] = 99


def edited(nb):
    cell(nb, "check-1")["source"] = "2"
    cell(nb, "check-1")["metadata"]["nbgrader"] |= {"points": 100, "locked": False}


PLAN = "def plan(examples, local_batch, world, parameters):\n    return world * local_batch, 1.5, 2 * parameters"
FIRST = SOLVED[1]
HANDED = {
    1: {
        "perfect": (FIRST, None, [2, 4, 3, 3, 2]),
        "partial": ({"1": FIRST["1"], "4": PLAN}, None, [2, 0, 0, 2, 0]),
        "stub": ({}, None, [0, 0, 0, 0, 0]),
        "forging": ({str(n): FORGING for n in range(1, 6)}, None, [0, 0, 0, 0, 0]),
        "endless": (FIRST | {"2": FAR, "3": IN_C}, None, [2, 0, 0, 3, 2]),
        "uncheck": (FIRST, without("check-2"), [2, 4, 3, 3, 2]),
        "deleted": (FIRST, without("answer-2", "check-2", "check-3"), [2, 0, 3, 3, 2]),
        "twice": (FIRST, twice, [2, 4, 3, 3, 2]),
        "later": (FIRST, of_a_later_nbgrader, [2, 4, 3, 3, 2]),
        "edited": ({}, edited, [0, 0, 0, 0, 0]),
    },
    2: {
        "perfect": (SOLVED[2], lambda nb: cell(nb, "words-02-1").update(source="Because."), [4, 3, 4, 6]),
        "partial": ({"2": SOLVED[2]["2"]}, None, [0, 3, 0, 0]),
        "stub": ({}, None, [0, 0, 0, 0]),
    },
    11: {
        "perfect": (SOLVED[11], None, [5, 2, 3]),
        "partial": ({"1": SOLVED[11]["1"]}, None, [5, 0, 0]),
        "stub": ({}, None, [0, 0, 0]),
    },
}
"""By exercise and student: the answers, what else was done to the notebook, and the points of each task."""
CLASS = [(chapter, student) for chapter, students in HANDED.items() for student in students]


def nbgrader(course, *arguments):
    # as of somebody who has activated no environment
    run = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=course, env=os.environ | {"PATH": os.defpath}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course that went all the way."""
    folder = tmp_path_factory.mktemp("course")
    assert main(["nbgrader", str(folder)]) == 0
    config = folder / "nbgrader_config.py"
    config.write_text(re.sub(r"seed=\d+", f"seed={SEED}", config.read_text()))
    _of_the_schools_own(folder)
    for chapter, students in HANDED.items():
        for student, (answers, change, _) in students.items():
            path = folder / "submitted" / student / NAMES[chapter] / f"{NAMES[chapter]}.ipynb"
            hand_in(path, chapter, answers, change=change or (lambda nb: None))
    link = folder / "submitted" / "link" / NAMES[1] / f"{NAMES[1]}.ipynb"
    link.parent.mkdir(parents=True)
    link.symlink_to(checkout.root() / "exercises" / "solutions" / link.name)
    for assignment in [*(NAMES[chapter] for chapter in HANDED), "own"]:
        for step in ("generate_assignment", "autograde", "generate_feedback"):
            status, text = nbgrader(folder, step, assignment)
            assert (step, assignment, status) == (step, assignment, 0), text
    status, text = nbgrader(folder, "export")
    assert status == 0, text
    return folder


def _of_the_schools_own(folder):
    """An assignment that is not of the book, in the same course."""
    marks = {"schema_version": 3, "task": False, "grade": True, "solution": False, "locked": True, "points": 3}
    test = {"cell_type": "code", "id": "test", "execution_count": None, "outputs": [], "source": "assert answer == 42"}
    given = {**test, "id": "given", "metadata": {}, "source": "answer = 42"}
    test["metadata"] = {"nbgrader": {**marks, "grade_id": "test"}}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    text = json.dumps({"cells": [given, test], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})
    for path in ("source/own/own.ipynb", "submitted/perfect/own/own.ipynb", "submitted/stub/own/own.ipynb"):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text.replace("= 42", "= 41") if "stub" in path else text)


def scores(course, assignment, student):
    """By grade id: the points that nbgrader gave by itself, None where a person is to give them."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        submission = gradebook.find_submission_notebook(assignment, assignment, student)
        return {grade.name: (grade.auto_score, grade.needs_manual_grade) for grade in submission.grades}


def feedback(course, chapter, student):
    return (course / "feedback" / student / NAMES[chapter] / f"{NAMES[chapter]}.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def command(course):
    """By exercise and student, the points of each task that ``dpbook grade`` gives."""
    folders = [course / "submitted" / student / NAMES[chapter] for chapter, student in CLASS]
    graded = grade(find(folders), SEED, jobs=2).submissions
    return {who: [task.points for task in each.exercises[0].tasks] for who, each in zip(CLASS, graded, strict=True)}


@pytest.mark.parametrize(("chapter", "student"), CLASS)
def test_points_are_those_that_the_answers_earn_and_those_of_the_command(course, command, chapter, student):
    expected = HANDED[chapter][student][2]
    given = scores(course, NAMES[chapter], student)
    assert [given[task.check_cell] for task in tasks(chapter)] == [(points, False) for points in expected]
    assert command[chapter, student] == expected


def test_an_argument_in_words_waits_for_a_person_where_there_is_one(course):
    assert scores(course, NAMES[2], "perfect")["words-02-1"] == (None, True)
    assert scores(course, NAMES[2], "stub")["words-02-1"] == (0, False)
    assert "Because." in feedback(course, 2, "perfect")


def test_a_link_earns_nothing_and_is_told(course):
    assert {points for points, _ in scores(course, NAMES[1], "link").values()} == {0}
    assert "not graded: it is a link" in feedback(course, 1, "link")


def test_an_assignment_of_the_schools_own_runs_as_ever(course):
    assert [scores(course, "own", student)["test"][0] for student in ("perfect", "stub")] == [3, 0]


@pytest.mark.parametrize(("chapter", "student"), CLASS)
def test_feedback_is_the_report_and_has_no_hidden_test(course, chapter, student):
    page = feedback(course, chapter, student)
    assert all(task.title in page for task in tasks(chapter))
    assert not re.search(r"HIDDEN|seed=1|not contained", page)


def test_feedback_says_what_was_expected_what_came_and_what_was_odd(course):
    page = feedback(course, 1, "partial")
    for said in (">expected<", ">came<", ">why<", "1.5", "Fewer steps per epoch is what the extra workers buy."):
        assert said in page
    assert "2 cells are marked as the answer to 01.2" in feedback(course, 1, "twice")
    assert "the cell answer-01-2 is missing" in feedback(course, 1, "deleted")


def test_the_export_has_everybodys_sum(course):
    rows = list(csv.DictReader((course / "grades.csv").open(newline="")))
    found = {(row["assignment"], row["student_id"]): float(row["raw_score"]) for row in rows}
    assert {(NAMES[chapter], s): found[NAMES[chapter], s] for chapter, s in CLASS} == {
        (NAMES[chapter], s): sum(HANDED[chapter][s][2]) for chapter, s in CLASS
    }


def test_a_file_that_is_no_notebook_is_told_and_stops_nobody(course, tmp_path):
    shutil.copytree(course, tmp_path / "course", symlinks=True)
    for student, text in (("a-broken", "no notebook"), ("b-late", json.dumps(exercise(1)))):
        path = tmp_path / "course" / "submitted" / student / NAMES[1] / f"{NAMES[1]}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    status, said = nbgrader(tmp_path / "course", "autograde", NAMES[1], "--no-execute")
    assert status == 1
    assert f"There was an error processing assignment '{NAMES[1]}' for student 'a-broken'" in said
    assert {points for points, _ in scores(tmp_path / "course", NAMES[1], "b-late").values()} == {0}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """By chapter, nbgrader's release of the exercise, made in this process and kept in no database."""
    import nbformat
    from nbgrader.preprocessors import SaveCells
    from traitlets.config import PyFileConfigLoader

    folder = tmp_path_factory.mktemp("released")
    assert main(["nbgrader", str(folder)]) == 0
    config = PyFileConfigLoader("nbgrader_config.py", str(folder)).load_config()
    found = {}
    for chapter, name in NAMES.items():
        nb = nbformat.read(folder / "source" / name / f"{name}.ipynb", as_version=4)
        resources = {"nbgrader": {"notebook": name, "assignment": name, "student": "."}}
        for step in config.GenerateAssignment.preprocessors:
            if step is not SaveCells:
                nb, resources = step(config=config)(nb, resources)
        found[chapter] = nb
    return found


@pytest.mark.parametrize("chapter", NAMES)
def test_the_release_is_what_the_books_own_learners_get(released, chapter):
    texts = [(c["id"], "".join(c["source"])) for c in exercise(chapter)["cells"]]
    assert [(c.id, c.source) for c in released[chapter].cells] == texts


def test_the_references_in_the_released_answer_cells_earn_all_points(released, tmp_path):
    for chapter, nb in released.items():
        for number, text in solutions(chapter).items():
            answer = cell(nb, f"answer-{number}")
            assert answer["metadata"].get("editable", True)
            answer["source"] = text
        (tmp_path / f"{NAMES[chapter]}.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    (marks,) = grade(find([tmp_path]), SEED, jobs=2).submissions
    lost = {t.task: t.reason for e in marks.exercises for t in e.tasks if t.points < t.possible}
    assert (lost, len(marks.exercises)) == ({}, len(NAMES))
