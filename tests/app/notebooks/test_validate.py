"""Does strict validation fail where it should and pass where it should, in both directions?"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import nbclient
import nbformat
import pytest
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_notebook, new_output

from dpbook.app.commands import validate
from dpbook.app.notebooks import validation
from dpbook.app.notebooks.nbval_plugin import shape
from dpbook.core import checkout
from dpbook.core.errors import DpbookError
from dpbook.core.fork_server import starter

pytestmark = pytest.mark.processes

PATIENCE = 600
"""Seconds for a run that takes 20 on a quiet machine."""


def dpbook(*args, **environment):
    """Run it. If it does not end in ten minutes, fail with what it has printed, and where its processes stand."""
    # As an option: with PYTHONFAULTHANDLER its kernels and ranks would be of no server that is shared with other tests.
    command = [sys.executable, "-X", "faulthandler", "-m", "dpbook", "validate", *map(str, args)]
    env = os.environ | environment
    with subprocess.Popen(
        command, cwd=checkout.root(), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            stdout, stderr = process.communicate()
            pytest.fail(f"{command} does not end; it printed\n{stdout}\n{stderr}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


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
    "from pathlib import Path\nfrom dpbook.core.fork_server import SHARED_SERVERS, START_METHOD\n"
    "from dpbook.ranks import starting\n"
    "name = starting._RANKS._socket_name(starting._environment(os.environ))\n"
    "print(START_METHOD, Path(os.environ.get(SHARED_SERVERS, ''), name).exists())",
    "from dpbook import core\ntry:\n    core.check_int('n', -1, 0)\nexcept ValueError as e:\n    print(e)",
    "from dpbook.figures import run_loss\nrun_loss([{'step': n, 'loss': 2.0**-n} for n in range(9)], 'It falls')",
    "import numpy as np\nfrom dpbook.figures import drift_and_gap\nfrom dpbook.replicas import Run\n"
    "rounding = 1e-16 * np.array([0.9, 0.6, 0.8])\n"
    "drift_and_gap(Run(np.zeros((2, 3)), np.ones(3), 0.1, np.zeros(3), rounding), 'Only rounding')",
    "get_ipython().history_manager.enabled, os.environ['MPLBACKEND']",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = store(tmp_path_factory.mktemp("book") / "01_good.ipynb", *CELLS)
    ids = [cell["id"] for cell in json.loads(path.read_text())["cells"]]
    run = dpbook("--write", path.parent)
    assert run.returncode == 0, run.stdout + run.stderr
    stored = json.loads(path.read_text())
    assert [cell["id"] for cell in stored["cells"]] == ids
    return path


def test_what_was_written_passes(written, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--durations=3")  # somebody's own options may stand in the environment
    monkeypatch.setenv("MPLBACKEND", "agg")
    run = dpbook(written)
    assert run.returncode == 0, run.stdout
    assert f"{CELLS_RUN} passed, 1 skipped" in run.stdout
    assert "slowest 3 durations" in run.stdout


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


def test_a_semicolon_silences_and_a_skipped_cell_is_not_run(written):
    cells = json.loads(written.read_text())["cells"]
    assert cells[2]["outputs"] == []
    assert cells[5]["execution_count"] is None


def test_a_kernel_finds_the_server_of_ranks_that_all_notebooks_share(written):
    """A spare kernel that was loaded with the kernel's own settings is not started until somebody needs it."""
    output = json.loads(written.read_text())["cells"][6]["outputs"][0]["text"]
    assert output == (["fork True\n"] if starter.START_METHOD == "fork" else ["spawn False\n"])


def test_no_kernel_writes_a_history_that_another_waits_for(written):
    output = json.loads(written.read_text())["cells"][len(CELLS) - 1]["outputs"][0]["data"]["text/plain"]
    assert output == ["(False, 'module://matplotlib_inline.backend_inline')"]


def test_a_measurement_is_tagged_for_plain_nbval_too(written):
    assert "nbval-ignore-output" in json.loads(written.read_text())["cells"][4]["metadata"]["tags"]


def forget(cell):
    cell.execution_count, cell.outputs = None, []


def lose_a_line(cell):
    cell.outputs[0].text = "nothing measured\n"


