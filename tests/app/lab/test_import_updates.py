"""Is a reader told which import of an earlier version to change, and does the new place exist?"""

import json

from dpbook.app.lab.workbook import MOVED, moved_imports, refresh
from tests.cases import each


def notebook(*sources):
    cells = [{"cell_type": "code", "id": str(k), "source": source, "metadata": {}} for k, source in enumerate(sources)]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


@each(
    ("source", "sentences"),
    [
        ("from dpbook.grading import check, exercise", ["dpbook.grading is dpbook.classroom now"]),
        ("from dpbook import grading", ["dpbook.grading is dpbook.classroom now"]),
        ("from dpbook import figures, standin as device", ["dpbook.standin is dpbook.book.sim now"]),
        ("from dpbook.ranks import preflight, start", ["dpbook.ranks.preflight is dpbook.runs.launch.preflight now"]),
        (
            "from dpbook.ranks import (\n    start,\n    launch as go,\n    read_dumps,\n)",
            [
                "dpbook.ranks.launch is dpbook.runs.launch.launch now",
                "dpbook.ranks.read_dumps is dpbook.runs.postmortem.read_dumps now",
            ],
        ),
    ],
)
def test_an_import_of_an_earlier_place_is_named_with_its_new_one(source, sentences):
    assert moved_imports(notebook("x = 1", f"%matplotlib inline\n{source}\n", source)) == sentences


@each(
    "source",
    [
        "from dpbook.classroom import check",
        "import numpy as np",
        "from dpbook import figures as grading  # not from dpbook import grading",
        "from dpbook.ranks import start\nlaunch = 3",
        "%%bash\nls",
    ],
)
def test_other_cells_name_none(source):
    assert moved_imports(notebook(source)) == []


def test_what_is_no_notebook_names_none():
    assert moved_imports(b"text") == moved_imports(b"[]") == []


@each("place", list(MOVED.values()))
def test_every_new_place_exists(place):
    package, _, name = place.rpartition(".")
    exec(f"from {package} import {name}", {})


def test_an_update_names_the_imports_of_files_that_it_leaves_alone(tmp_path):
    book, workbook = tmp_path / "book", tmp_path / "workbook"
    (book / "chapters").mkdir(parents=True)
    path = book / "chapters" / "01_a.ipynb"
    path.write_bytes(notebook("from dpbook.grading import check"))
    refresh(book, workbook)
    own = workbook / "chapters" / "01_a.ipynb"
    own.write_bytes(notebook("from dpbook.grading import check", "mine = 1"))
    path.write_bytes(notebook("from dpbook.classroom import check"))
    report = str(refresh(book, workbook))
    assert "chapters/01_a.ipynb: change an import: dpbook.grading is dpbook.classroom now" in report
    assert b"dpbook.grading" in own.read_bytes()
    assert "change" not in str(refresh(book, tmp_path / "fresh"))
