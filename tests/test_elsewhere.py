"""Do the set-ups for a container, Binder and Colab name what there is, and does Colab's notebook prepare the book?"""

import json
import os
import subprocess
from pathlib import Path

import nbformat

from dpbook.app.lab import workbook
from dpbook.core import checkout
from tests.cases import each
from tests.test_workflows import complaints

ROOT = checkout.root()
SCRIPTS = [ROOT / ".devcontainer" / "install.sh", ROOT / ".binder" / "postBuild"]


@each("script", SCRIPTS)
def test_a_script_can_be_run_and_names_what_there_is(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["sh", "-n", str(script)], check=True)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith(("#", ".venv/"))]
    assert list(complaints([{"run": "\n".join(lines)}])) == []


def test_the_container_runs_the_script_when_it_is_made():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert ROOT / container["postCreateCommand"] in SCRIPTS


def test_the_notebook_for_colab_copies_the_book_with_a_cell_that_installs_it(tmp_path, monkeypatch):
    notebook = nbformat.read(ROOT / "docs" / "colab.ipynb", as_version=4)
    nbformat.validate(notebook)
    install, copy = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert "%pip install --quiet" in install
    assert "!dpbook lab --copy-only" in copy
    names = {"copy_notebooks": lambda: workbook.refresh(ROOT, Path("workbook"))}
    for _ in range(2):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
        exec(install.replace("%pip", "#"), names)
        exec(copy.replace("!dpbook lab --copy-only", "copy_notebooks()"), names)
    copies = sorted((tmp_path / "dpbook" / "workbook").rglob("*.ipynb"))
    assert len(copies) == len([*ROOT.glob("chapters/*.ipynb"), *ROOT.glob("exercises/*.ipynb")])
    for path in copies:
        made = nbformat.read(path, as_version=4)
        nbformat.validate(made)
        assert [cell.source for cell in made.cells if cell.id == "install"] == ['%pip install --quiet "dpbook[book]"']
        assert made.cells[0].id == "install"