def draw_another_number(cell):
    """Neither the first nor the last, which the words of the picture tell."""
    cell.source = cell.source.replace("2.0**-n", "2.0**-n + 0.02 * (n == 4)")


def change_a_title(cell):
    """Change it where it is compared although the image is not."""
    cell.outputs[0].data["text/html"] = cell.outputs[0].data["text/html"].replace("Only", "Not only")


LIES = {
    "output_differs": ("a", 1, lambda cell: cell.outputs[0].data.update({"text/plain": "3"}), "Cell outputs differ"),
    "no_longer_raises": ("a", 3, lambda cell: cell.update(source="1 / 1"), "Cell outputs differ"),
    "measurement": ("a", 4, lose_a_line, "changed shape"),
    "a_number_in_a_picture": ("a", 8, draw_another_number, "Cell outputs differ"),
    "never_executed": ("b", 1, forget, "never executed"),
    "words_of_a_picture_that_varies": ("b", 9, change_a_title, "Cell outputs differ"),
    "raises": ("c", 1, lambda cell: cell.update(source="1 / 0"), "caused an exception"),
}
"""In which notebook which cell is changed, how, and what is then said of it. All its other cells tell the truth."""
CELLS_RUN = 10
"""Of each notebook: one is skipped."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder for notebooks that fail."""
    return tmp_path_factory.mktemp("left") / "new"


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def lies(written, folders, temporary, tmp_path_factory):
    """Output of validation, outside the checkout, of notebooks with some cells whose stored outputs are wrong."""
    folder = tmp_path_factory.mktemp("lies")
    stored = {name: nbformat.read(written, as_version=4) for name, *_ in LIES.values()}
    for name, number, change, _ in LIES.values():
        change(stored[name].cells[number])
    rounding = stored["c"].cells[9]
    rounding.source = rounding.source.replace("0.6", "0.7")  # another image with the same words: still the truth
    for name, notebook in stored.items():
        nbformat.write(notebook, folder / f"{name}.ipynb")
    dies = new_notebook(cells=[new_code_cell("import os\nos._exit(3)", execution_count=1)])
    nbformat.write(dies, folder / "dies.ipynb")
    run = dpbook("--jobs", 1, "--failed", folders, folder, TMPDIR=str(temporary), MPLBACKEND="agg")
    assert run.returncode == 1, run.stdout
    return run.stdout


def test_notebooks_that_fail_are_left_as_they_ran(lies, folders):
    ran = {path.stem: nbformat.read(path, as_version=4) for path in folders.rglob("*.ipynb")}
    assert set(ran) == {"a", "b", "c", "dies"}
    sections = {
        (name, n): cell.outputs[-1].text
        for name in "abc"
        for n, cell in enumerate(ran[name].cells)
        if cell.outputs and cell.outputs[-1].get("name") == "stderr"
    }
    assert set(sections) == {(name, number) for name, number, *_ in LIES.values()}
    for name, number, _, words in LIES.values():
        assert words in sections[name, number]
    assert ran["a"].cells[1].outputs[0].data["text/plain"] == "2"


def test_a_notebook_that_fails_is_left_neither_over_itself_nor_where_nothing_can_be_written(tmp_path, monkeypatch):
    path = store(tmp_path / "a.ipynb", "1")
    monkeypatch.setattr(validation.checkout, "root", lambda: path.parent)
    with pytest.raises(DpbookError, match="overwrite"):
        validation.compare([path], failed=path.parent)
    with pytest.raises(DpbookError, match="cannot write failing notebooks"):
        validation.compare([path], failed=path / "folder")
    with pytest.raises(DpbookError, match="--failed"):
        validate.run(argparse.Namespace(write=True, failed=tmp_path, paths=[path]))


@pytest.mark.parametrize("lie", LIES)
def test_a_cell_that_is_no_longer_true_fails(lies, lie):
    name, number, _, words = LIES[lie]
    sections = [section for section in re.split(r"\n_+ ", lies) if f"{name}.ipynb::Cell {number} _" in section[:200]]
    assert len(sections) == 1
    assert words in sections[0]


def test_those_that_are_true_pass_beside_them(lies):
    passed = 3 * CELLS_RUN - len(LIES)
    assert f"{len(LIES) + 1} failed, {passed} passed, 3 skipped" in lies  # and one whose kernel dies


