"""Are the answers of a submitted notebook taken, and is the rest reported?"""

import io
import json
import os
import sys

import pytest

from dpbook.app import main
from dpbook.classroom import task
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks, find, table
from dpbook.classroom.marks.submitted_notebook import Unreadable, needs_torch, program, read_exercise
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import DpbookError
from tests.cases import each
from tests.classroom.submissions import cell, exercise, hand_in

MINE = {"2": "def step(params, gradient, x, y, lr):\n    return params", "3": "def meters(a, b, c):\n    return 0, 0"}


def without(id):
    return lambda nb: nb["cells"].remove(cell(nb, id))


def renamed(nb):
    cell(nb, "answer-2")["id"] = "something"


def without_metadata(nb):
    for each_cell in nb["cells"]:
        each_cell["metadata"] = {}


def without_ids(nb):
    without_metadata(nb)
    for number, each_cell in enumerate(nb["cells"]):
        each_cell["id"] = f"c{number}"


def duplicated(nb):
    copy = json.loads(json.dumps(cell(nb, "answer-2"))) | {"id": "copied", "source": "step = 1"}
    nb["cells"].append(copy)


def merged(nb):
    cell(nb, "answer-2")["source"] += "\n\n" + cell(nb, "answer-3")["source"] + '\ncheck("01.2", step)'
    without("answer-3")(nb)


def emptied(nb):
    cell(nb, "answer-2")["source"] = [" \n"]


def of_another_edition(nb):
    cell(nb, "check-2")["metadata"]["nbgrader"]["points"] = 9
    cell(nb, "picture-2")["metadata"]["nbgrader"] = {"grade_id": "answer-01-9"}


def with_an_import(nb):
    nb["cells"].insert(3, {"cell_type": "code", "id": "mine", "metadata": {}, "source": "import math"})
    cell(nb, "answer-2")["source"] = "def step(*args):\n    return math.pi"


def with_a_helper(nb):
    nb["cells"].insert(3, {"cell_type": "code", "id": "mine", "metadata": {}, "source": "def helper():\n    return 1"})
    cell(nb, "answer-2")["source"] = "def step(*args):\n    return helper()"


def of_another_version(nb):
    nb["metadata"]["dpbook"] = {"version": "0.0.1"}


@each(
    ["change", "texts", "messages"],
    [
        (lambda nb: None, "def step|def meters", None),
        (of_another_version, "def step|def meters", "is from version 0.0.1 of the book, but is graded with"),
        (renamed, "def step|def meters", None),
        (without_metadata, "def step|def meters", None),
        (without_ids, "def step|def meters", "answer-01-2 is missing: another cell that defines step was graded"),
        (duplicated, "def step|def meters", "2 cells are marked as the answer to 01.2: the one with the first id"),
        (merged, "def step|def step", "the cell answer-01-3 is missing: another cell that defines meters was graded"),
        (without("answer-2"), "None|def meters", "the cell answer-01-2 is missing, and no other cell defines step"),
        (emptied, "None|def meters", "the cell answer-01-2 is empty"),
        (of_another_edition, "def step|def meters", "01.2 is worth 4 points in this edition, and 9 in this notebook"),
        (of_another_edition, "def step|def meters", "'answer-01-9' belongs to no task of this edition"),
        (with_an_import, "def step|def meters", "math is defined in a cell that is not graded"),
        (with_a_helper, "def step|def meters", "helper is defined in a cell that is not graded"),
    ],
)
def test_answers_are_found_and_what_is_odd_is_reported(change, texts, messages, tmp_path):
    read = read_exercise(hand_in(tmp_path / "handed.ipynb", 1, MINE, change=change))
    assert read.chapter == 1
    found = [str(each.text)[: len(text)] for each, text in zip(read.answers[1:3], texts.split("|"), strict=True)]
    assert found == texts.split("|")
    remarks = " ".join([*read.remarks, *(remark for answer in read.answers for remark in answer.remarks)])
    assert (messages in remarks) if messages else remarks == ""


