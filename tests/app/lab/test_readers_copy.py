"""Does a reader's copy hide what a prediction asks for, and are predictions kept by every update?"""

import json

import pytest

from dpbook.app.lab import workbook
from dpbook.app.lab.workbook import refresh
from dpbook.core import checkout

CHAPTER = "chapters/01_loop.ipynb"
KEY = workbook.PREDICTION


def text(name, source, **metadata):
    return {"id": name, "cell_type": "markdown", "source": [source], "metadata": metadata}


def code(name, **metadata):
    output = {"output_type": "stream", "name": "stdout", "text": [f"said by {name}\n"]}
    return {
        "id": name, "cell_type": "code", "source": [name], "metadata": metadata, "outputs": [output],
        "execution_count": 1,
    }  # fmt: skip


CELLS = [
    text("intro", "A picture:"),
    code("explains"),
    text("asks", "Some prose.\n\n**Predict.** How many?"),
    code("answers"),
    code("answers-too"),
    text("goes-on", "So it is."),
    code("goes-on-run"),
    code("machine", tags=["yours"]),
]


def notebook(cells):
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def shown(content):
    """The cells of code that have an output; none has a number."""
    cells = json.loads(content)["cells"]
    assert [c["id"] for c in cells if c.get("execution_count")] == []
    return [c["id"] for c in cells if c.get("outputs")]


def test_the_answers_to_a_prediction_and_what_is_the_readers_own_are_not_there():
    assert shown(workbook.without_spoilers(notebook(CELLS))) == ["explains", "goes-on-run"]


def test_a_notebook_that_asks_nothing_stays_as_it_is():
    asks_nothing = notebook(CELLS[:1])
    assert json.loads(workbook.without_spoilers(asks_nothing)) == json.loads(asks_nothing)
    for content in (b"no notebook", b"[1]"):
        assert workbook.without_spoilers(content) == content


@pytest.mark.parametrize("path", sorted((checkout.root() / "chapters").glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_chapter_answers_its_own_questions_in_the_workbook(path):
    cells, hidden = json.loads(workbook.without_spoilers(path.read_bytes()))["cells"], False
    for cell in cells:
        if cell["cell_type"] == "markdown":
            hidden = "**Predict.**" in "".join(cell["source"])
        elif hidden:
            assert cell["outputs"] == [], cell["id"]


@pytest.mark.parametrize("path", sorted((checkout.root() / "chapters").glob("*.ipynb")), ids=lambda path: path.stem)
def test_what_answers_a_question_says_something_to_show_the_prediction_beside(path):
    asked, silent = None, []
    for cell in [*json.loads(path.read_bytes())["cells"], {"cell_type": "markdown", "id": "", "source": []}]:
        if cell["cell_type"] == "markdown":
            silent += [asked] if asked else []
            asked = cell["id"] if "**Predict.**" in "".join(cell["source"]) else None
        elif cell["outputs"]:
            asked = None
    assert silent == []


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    (tmp_path / "book" / CHAPTER).write_bytes(notebook(CELLS))
    refresh(tmp_path / "book", tmp_path / "work")
    return tmp_path / "book"


def predict(path, guess):
    """Notebook as JupyterLab stores it: the prediction in the metadata, and the outputs of the cells that have run."""
    found = json.loads(path.read_bytes())
    found["cells"][2]["metadata"][KEY] = guess
    found["cells"][3] = code("answers")
    path.write_text(json.dumps(found))


def predictions(path):
    return [c["metadata"][KEY] for c in json.loads(path.read_bytes())["cells"] if KEY in c["metadata"]]


def test_what_was_predicted_stays_when_there_is_nothing_new(book, tmp_path):
    predict(tmp_path / "work" / CHAPTER, "six")
    there = (tmp_path / "work" / CHAPTER).read_bytes()
    assert refresh(book, tmp_path / "work").current == [CHAPTER]
    assert (tmp_path / "work" / CHAPTER).read_bytes() == there


def test_an_update_keeps_what_was_predicted(book, tmp_path):
    predict(tmp_path / "work" / CHAPTER, "six")
    (book / CHAPTER).write_bytes(notebook([*CELLS, text("more", "More prose.")]))
    assert refresh(book, tmp_path / "work").updated == [CHAPTER]
    assert predictions(tmp_path / "work" / CHAPTER) == ["six"]
    assert shown((tmp_path / "work" / CHAPTER).read_bytes()) == ["explains", "goes-on-run"]


def test_a_new_version_beside_changed_work_has_what_was_predicted(book, tmp_path):
    changed = tmp_path / "work" / CHAPTER
    predict(changed, "six")
    changed.write_text(changed.read_text().replace('"goes-on-run"]', '"mine()"]'))
    (book / CHAPTER).write_bytes(notebook([*CELLS, text("more", "More prose.")]))
    ((_, beside),) = refresh(book, tmp_path / "work").beside
    assert predictions(tmp_path / "work" / beside) == ["six"]


def test_a_prediction_whose_question_is_gone_is_not_overwritten(book, tmp_path):
    mine = tmp_path / "work" / CHAPTER
    predict(mine, "six")
    (book / CHAPTER).write_bytes(
        notebook([text("asks-anew", "**Predict.** How much?") if c is CELLS[2] else c for c in CELLS])
    )
    assert len(refresh(book, tmp_path / "work").beside) == 1
    assert predictions(mine) == ["six"]


@pytest.fixture
def beside(book, tmp_path):
    """A new version beside a changed file, with a prediction made in it alone."""
    mine = tmp_path / "work" / CHAPTER
    mine.write_bytes(notebook([*CELLS, code("mine()")]))
    (book / CHAPTER).write_bytes(notebook([*CELLS, text("more", "More prose.")]))
    ((_, name),) = refresh(book, tmp_path / "work").beside
    predict(tmp_path / "work" / name, "seven")
    return tmp_path / "work" / name


def test_a_prediction_made_in_the_file_beside_goes_over_into_the_next_version(book, tmp_path, beside):
    (book / CHAPTER).write_bytes(notebook([*CELLS, text("more", "Yet more prose.")]))
    assert refresh(book, tmp_path / "work").beside == [(CHAPTER, beside.relative_to(tmp_path / "work").as_posix())]
    assert b"Yet more" in beside.read_bytes()
    assert predictions(beside) == ["seven"]


def test_the_file_beside_stays_where_a_prediction_in_it_has_no_place_any_more(book, tmp_path, beside):
    (book / CHAPTER).write_bytes(notebook([CELLS[0], *CELLS[3:]]))
    assert refresh(book, tmp_path / "work").beside == [(CHAPTER, "chapters/01_loop.new2.ipynb")]
    assert predictions(beside) == ["seven"]
