"""An exercise that nobody has solved runs to its end: a learner who runs all cells must reach the last task."""

import nbformat
import pytest

from dpbook.app.notebooks.validation import execute
from dpbook.core import checkout

IN_EVERY_RUN = ("10",)  # it needs the most: NumPy, schedules, torch and ranks

EXERCISES = sorted((checkout.root() / "exercises").glob("*.ipynb"))


@pytest.mark.processes
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem[:2] in IN_EVERY_RUN else pytest.mark.proof)
        for path in EXERCISES
    ],
)
def test_an_unsolved_exercise_runs_to_its_end(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, tmp_path)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip())