@each(
    ["content", "messages"],
    [
        ("no JSON", "not valid JSON"),
        ("[1]", "is not a notebook"),
        ('{"worksheets": []}', "old format"),
        (json.dumps({"cells": [{"cell_type": "code", "source": "x = 1\n" * 100_000}]}), "600,000 characters of code"),
        ('{"cells": [{"cell_type": "code", "source": 7, "metadata": [], "id": {}}, 1, null]}', "no cell has"),
        ('{"cells": [{"cell_type": "code", "metadata": {"nbgrader": {"grade_id": "answer-77-1"}}}]}', "no cell has"),
        ('{"cells": [{"cell_type": "code", "metadata": {"tags": 3, "nbgrader": {"grade_id": 5}}}]}', "no cell has"),
    ],
)  # fmt: skip
def test_what_is_no_exercise_is_refused_in_words(content, messages, tmp_path):
    (tmp_path / "it.ipynb").write_text(content)
    with pytest.raises(Unreadable, match=messages):
        read_exercise(tmp_path / "it.ipynb")


def test_a_task_runs_setup_its_answer_and_what_that_uses(tmp_path):
    text = "%time\ndef meters(a, b, c):\n    return step(a, b, c, 0, 0)"
    cells = program(task("01.3"), read_exercise(hand_in(tmp_path / "01.ipynb", 1, MINE | {"3": text})).answers)
    assert {name for name, _ in cells} == {"<setup>", "<answer-01-2>", "<answer-01-3>"}
    assert "#%time" in dict(cells)["<answer-01-3>"]


def test_given_cells_come_along_where_an_answer_uses_them(tmp_path):
    read = read_exercise(hand_in(tmp_path / "15.ipynb", 15, {"3": "def first_difference(ranks):\n    return faulty"}))
    assert "<given-2>" in [name for name, _ in program(task("15.3"), read.answers)]
    assert "<given-2>" not in [name for name, _ in program(task("15.2"), read.answers)]


def test_torch_is_loaded_for_those_that_import_it():
    assert needs_torch([("a", "x = 1\n  import torch")])
    assert not needs_torch([("a", "# import torch\nimport torchless")])
    assert not needs_torch([("a", "\n" * 400_000)]), "in no time"


def test_a_class_is_distinguished_from_one_submission(tmp_path):
    for chapter, name in ((1, "01_a"), (2, "02_b")):
        hand_in(tmp_path / "anna" / f"{name}.ipynb", chapter, {})
    (tmp_path / "anna" / "notes.txt").write_text("mine")
    (tmp_path / "anna" / ".ipynb_checkpoints").mkdir()
    assert [(h.name, len(h.notebooks)) for h in find([tmp_path / "anna"])] == [("anna", 2)]
    hand_in(tmp_path / "berta" / "ex" / "01_a.ipynb", 1, {})
    hand_in(tmp_path / "late.ipynb", 1, {})
    found = find([tmp_path])
    assert [(h.name, len(h.notebooks)) for h in found] == [("anna", 2), ("berta", 1), ("late", 1)]
    assert found[0].remarks == ("notes.txt is not a notebook and was ignored",)
    os.symlink(tmp_path, tmp_path / "berta" / "round")
    (tmp_path / "cora").mkdir()
    (tmp_path / "cora" / "essay.pdf").write_text("")
    found = find([tmp_path])
    assert [h.name for h in found] == ["anna", "berta", "cora", "late"]
    assert found[2].remarks == ("essay.pdf is not a notebook and was ignored", "it contains no notebook")


def test_several_notebooks_of_one_exercise_are_a_class(tmp_path):
    for name in ("01_anna", "01_berta"):
        hand_in(tmp_path / f"{name}.ipynb", 1, {})
    assert [h.name for h in find([tmp_path])] == ["01_anna", "01_berta"]


def test_an_update_that_lies_beside_a_notebook_is_no_submission_of_its_own(tmp_path):
    for name in ("01_anna", "01_anna.new", "01_anna.new2"):
        hand_in(tmp_path / f"{name}.ipynb", 1, {})
    assert [(h.name, len(h.notebooks)) for h in find([tmp_path])] == [(tmp_path.name, 3)]
    hand_in(tmp_path / "01_berta.ipynb", 1, {})
    hand_in(tmp_path / "01_cora.new.ipynb", 1, {})  # beside nothing
    found = {h.name: [path.name for path in h.notebooks] for h in find([tmp_path])}
    assert found == {
        "01_anna": ["01_anna.ipynb", "01_anna.new.ipynb", "01_anna.new2.ipynb"],
        "01_berta": ["01_berta.ipynb"],
        "01_cora.new": ["01_cora.new.ipynb"],
    }


