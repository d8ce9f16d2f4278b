"""Does a learner get the instructor's notebook without its solutions, and is a fault in it found?"""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.classroom.tasks.notebook_cells import dumps, learners
from dpbook.core import checkout
from dpbook.core.errors import DpbookError
from tests.cases import each
from tests.classroom.mutants.edits import answer_cells, answers
from tools.exercise_notebooks import faults, generated, main, stale

ANSWER = '''\
def all_reduce(buffers):
    """Return the sum on every rank."""
    ### BEGIN SOLUTION
    total = buffers.sum(axis=0)
    return np.tile(total, (len(buffers), 1))
    ### END SOLUTION'''
STUBBED = '''\
def all_reduce(buffers):
    """Return the sum on every rank."""
    # YOUR CODE HERE
    raise NotImplementedError'''
CHECK = """\
check("90.1", all_reduce)
### BEGIN HIDDEN TESTS
from dpbook.classroom import check
check("90.1", all_reduce, seed=1).points
### END HIDDEN TESTS"""
PREDICTION = """\
### BEGIN SOLUTION
### STUB: prediction = ...  # your number
prediction = 15 / 8
### END SOLUTION"""


def code(source, grade_id=None, tags=(), **nbgrader):
    metadata = {"tags": list(tags)} if tags else {}
    if grade_id:
        metadata["nbgrader"] = {"schema_version": 3, "task": False, "grade_id": grade_id, **nbgrader}
    output = {"output_type": "execute_result", "data": {"text/plain": ["1"]}, "metadata": {}, "execution_count": 3}
    return {
        "cell_type": "code",
        "id": grade_id or f"c{abs(hash(source)) % 10**6}",
        "metadata": metadata,
        "execution_count": 3,
        "outputs": [output],
        "source": source.splitlines(keepends=True),
    }


def answer(source, grade_id):
    return code(source, grade_id, solution=True, grade=False, locked=False)


def check_cell(source, grade_id, points):
    return code(source, grade_id, solution=False, grade=True, locked=True, points=points)


def words(source, grade_id="words-90-1", **nbgrader):
    meta = {"schema_version": 3, "task": False, "grade_id": grade_id, "solution": True, "grade": True, "locked": False}
    return {
        "cell_type": "markdown",
        "id": grade_id,
        "metadata": {"nbgrader": {**meta, "points": 3, **nbgrader}},
        "source": source.splitlines(keepends=True),
    }


BEGINS = "exercise(90, globals())"
SETUP = code(f"import numpy as np\nfrom dpbook.classroom import check, exercise\n\n{BEGINS}", tags=["setup"])
PICTURE = code("np.arange(3)", tags=["keep-output"])


def notebook():
    cells = [
        {"cell_type": "markdown", "id": "m1", "metadata": {}, "source": ["# Exercise"]},
        SETUP,
        PICTURE,
        answer(ANSWER, "answer-90-1"),
        check_cell(CHECK, "check-90-1", 4),
        answer(PREDICTION, "answer-90-2"),
        check_cell(CHECK.replace("90.1", "90.2").replace("all_reduce", "prediction"), "check-90-2", 1),
        answer("### BEGIN SOLUTION\nbuild = None\n### END SOLUTION", "answer-90-10"),
        check_cell(CHECK.replace("90.1", "90.10").replace("all_reduce", "build"), "check-90-10", 3),
        words("Because the sum is the same.\n\n1 point for the reason."),
    ]
    return copy.deepcopy({"cells": cells, "metadata": {"x": 1}, "nbformat": 4, "nbformat_minor": 5})


