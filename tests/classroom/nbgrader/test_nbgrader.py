"""Does nbgrader give the marks of ``dpbook grade`` for exercises of the book, whatever is handed in?"""

import csv
import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpbook.app import main
from dpbook.classroom import list_tasks
from dpbook.classroom.marks import find, grade
from dpbook.core import checkout
from tests.classroom.submissions import cell, exercise, hand_in, solutions

pytestmark = [pytest.mark.proof, pytest.mark.processes]

SEED = 5
SOLVED = {chapter: solutions(chapter) for chapter in (1, 2, 11)}
NAMES = {int(path.name[:2]): path.stem for path in sorted((checkout.root() / "exercises").glob("[0-9][0-9]_*.ipynb"))}
FORGING = """
import numpy as np, dpbook.classroom, dpbook.classroom.tasks.report as cases
from IPython import get_ipython
np.allclose = lambda *values, **options: True
check = lambda *values, **options: type("Report", (), {"points": 2})
dpbook.classroom.check = check
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


METERS = "def meters(params, averaged, whole):\n    return np.ptp(params, axis=0).max(), -1.0"
FIRST = SOLVED[1]
HANDED = {
    1: {
        "perfect": (FIRST, None, [2, 4, 3, 2]),
        "partial": ({"1": FIRST["1"], "3": METERS}, None, [2, 0, 2, 0]),
        "stub": ({}, None, [0, 0, 0, 0]),
        "forging": ({str(n): FORGING for n in range(1, 5)}, None, [0, 0, 0, 0]),
        "endless": (FIRST | {"2": FAR, "3": IN_C}, None, [2, 0, 0, 2]),
        "uncheck": (FIRST, without("check-2"), [2, 4, 3, 2]),
        "deleted": (FIRST, without("answer-2", "check-2", "check-3"), [2, 0, 3, 2]),
        "twice": (FIRST, twice, [2, 4, 3, 2]),
        "later": (FIRST, of_a_later_nbgrader, [2, 4, 3, 2]),
        "edited": ({}, edited, [0, 0, 0, 0]),
    },
    2: {
        "perfect": (SOLVED[2], lambda nb: cell(nb, "words-02-1").update(source="Because."), [4, 2, 4, 4]),
        "partial": ({"2": SOLVED[2]["2"]}, None, [0, 2, 0, 0]),
        "stub": ({}, None, [0, 0, 0, 0]),
    },
    11: {
        "perfect": (SOLVED[11], None, [6, 2, 3, 3, 4]),
        "partial": ({"1": SOLVED[11]["1"]}, None, [6, 0, 0, 0, 0]),
        "stub": ({}, None, [0, 0, 0, 0, 0]),
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


def test_a_class_goes_all_the_way(tmp_path):
    """One test, so that there is one walk, whoever shares the work."""
    walk(tmp_path)
    points_are_those_that_the_answers_earn(tmp_path)
    points_are_those_of_the_command(tmp_path)
    an_argument_in_words_waits_for_a_person(tmp_path)
    a_link_earns_nothing_and_is_told(tmp_path)
    an_assignment_of_the_schools_own_runs_as_ever(tmp_path)
    feedback_is_the_report_and_has_no_hidden_test(tmp_path)
    feedback_says_what_was_expected_what_came_and_what_was_odd(tmp_path)
    the_export_has_everybodys_sum(tmp_path)
    a_file_that_is_no_notebook_is_told_and_stops_nobody(tmp_path)


def walk(course):
    assert main(["nbgrader", str(course)]) == 0
    config = course / "nbgrader_config.py"
    config.write_text(re.sub(r"seed=\d+", f"seed={SEED}", config.read_text()))
    of_the_schools_own(course)
    for chapter, student in CLASS:
        answers, change, _ = HANDED[chapter][student]
        hand_in(submitted(course, student, chapter), chapter, answers, change=change or (lambda nb: None))
    link = submitted(course, "link", 1)
    link.parent.mkdir(parents=True)
    link.symlink_to(checkout.root() / "exercises" / "solutions" / link.name)
    for assignment in [*(NAMES[chapter] for chapter in HANDED), "own"]:
        for step in ("generate_assignment", "autograde", "generate_feedback"):
            status, output = nbgrader(course, step, assignment)
            assert (step, assignment, status) == (step, assignment, 0), output
    status, output = nbgrader(course, "export")
    assert status == 0, output


def submitted(course, student, chapter):
    return course / "submitted" / student / NAMES[chapter] / f"{NAMES[chapter]}.ipynb"


def of_the_schools_own(folder):
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


def points_are_those_that_the_answers_earn(course):
    for chapter, student in CLASS:
        given, expected = scores(course, NAMES[chapter], student), HANDED[chapter][student][2]
        found = [given[task.check_cell] for task in list_tasks(chapter)]
        assert (chapter, student, found) == (chapter, student, [(points, False) for points in expected])


def points_are_those_of_the_command(course):
    graded = grade(find([submitted(course, student, chapter) for chapter, student in CLASS]), SEED, jobs=2).submissions
    for (chapter, student), marks in zip(CLASS, graded, strict=True):
        points = [task.points for task in marks.exercises[0].tasks]
        assert (chapter, student, points) == (chapter, student, HANDED[chapter][student][2])


def an_argument_in_words_waits_for_a_person(course):
    assert scores(course, NAMES[2], "perfect")["words-02-1"] == (None, True)
    assert scores(course, NAMES[2], "stub")["words-02-1"] == (0, False)
    assert "Because." in feedback(course, 2, "perfect")


def a_link_earns_nothing_and_is_told(course):
    assert {points for points, _ in scores(course, NAMES[1], "link").values()} == {0}
    assert "not graded: it is a symbolic link" in feedback(course, 1, "link")


def an_assignment_of_the_schools_own_runs_as_ever(course):
    assert [scores(course, "own", student)["test"][0] for student in ("perfect", "stub")] == [3, 0]


def feedback_is_the_report_and_has_no_hidden_test(course):
    for chapter, student in CLASS:
        page = feedback(course, chapter, student)
        assert [task.title for task in list_tasks(chapter) if task.title not in page] == []
        assert not re.search(r"HIDDEN|seed=1|not contained", page)


def feedback_says_what_was_expected_what_came_and_what_was_odd(course):
    page = feedback(course, 1, "partial")
    for text in (">expected<", ">got<", ">why<", "must not be averaged away."):
        assert text in page
    assert "2 cells are marked as the answer to 01.2" in feedback(course, 1, "twice")
    assert "the cell answer-01-2 is missing" in feedback(course, 1, "deleted")


def the_export_has_everybodys_sum(course):
    rows = list(csv.DictReader((course / "grades.csv").open(newline="")))
    found = {(row["assignment"], row["student_id"]): float(row["raw_score"]) for row in rows}
    assert {(NAMES[chapter], s): found[NAMES[chapter], s] for chapter, s in CLASS} == {
        (NAMES[chapter], s): sum(HANDED[chapter][s][2]) for chapter, s in CLASS
    }


def a_file_that_is_no_notebook_is_told_and_stops_nobody(course):
    """Nor does --no-execute, without which nothing runs in a kernel either, give anybody all points."""
    hand_in(submitted(course, "b-late", 1), 1, {})
    hand_in(submitted(course, "a-broken", 1), 1, {}).write_text("no notebook")
    status, output = nbgrader(course, "autograde", NAMES[1], "--no-execute")
    assert status == 1
    assert f"There was an error processing assignment '{NAMES[1]}' for student 'a-broken'" in output
    assert {points for points, _ in scores(course, NAMES[1], "b-late").values()} == {0}


def test_a_courses_own_numbers_are_those_that_count(tmp_path):
    """Its solutions earn all points; the book's lose those of 01.1, where a number of the course stands."""
    assert main(["nbgrader", str(tmp_path), "--course", "11"]) == 0
    own = submitted(tmp_path, "own", 1)
    own.parent.mkdir(parents=True)
    own.write_bytes((tmp_path / "source" / NAMES[1] / own.name).read_bytes())
    hand_in(submitted(tmp_path, "books", 1), 1, FIRST)
    for step in ("generate_assignment", "autograde"):
        status, output = nbgrader(tmp_path, step, NAMES[1])
        assert status == 0, output
    for student, points in (("own", [2, 4, 3, 2]), ("books", [0, 4, 3, 2])):
        given = scores(tmp_path, NAMES[1], student)
        assert (student, [given[task.check_cell][0] for task in list_tasks(1)]) == (student, points)