def test_downloads_are_distinguished_by_the_exercise_that_they_are_and_not_by_their_names(tmp_path):
    for name in ("berganna_17_4711_loop", "ongkim_LATE_19_4713_loop-1"):
        hand_in(tmp_path / "canvas" / f"{name}.ipynb", 1, {})
    (tmp_path / "canvas" / "zoe_20_4714_loop.ipynb").write_text("{oops")
    assert len(find([tmp_path / "canvas"])) == 3
    for chapter in (1, 2):
        hand_in(tmp_path / "cora" / f"my homework {chapter}.ipynb", chapter, {})
    assert [(h.name, len(h.notebooks)) for h in find([tmp_path / "cora"])] == [("cora", 2)]


def test_what_macos_adds_is_nobodys_and_a_name_in_capitals_is_a_notebook(tmp_path):
    hand_in(tmp_path / "anna" / "LOOP.IPYNB", 1, {})
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._LOOP.IPYNB").write_text("")
    assert [(h.name, len(h.notebooks), h.remarks) for h in find([tmp_path])] == [("anna", 1, ())]


def test_an_archive_is_told_to_be_unpacked(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "homework.ZIP").write_bytes(b"PK\x03\x04\xff")
    hand_in(tmp_path / "berta.ipynb", 1, {})
    (tmp_path / "cora_20_4714_homework.zip").write_bytes(b"PK\x03\x04\xff")
    (folder,) = find([tmp_path / "anna"])
    assert folder.remarks[0] == "homework.ZIP is not a notebook and was ignored: unpack it"
    with pytest.raises(Unreadable, match="is not a notebook: unpack it"):
        read_exercise(tmp_path / "cora_20_4714_homework.zip")


def test_the_class_names_who_handed_in_no_notebook():
    shown = table(Marks((*marks().submissions, SubmissionMarks("berta", (), ("it contains no notebook",))), 7, ()))
    assert "  berta    0 of   0  no notebook\n" in shown


def test_a_path_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(DpbookError, match="no such file"):
        find([tmp_path / "nowhere"])


def marks(points=1):
    cases = (Case("a", 1, True), Case("b", 2, points == 3, expected="4", got="5\n6"))
    done = TaskMarks("01.1", "Title", 3, Report("01.1", "Title", cases), ("a remark",), together=True)
    missing = TaskMarks("01.2", "Other", 2 if points < 3 else 0, None, ("the cell is missing",))
    exercise_marks = ExerciseMarks("01.ipynb", 1, (done, missing), ("of another edition",))
    return Marks((SubmissionMarks("anna", (exercise_marks,), ("notes.txt was left out",)),) * 2, 7, ("no network",))


def test_the_table_says_every_point_every_reason_and_what_was_not_contained():
    shown = table(marks())
    for line in (
        "anna: 1 of 5 points", "    01.1    1 of  3  Title – b: expected 4, got 5; 6",
        "! a remark", "! of another edition",
        "    01.2    0 of  2  Other – the cell is missing", "  ! notes.txt was left out", "  anna    1 of   5",
        "some judged values came from the answer's own process: 01.1",
        "not contained: no network", "seed 7",
    ):  # fmt: skip
        assert line in shown


@pytest.mark.skipif(sys.platform != "linux", reason="marks are given on Linux alone")
def test_a_terminal_without_our_letters_gets_the_table_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "Änne.ipynb").write_text("{}")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    assert main(["grade", str(tmp_path / "Änne.ipynb"), "--seed", "1"]) == 0
    assert b"\\xc4nne: 0 of 0 points" in shown.getvalue()


def test_marks_are_plain_values_for_other_reports():
    messages = json.loads(json.dumps(marks().as_json()))
    (first, second) = messages["submissions"][0]["exercises"][0]["tasks"]
    assert (first["points"], first["possible"], first["judged_together"]) == (1, 3, True)
    assert first["checks"][1] == {"name": "b", "points": 2, "passed": False, "expected": "4", "got": "5\n6"}
    assert second["reason"] == "the cell is missing"
    assert (marks().full, marks(3).full) == (False, True)


def test_the_learners_notebook_has_an_id_for_every_answer():
    """Assumptions of `take`."""
    for chapter in range(1, 16):
        nb = exercise(chapter)
        for each_cell in nb["cells"]:
            grade_id = each_cell["metadata"].get("nbgrader", {}).get("grade_id", "")
            if grade_id.startswith("answer-"):
                assert each_cell["id"] == f"answer-{grade_id.rpartition('-')[2]}"
