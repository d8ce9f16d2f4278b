"""Does strict validation fail where it should and pass where it should, in both directions?"""

import json
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from dpbook.app import validation
from dpbook.app.nbval_plugin import shape
from dpbook.core import checkout
from dpbook.core.errors import DpbookError

pytestmark = pytest.mark.processes


def dpbook(*args):
    command = [sys.executable, "-m", "dpbook", "validate", *map(str, args)]
    return subprocess.run(command, cwd=checkout.root(), capture_output=True, text=True)


def store(path, *cells):
    """Each cell is a source, or a source and its tags."""
    made = [new_code_cell(c) if isinstance(c, str) else new_code_cell(c[0], metadata={"tags": c[1]}) for c in cells]
    nbformat.write(new_notebook(cells=made), path)
    return path


CELLS = (
    "import dpbook, os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['TQDM_DISABLE'], hash('a') == hash('a'))",
    "1 + 1",
    "[3];",
    ("1 / 0", ["raises-exception"]),
    ("import time\nprint(f'{time.time():.6f} s on {time.monotonic_ns()} ns')", ["measurement"]),
    ("raise SystemExit('never to be run')", ["nbval-skip"]),
    "import ipywidgets\nipywidgets.IntSlider(value=2, max=5)",
    "from dpbook import core\ntry:\n    core.check_int('n', -1, 0)\nexcept ValueError as e:\n    print(e)",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = store(tmp_path_factory.mktemp("book") / "01_good.ipynb", *CELLS)
    ids = [cell["id"] for cell in json.loads(path.read_text())["cells"]]
    run = dpbook("--write", path)
    assert run.returncode == 0, run.stdout + run.stderr
    stored = json.loads(path.read_text())
    assert [cell["id"] for cell in stored["cells"]] == ids
    return path


def test_what_was_written_passes(written):
    run = dpbook(written)
    assert run.returncode == 0, run.stdout
    assert "7 passed, 1 skipped" in run.stdout


def test_writing_again_changes_only_the_measurement(written, tmp_path):
    again = tmp_path / written.name
    again.write_bytes(written.read_bytes())
    assert dpbook("--write", again).returncode == 0
    first, second = (json.loads(path.read_text()) for path in (written, again))
    assert first["cells"].pop(4) != second["cells"].pop(4)
    assert first == second


def test_the_metadata_are_the_same_on_every_machine(written):
    metadata = json.loads(written.read_text())["metadata"]
    assert metadata["kernelspec"] == {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert set(metadata) == {"kernelspec", "language_info"}
    assert "version" not in metadata["language_info"]


def test_an_output_widget_is_written_without_its_state(tmp_path):
    path = store(
        tmp_path / "01_output.ipynb", "import ipywidgets\nout = ipywidgets.Output()\nwith out:\n    print(1)\nout"
    )
    run = dpbook("--write", path)
    assert run.returncode == 0, run.stdout + run.stderr
    stored = json.loads(path.read_text())
    assert "widgets" not in stored["metadata"]
    assert list(stored["cells"][0]["outputs"][0]["data"]) == ["text/plain"]


def test_a_semicolon_silences_and_a_skipped_cell_is_not_run(written):
    cells = json.loads(written.read_text())["cells"]
    assert cells[2]["outputs"] == []
    assert cells[5]["execution_count"] is None


def test_a_measurement_is_tagged_for_plain_nbval_too(written):
    assert "nbval-ignore-output" in json.loads(written.read_text())["cells"][4]["metadata"]["tags"]


def forget(cell):
    cell.execution_count, cell.outputs = None, []


def lose_a_line(cell):
    cell.outputs[0].text = "nothing measured\n"


LIES = {
    "output_differs": (1, lambda cell: cell.outputs[0].data.update({"text/plain": "3"}), "Cell outputs differ"),
    "never_executed": (1, forget, "never executed"),
    "raises": (1, lambda cell: cell.update(source="1 / 0"), "caused an exception"),
    "no_longer_raises": (3, lambda cell: cell.update(source="1 / 1"), "Cell outputs differ"),
    "measurement": (4, lose_a_line, "changed its shape"),
}
"""Which cell is changed, how, and what is then said of it."""


@pytest.fixture(scope="module")
def lies(written, tmp_path_factory):
    """What validation says of a folder of notebooks that no longer tell the truth, and of one that does."""
    folder = tmp_path_factory.mktemp("lies")
    for name, (number, change, _) in LIES.items():
        stored = nbformat.read(written, as_version=4)
        change(stored.cells[number])
        nbformat.write(stored, folder / f"{name}.ipynb")
    (folder / "true.ipynb").write_bytes(written.read_bytes())
    run = dpbook(folder)
    assert run.returncode == 1, run.stdout
    return run.stdout


@pytest.mark.parametrize("name", LIES)
def test_a_notebook_that_no_longer_tells_the_truth_fails(lies, name):
    number, _, words = LIES[name]
    told = [section for section in re.split(r"\n_+ ", lies) if f"{name}.ipynb::Cell {number} _" in section[:200]]
    assert len(told) == 1
    assert words in told[0]


def test_one_that_tells_the_truth_passes_beside_them(lies):
    assert f"{len(LIES)} failed" in lies
    assert "true.ipynb" not in lies[lies.index("FAILURES") :]


@pytest.mark.timeout(60)
def test_a_dead_kernel_fails_at_once(tmp_path):
    path = store(tmp_path / "01_dies.ipynb", "import os\nos._exit(3)", "1")
    stored = nbformat.read(path, as_version=4)
    for count, cell in enumerate(stored.cells):
        cell.execution_count = count + 1
    nbformat.write(stored, path)
    run = dpbook(path)
    assert run.returncode == 1, run.stdout
    assert "the kernel died while it ran this cell" in run.stdout


def test_a_notebook_outside_the_checkout_fails_under_its_name(tmp_path):
    run = dpbook(store(tmp_path / "01_outside.ipynb", "1 + 1"))
    assert run.returncode == 1, run.stdout
    assert re.search(r"FAILED \S*01_outside\.ipynb::Cell 0", run.stdout), run.stdout


NO_NOTEBOOKS = ["", "no JSON", "[]", "{}", '{"cells": 3}', '{"nbformat": 9, "cells": []}', "\udcff"]


@pytest.fixture
def unreadable(tmp_path):
    """A folder with a good notebook, after all the kinds of bad ones."""
    for number, text in enumerate(NO_NOTEBOOKS):
        (tmp_path / f"{number}_bad.ipynb").write_text(text, errors="surrogateescape")
    return store(tmp_path / "good.ipynb", "1 + 1").parent


def test_notebooks_that_cannot_be_read_are_named_without_a_traceback(unreadable):
    run = dpbook(unreadable)
    assert run.returncode == 1
    said = re.findall(r"(\d)_bad\.ipynb: it cannot be read as a notebook \(", run.stderr)
    assert said == [str(number) for number in range(len(NO_NOTEBOOKS))]
    assert "Traceback" not in run.stdout + run.stderr


def test_the_notebooks_after_one_that_cannot_be_read_are_written(unreadable):
    run = dpbook("--write", unreadable)
    assert run.returncode == 1
    assert run.stdout.count("not written: it cannot be read as a notebook") == len(NO_NOTEBOOKS)
    assert json.loads((unreadable / "good.ipynb").read_text())["cells"][0]["execution_count"] == 1
    assert [(unreadable / f"{n}_bad.ipynb").read_bytes() for n in range(len(NO_NOTEBOOKS))] == [
        text.encode(errors="surrogateescape") for text in NO_NOTEBOOKS
    ]


@pytest.mark.parametrize("work", [validation.compare, validation.write])
def test_a_path_with_nothing_to_validate_is_an_error(tmp_path, work):
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "copy.ipynb").touch()
    with pytest.raises(DpbookError, match=r"notes\.txt is no notebook"):
        work([tmp_path / "notes.txt"])
    with pytest.raises(DpbookError, match="holds no notebooks"):
        work([tmp_path])


def test_tests_alone_are_nothing_to_write(tmp_path):
    (tmp_path / "test_it.py").touch()
    with pytest.raises(DpbookError, match="no notebooks to write"):
        validation.write([tmp_path])


def test_a_notebook_that_fails_is_not_written(tmp_path):
    path = store(tmp_path / "01_fails.ipynb", "1 / 0")
    before = path.read_bytes()
    run = dpbook("--write", path)
    assert run.returncode == 1
    assert "ZeroDivisionError" in run.stdout
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("work", [validation.compare, validation.write])
def test_a_book_without_notebooks_is_an_error_and_no_silent_success(tmp_path, monkeypatch, work):
    monkeypatch.setattr(validation.checkout, "root", lambda: tmp_path)
    with pytest.raises(DpbookError, match="no notebooks"):
        work([])


def out(text):
    return [new_output("stream", name="stdout", text=text)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ring  12.50 ms", "ring  9.1 ms"),
        ("a | 1\n--+----", "a |    1e-05\n--+--------"),
        ("gain -3 %", "gain 4 %"),
        ("1,024 bytes", "99 bytes"),
        ("nan s", "1.5 s"),
    ],
)
def test_other_numbers_are_the_same_shape(one, other):
    assert shape(out(one)) == shape(out(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("ring 1 ms", "ring 1 s"), ("1\n2", "1"), ("1 2 3", "1 2"), ("1 ms", "")],
)
def test_other_words_are_another_shape(one, other):
    assert shape(out(one)) != shape(out(other))


def test_a_missing_picture_is_another_shape():
    picture = new_output("display_data", data={"text/plain": "<Figure>", "image/png": "AAAA"})
    words = new_output("display_data", data={"text/plain": "<Figure>"})
    assert shape([picture]) != shape([words])