def cell(nb, grade_id):
    return next(c for c in nb["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def text(nb, grade_id):
    return "".join(cell(nb, grade_id)["source"])


def test_solutions_and_hidden_tests_go():
    nb = learners(notebook(), "90.ipynb")
    assert text(nb, "answer-90-1") == STUBBED
    assert text(nb, "check-90-1") == 'check("90.1", all_reduce)'
    assert text(nb, "answer-90-2") == "prediction = ...  # your number"


def test_a_model_answer_in_words_goes_and_is_no_code():
    nb = notebook()
    assert text(learners(nb, "90.ipynb"), "words-90-1") == "YOUR ANSWER HERE"
    assert "words-90-1" not in answer_cells(nb)


def test_several_regions_in_one_cell():
    source = "def a():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\nb = 2\n" + PREDICTION + "\nc = 3"
    nb = notebook()
    cell(nb, "answer-90-1")["source"] = source
    stub = (
        "def a():\n    # YOUR CODE HERE\n    raise NotImplementedError\nb = 2\nprediction = ...  # your number\nc = 3"
    )
    assert text(learners(nb, ""), "answer-90-1") == stub


def test_a_stub_may_have_lines_and_depth():
    region = [BEGIN, "### STUB: for y in x:", "### STUB:     pass", "z = 1", END]
    nb = notebook()
    cell(nb, "answer-90-1")["source"] = "\n    ".join(["if x:", *region])
    assert text(learners(nb, ""), "answer-90-1") == "if x:\n    for y in x:\n        pass"


def test_outputs_go_except_pictures():
    nb = learners(notebook(), "")
    kept = [c for c in nb["cells"] if c.get("outputs")]
    assert [c["id"] for c in kept] == [PICTURE["id"]]
    assert kept[0]["outputs"][0]["execution_count"] is None
    assert all(c["execution_count"] is None for c in nb["cells"] if c["cell_type"] == "code")


def test_ids_and_metadata_stay():
    before, after = notebook(), learners(notebook(), "")
    assert [c["id"] for c in after["cells"]] == [c["id"] for c in before["cells"]]
    assert [c["metadata"] for c in after["cells"]] == [c["metadata"] for c in before["cells"]]
    assert after["metadata"] == {"x": 1}


def test_the_source_is_not_changed():
    nb = notebook()
    learners(nb, "")
    assert nb == notebook()


def test_it_is_a_valid_notebook_as_jupyter_writes_it():
    nbformat = pytest.importorskip("nbformat")
    written = dumps(learners(notebook(), "")).decode()
    nb = nbformat.reads(written, as_version=4)
    nbformat.validate(nb)
    assert nbformat.writes(nb).rstrip("\n") + "\n" == written


lines = st.lists(st.sampled_from(["x = 1", "    y = 2", "", "# BEGIN", "é = '→'"]), max_size=5)


@given(st.lists(st.tuples(lines, lines, st.sampled_from(["", "    ", "\t"])), max_size=4), lines)
def test_only_what_is_between_marks_changes(parts, rest):
    source, expected = [], []
    for before, solution, indent in parts:
        source += [*before, f"{indent}### BEGIN SOLUTION", *solution, f"{indent}### END SOLUTION"]
        expected += [*before, f"{indent}# YOUR CODE HERE", f"{indent}raise NotImplementedError"]
    nb = {"cells": [answer("\n".join(source + rest), "answer-90-1")]}
    expected = "\n".join(expected + rest)
    assert text(learners(nb, ""), "answer-90-1") == (expected.rstrip("\n") if parts else expected)


BEGIN, END, HIDE, SHOW = "### BEGIN SOLUTION", "### END SOLUTION", "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"


@each(
    ("grade_id", "source", "message"),
    [
        ("answer-90-1", [BEGIN], "line 1: BEGIN SOLUTION without its END"),
        ("answer-90-1", ["x", END], "line 2: END SOLUTION without its BEGIN"),
        ("answer-90-1", [BEGIN, BEGIN, END], "line 2: BEGIN SOLUTION inside BEGIN SOLUTION"),
        ("answer-90-1", [BEGIN, HIDE, SHOW, END], "line 2: BEGIN HIDDEN TESTS inside BEGIN SOLUTION"),
        ("answer-90-1", [BEGIN, SHOW], "line 2: END HIDDEN TESTS without its BEGIN"),
        ("answer-90-1", ["# BEGIN SOLUTION"], "line 1: a marker needs its own line, ### BEGIN SOLUTION"),
        ("answer-90-1", [HIDE, SHOW], "BEGIN HIDDEN TESTS in a cell whose metadata does not allow it"),
        ("check-90-1", [BEGIN, END], "BEGIN SOLUTION in a cell whose metadata does not allow it"),
    ],
)
def test_marks_that_do_not_pair_up_are_located(grade_id, source, message):
    nb = notebook()
    cell(nb, grade_id)["source"] = "\n".join(source)
    with pytest.raises(DpbookError) as error:
        learners(nb, "90_x.ipynb")
    assert str(error.value).startswith(f"90_x.ipynb, cell {grade_id}")
    assert message in str(error.value)


def test_marks_in_a_markdown_cell_are_found():
    nb = notebook()
    nb["cells"][0]["source"] = [f"{BEGIN}\n", END]
    with pytest.raises(DpbookError, match="cell m1: solution and hidden-test markers"):
        learners(nb, "90_x.ipynb")


def test_answers_are_found_and_run():
    instructors, learner = notebook(), learners(notebook(), "")
    assert list(answer_cells(instructors)) == ["answer-90-1", "answer-90-2", "answer-90-10"]
    del instructors["cells"][-3:]
    del learner["cells"][-3:]
    assert answers(instructors)["90.2"] == 1.875
    assert answers(instructors)["90.1"](__import__("numpy").ones((2, 1))).tolist() == [[2], [2]]
    assert answers(learner)["90.2"] is ...
    with pytest.raises(NotImplementedError):
        answers(learner)["90.1"](None)


@pytest.fixture
def root(tmp_path):
    solutions = tmp_path / "exercises" / "solutions"
    solutions.mkdir(parents=True)
    (solutions / "90_x.ipynb").write_text(json.dumps(notebook()))
    for path, content in generated(tmp_path).items():
        path.write_bytes(content)
    return tmp_path


def test_what_was_generated_is_not_stale(root):
    assert stale(root) == []
    assert [path.name for path in generated(root)] == ["90_x.ipynb"]


def test_generating_is_deterministic(root):
    assert generated(root) == generated(root)


def test_a_changed_a_missing_and_an_orphaned_notebook_are_stale(root):
    learner = root / "exercises" / "90_x.ipynb"
    learner.write_bytes(learner.read_bytes() + b"\n")
    assert stale(root) == [learner]
    learner.unlink()
    orphan = root / "exercises" / "91_y.ipynb"
    orphan.write_text("{}")
    assert stale(root) == [learner, orphan]


def test_the_command_writes_what_is_stale(root, monkeypatch, capsys):
    monkeypatch.setattr(checkout, "root", lambda: root)
    learner = root / "exercises" / "90_x.ipynb"
    learner.unlink()
    assert main() == 0
    assert capsys.readouterr().out == "written: exercises/90_x.ipynb\n"
    assert (main(), capsys.readouterr().out) == (0, "")


def test_the_command_writes_nothing_when_there_is_a_fault(root, monkeypatch, capsys):
    monkeypatch.setattr(checkout, "root", lambda: root)
    nb = notebook()
    nb["cells"][0]["source"] = ["# Another title"]
    cell(nb, "check-90-1")["metadata"]["nbgrader"]["points"] = 3
    (root / "exercises" / "solutions" / "90_x.ipynb").write_text(json.dumps(nb))
    before = (root / "exercises" / "90_x.ipynb").read_bytes()
    assert main() == 1
    assert "'points': 4}, are" in capsys.readouterr().err
    assert (root / "exercises" / "90_x.ipynb").read_bytes() == before


def test_a_file_that_is_no_notebook_is_named(root):
    (root / "exercises" / "solutions" / "90_x.ipynb").write_text("[]")
    with pytest.raises(DpbookError, match=r"90_x\.ipynb is not a notebook of format 4"):
        generated(root)


def test_a_sound_notebook_has_no_faults(root):
    assert faults(root / "exercises" / "solutions" / "90_x.ipynb") == []


def drop(grade_id):
    return lambda nb: nb["cells"].remove(cell(nb, grade_id))


def twice(grade_id):
    return lambda nb: nb["cells"].append(copy.deepcopy(cell(nb, grade_id)))


def meta(cell_id, **changes):
    return lambda nb: cell(nb, cell_id)["metadata"]["nbgrader"].update(changes)


def replace(grade_id, old, new):
    def change(nb):
        cell(nb, grade_id)["source"] = text(nb, grade_id).replace(old, new)

    return change


def swap(nb):
    nb["cells"][3], nb["cells"][4] = nb["cells"][4], nb["cells"][3]


def picture(source):
    return lambda nb: nb["cells"][2].update(source=source)


@each(
    ("change", "message"),
    [
        (drop("answer-90-1"), "answer-90-10, check-90-10, and are check-90-1, answer-90-2"),
        (twice("check-90-1"), "answer-90-2, check-90-2, answer-90-10, check-90-10, check-90-1"),
        (meta("answer-90-2", grade_id="my-cell"), "and are answer-90-1, check-90-1, my-cell, check-90-2"),
        (swap, "and are check-90-1, answer-90-1, answer-90-2"),
        (twice("words-90-1"), "two cells for arguments in words have one grade id"),
        (meta("words-90-1", points=0), "cell words-90-1: points must be a whole number above 0, are 0"),
        (lambda nb: cell(nb, "words-90-1").update(cell_type="raw"), "cell words-90-1 must be a markdown cell"),
        (meta("check-90-1", points=3), "cell check-90-1: nbgrader's metadata must be "),
        (meta("answer-90-1", locked=True), "cell answer-90-1: nbgrader's metadata must be "),
        (replace("answer-90-1", "def all_reduce", "def allreduce"), "cell answer-90-1 does not define all_reduce"),
        (replace("answer-90-1", "###", "#"), "a marker needs its own line"),
        (replace("answer-90-10", "###", "# nothing marked,"), "a marker needs its own line"),
        (replace("answer-90-10", BEGIN, ""), "END SOLUTION without its BEGIN"),
        (lambda nb: cell(nb, "answer-90-10").update(source="build = 1"), "has no solution between marks"),
        (replace("check-90-1", ".points", ""), 'cell check-90-1 must be\ncheck("90.1", all_reduce)\n'),
        (replace("answer-90-1", "return", "retrun"), "cell answer-90-1 is no Python: invalid syntax in line 5"),
        (lambda nb: nb["cells"].remove(SETUP), f"no cell tagged setup calls {BEGINS}"),
        (lambda nb: nb["cells"][1].update(source=f"if x:\n    {BEGINS}"), f"no cell tagged setup calls {BEGINS}"),
        (
            lambda nb: [picture("x = 3\ndraw(x)")(nb), nb["cells"].append(code("x + 1"))],
            "its output is kept, but other cells need x",
        ),
        (picture("draw(all_reduce)"), "its output is kept for the learner, but comes from all_reduce"),
    ],
)
def test_a_fault_is_found(root, change, message):
    nb = notebook()
    change(nb)
    path = root / "exercises" / "solutions" / "90_x.ipynb"
    path.write_text(json.dumps(nb))
    found = faults(path)
    assert any(message in fault for fault in found), found
    assert all(fault.startswith("90_x.ipynb") for fault in found)


@each("used", ["y = 1", "x = 2\nx", "[x for x in y]"])
def test_a_picture_may_define_what_it_alone_needs(root, used):
    nb = notebook()
    picture("x = 3\ndraw(x)")(nb)
    nb["cells"].append(code(used))
    path = root / "exercises" / "solutions" / "90_x.ipynb"
    path.write_text(json.dumps(nb))
    assert faults(path) == []
