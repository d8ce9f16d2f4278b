"""Is a reader told which import of an earlier version to change, and does the new one work?"""

import json

from dpbook.app.lab.workbook import MODULES, NAMES, Renamed, refresh, renamed_imports
from tests.cases import each


def notebook(*sources):
    cells = [{"cell_type": "code", "id": str(k), "source": source, "metadata": {}} for k, source in enumerate(sources)]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


@each(
    ("earlier", "now"),
    [
        ("from dpbook.grading import check, exercise", "from dpbook.classroom import check, exercise"),
        ("from dpbook import grading", "from dpbook import classroom as grading"),
        (
            "from dpbook import figures, standin as device",
            "from dpbook import figures; from dpbook.book import sim as device",
        ),
        (
            "from dpbook.ranks import preflight, start",
            "from dpbook.runs.launch import preflight; from dpbook.ranks import start",
        ),
    ],
)
def test_an_import_of_an_earlier_place_is_named_with_the_one_to_write(earlier, now):
    assert renamed_imports(notebook("x = 1", f"%matplotlib inline\n{earlier}\n")) == [Renamed(earlier, now)]


@each(
    "source", ["from dpbook.classroom import check", "import numpy as np", "from dpbook.grading import (", "%%bash\nls"]
)
def test_other_cells_name_none(source):
    assert renamed_imports(notebook(source)) == []


def test_what_is_no_notebook_names_none():
    assert renamed_imports(b"text") == renamed_imports(b"[]") == []


def test_every_new_place_exists():
    for target in MODULES.values():
        __import__(target)
    for (_, name), target in NAMES.items():
        exec(f"from {target} import {name}", {})


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
    assert "chapters/01_a.ipynb: change `from dpbook.grading import check`" in report
    assert "to `from dpbook.classroom import check`" in report
    assert b"dpbook.grading" in own.read_bytes()
    assert "change" not in str(refresh(book, tmp_path / "fresh"))
