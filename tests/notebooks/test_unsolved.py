"""An exercise that nobody has solved runs to its end: a learner who runs all cells must reach the last task."""

import nbformat
import pytest
from nbclient import NotebookClient

from dpbook.core import checkout


@pytest.mark.parametrize("path", sorted((checkout.root() / "exercises").glob("*.ipynb")), ids=lambda path: path.stem)
def test_an_unsolved_exercise_runs_to_its_end(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip())