def test_a_release_is_what_the_books_own_learners_get_and_the_references_in_it_earn_all_points(tmp_path):
    handed = tmp_path / "handed"
    handed.mkdir()
    for chapter, nb in released(tmp_path / "course"):
        texts = [(c["id"], "".join(c["source"])) for c in exercise(chapter)["cells"]]
        assert [(c.id, c.source) for c in nb.cells] == texts
        for number, text in solutions(chapter).items():
            answer = cell(nb, f"answer-{number}")
            assert answer["metadata"].get("editable", True)
            answer["source"] = text
        (handed / f"{NAMES[chapter]}.ipynb").write_text(json.dumps(nb), encoding="utf-8")
    (marks,) = grade(find([handed]), SEED, jobs=2).submissions
    lost = {t.task: t.reason for e in marks.exercises for t in e.tasks if t.points < t.possible}
    assert (lost, len(marks.exercises)) == ({}, len(NAMES))


def released(course):
    """nbgrader's release of the exercise of each chapter, made in this process and stored in no database."""
    import nbformat
    from nbgrader.preprocessors import SaveCells
    from traitlets.config import PyFileConfigLoader

    assert main(["nbgrader", str(course)]) == 0
    config = PyFileConfigLoader("nbgrader_config.py", str(course)).load_config()
    for chapter, name in NAMES.items():
        nb = nbformat.read(course / "source" / name / f"{name}.ipynb", as_version=4)
        resources = {"nbgrader": {"notebook": name, "assignment": name, "student": "."}}
        for step in config.GenerateAssignment.preprocessors:
            if step is not SaveCells:
                nb, resources = step(config=config)(nb, resources)
        yield chapter, nb


def test_a_folder_of_submissions_is_refused(tmp_path, capsys):
    (tmp_path / "anna").mkdir()
    assert main(["nbgrader", str(tmp_path)]) == 1
    assert "folder must be empty, new, or a course" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["anna"]


def test_all_that_nbgrader_pulls_in_is_pinned():
    pinned = re.findall(r"^([\w.-]+)==", (checkout.root() / "constraints.txt").read_text(), re.MULTILINE)
    assert needed("nbgrader", set()) - {canonicalize_name(name) for name in pinned} == set()


def needed(name, known):
    """The distributions that one needs, itself among them."""
    if (own := canonicalize_name(name)) not in known:
        known.add(own)
        for requirement in map(Requirement, requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, known)
    return known
