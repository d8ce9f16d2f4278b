"""The eleven submissions on which other graders fail, all of exercise 01: each gets its right mark, in one run."""

import pytest

from dpbook.classroom.marks import find, grade
from dpbook.classroom.tasks import answer as answer_module
from tests.classroom.submissions import cell, hand_in, solutions

pytestmark = pytest.mark.processes

METERS = "def meters(params, averaged, whole):\n"
"""Task 01.3, worth 3 of 11 points."""
WRONG = METERS + "    return -1, -1"


def deleted(nb):
    nb["cells"].remove(cell(nb, "check-3"))


def edited(nb):
    cell(nb, "check-3")["source"] = "print('01.3: 3 of 3 points')"


def stripped(nb):
    for each in nb["cells"]:
        each["metadata"] = {}


def duplicated(nb):
    nb["cells"].append(dict(cell(nb, "answer-3")))


ELEVEN = {
    "right": ({}, 11),
    "wrong": ({"3": WRONG}, 8),
    "raises": ({"3": METERS + "    raise ValueError"}, 8),
    "loops": ({"3": METERS + "    while True:\n        pass"}, 8),
    "a test cell deleted": ({}, 11, deleted),
    "a test cell edited": ({"3": WRONG}, 8, edited),
    "stripped of metadata": ({}, 11, stripped),
    "a cell duplicated": ({}, 11, duplicated),
    "np.allclose replaced": ({"3": f"import numpy\nnumpy.allclose = lambda *a, **k: True\n{WRONG}"}, 8),
    "os._exit": ({"3": METERS + "    import os\n    os._exit(0)"}, 8),
    "blank": (None, 0),
}
"""Answers in place of the solutions (None: none at all), points, and what else was done."""


def test_each_of_the_eleven_gets_its_right_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_module, "CHECK_SECONDS", 0.5)
    for name, (answers, _, *change) in ELEVEN.items():
        given = {} if answers is None else solutions(1) | answers
        hand_in(tmp_path / name / "01_four_phase_loop.ipynb", 1, given, change=change[0] if change else lambda nb: None)
    marks = {each.name: each for each in grade(find([tmp_path]), 7, jobs=2).submissions}
    assert {name: each.points for name, each in marks.items()} == {name: case[1] for name, case in ELEVEN.items()}
    tasks = {name: each.exercises[0].tasks[2] for name, each in marks.items()}
    texts = {name: " ".join((task.reason, *task.remarks)) for name, task in tasks.items()}
    for name, words in {
        "wrong": "no drift",
        "raises": "ValueError",
        "loops": "a loop that does not end",
        "a cell duplicated": "2 cells are marked",
        "os._exit": "its process ended before",
        "blank": "not answered yet",
    }.items():
        assert words in texts[name]
    assert [texts[name] for name, case in ELEVEN.items() if case[1] == 11] == ["", "", "", texts["a cell duplicated"]]