@pytest.mark.timeout(validation.CELL_SECONDS)
def test_a_dead_kernel_is_noticed_before_the_time_of_its_cell_is_up(lies):
    assert "the kernel died while running this cell" in lies


def test_of_a_kernel_nothing_stays_not_even_of_a_dead_one(lies, temporary):
    assert list(temporary.glob("dpbook-*")) == []


def test_a_notebook_outside_the_checkout_fails_under_its_name(lies):
    assert re.search(r"FAILED \S*lies0/c\.ipynb::Cell 1", lies), lies


NO_NOTEBOOKS = ["", "no JSON", "[]", "{}", '{"cells": 3}', '{"nbformat": 9, "cells": []}', "\udcff"]


@pytest.fixture
def unreadable(tmp_path):
    """A folder with a good notebook, after all the kinds of bad ones and one whose cell fails."""
    for number, text in enumerate(NO_NOTEBOOKS):
        (tmp_path / f"{number}_bad.ipynb").write_text(text, errors="surrogateescape")
    store(tmp_path / "fails.ipynb", "1 / 0")
    return store(tmp_path / "good.ipynb", "1 + 1").parent


def test_notebooks_that_cannot_be_read_are_named_without_a_traceback(unreadable):
    run = dpbook(unreadable)
    assert run.returncode == 1
    numbers = re.findall(r"(\d)_bad\.ipynb: it cannot be read as a notebook \(", run.stderr)
    assert numbers == [str(number) for number in range(len(NO_NOTEBOOKS))]
    assert "Traceback" not in run.stdout + run.stderr


def test_what_cannot_be_read_or_fails_stays_as_it_is_and_the_notebooks_after_it_are_written(unreadable):
    before = (unreadable / "fails.ipynb").read_bytes()
    run = dpbook("--write", unreadable)
    assert "ZeroDivisionError" in run.stdout
    assert (unreadable / "fails.ipynb").read_bytes() == before
    assert len(list(unreadable.iterdir())) == len(NO_NOTEBOOKS) + 2
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
    with pytest.raises(DpbookError, match=r"notes\.txt is not a notebook"):
        work([tmp_path / "notes.txt"])
    with pytest.raises(DpbookError, match="contains no notebooks"):
        work([tmp_path])


def test_tests_alone_are_nothing_to_write(tmp_path):
    (tmp_path / "test_it.py").touch()
    with pytest.raises(DpbookError, match="no notebooks to write"):
        validation.write([tmp_path])


@pytest.mark.parametrize("work", [validation.compare, validation.write])
def test_a_book_without_notebooks_is_an_error_and_no_silent_success(tmp_path, monkeypatch, work):
    monkeypatch.setattr(validation.checkout, "root", lambda: tmp_path)
    with pytest.raises(DpbookError, match="no notebooks"):
        work([])


@pytest.mark.parametrize(
    ("error", "failures", "starts"),
    [
        (RuntimeError("Kernel died before replying to kernel_info"), validation.STARTS - 1, validation.STARTS),
        (RuntimeError("Kernel died before replying to kernel_info"), validation.STARTS, validation.STARTS),
        (DeadKernelError("Kernel died"), 1, 1),
    ],
    ids=["the last start succeeds", "none does", "it dies in a cell"],
)
def test_a_kernel_that_does_not_come_up_is_started_again(monkeypatch, tmp_path, error, failures, starts):
    begun = []

    def execute(client, **options):
        begun.append(client)
        if len(begun) <= failures:
            raise error

    monkeypatch.setattr(nbclient.NotebookClient, "execute", execute)
    with contextlib.nullcontext() if failures < starts else pytest.raises(RuntimeError):
        validation.execute(new_notebook(), tmp_path)
    assert len(begun) == starts


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


def test_what_gloo_announces_is_no_part_of_a_shape():
    """Ranks print at once, into each other's lines."""
    announced = (
        "[Gloo] Rank [Gloo] Rank 0 is connected to 1 peer ranks\n1 is. Expected number of connected peer ranks is : 1\n"
    )
    assert shape(out(announced + "trained\n")) == shape(out("trained\n"))


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
