"""A published notebook as a reader gets it, and what of the reader's own goes over into a new version.

Each function takes the bytes of a notebook and returns bytes; what is no notebook, it leaves as it is.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

PREDICT = "**Predict.**"
"""A cell of text with this asks for a prediction, and the cells of code under it show the answer."""
OWN = "yours"
"""The tag of a cell whose output is the reader's own: that of the machine, that of the work done so far."""
PREDICTION = "dpbook_prediction"
"""Where JupyterLab's extension keeps what a reader predicts: in the metadata of the cell that asks."""
UNANSWERED = re.compile(r"\s*|YOUR ANSWER HERE\s*|.*# YOUR CODE HERE\n\s*raise NotImplementedError\s*", re.DOTALL)
"""A cell that is empty, or the stub of an argument or of a function."""

Cell = dict[str, Any]


def without_spoilers(content: bytes) -> bytes:
    """The notebook without the outputs that answer a prediction, and without those that are the reader's own.

    No cell has a number, as the reader has run none.
    """

    def clear(cells: list[Cell]) -> bool:
        asked = found = False
        for cell in cells:
            if cell["cell_type"] != "code":
                asked = PREDICT in _source(cell)
                continue
            if asked or OWN in cell["metadata"].get("tags", []):
                found |= bool(cell["outputs"])
                cell["outputs"] = []
            for numbered in (cell, *(one for one in cell["outputs"] if "execution_count" in one)):
                found |= numbered["execution_count"] is not None
                numbered["execution_count"] = None
        return found

    return _changed(content, clear)


def with_predictions(content: bytes, there: bytes) -> bytes:
    """The notebook ``content`` with the predictions made in another, by the ids of the cells."""

    own = predictions(there)

    def carry(cells: list[Cell]) -> bool:
        found = False
        for cell in cells:
            if cell["id"] in own:
                cell["metadata"][PREDICTION], found = own[cell["id"]], True
        return found

    return _changed(content, carry)


def predictions(content: bytes) -> dict[str, str]:
    """Return the predictions in a notebook, by the ids of the cells that ask for them."""
    try:
        cells = _by_id(content)
        return {name: cell["metadata"][PREDICTION] for name, cell in cells.items() if cell["metadata"].get(PREDICTION)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # no notebook, or one without ids
        return {}


def with_answers(content: bytes, there: bytes) -> bytes:
    """The notebook ``content`` with the answers and predictions of another, by the ids of the cells; not its stubs."""

    def carry(cells: list[Cell], answers: dict[str, Cell]) -> bool:
        found = False
        for cell in cells:
            answer = _source(answers[cell["id"]]) if cell["id"] in answers else ""
            if cell["metadata"].get("nbgrader", {}).get("solution") and not UNANSWERED.fullmatch(answer):
                cell["source"], found = answer.splitlines(keepends=True), True
        return found

    return with_predictions(_changed(content, lambda cells: carry(cells, _by_id(there))), there)


def digest(name: str, content: bytes) -> str:
    """Return a digest of the reader's changes: the text of a notebook's cells, or every byte of any other file."""
    try:
        return hashed(json.dumps(_said(content)).encode()) if name.endswith(".ipynb") else hashed(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # no notebook, whatever its name
        return hashed(content)


def hashed(content: bytes) -> str:
    """The SHA-256 of ``content``, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _said(content: bytes) -> list[list[Any]]:
    """The cells in order, without what running and saving alters: outputs, counts, metadata, how lines are stored.

    Blank cells are left out: JupyterLab adds one when the last cell is run.
    """
    cells = [
        [cell.get("id"), cell["cell_type"], _source(cell), cell.get("attachments") or {}]
        for cell in json.loads(content)["cells"]
    ]
    return [cell for cell in cells if cell[2].strip() or cell[3]]


def _changed(content: bytes, change: Callable[[list[Cell]], bool]) -> bytes:
    """The notebook after ``change`` of its cells, which says whether there was one."""
    try:
        notebook = json.loads(content)
        if not change(notebook["cells"]):
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # no notebook, or one without ids
        return content
    return (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _by_id(content: bytes) -> dict[str, Cell]:
    return {cell["id"]: cell for cell in json.loads(content)["cells"]}


def _source(cell: Cell) -> str:
    return "".join(cell["source"])
