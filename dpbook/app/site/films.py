"""Films of explorers: the picture of every position of the knobs, for pages and notebooks without a kernel.

A film is drawn once, when notebooks are stored, and lies in JupyterLab's extension under the name in the explorer's
output. Elements that several pictures share are stored once, and each picture as its difference from the one before it.
"""

import ast
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain, product
from pathlib import Path
from typing import Any

from dpbook.core import DATA, DpbookError, write_atomically
from dpbook.figures import EXPLORER_MIME, Explorer

FOLDER = DATA / "jupyter/labextensions/dpbook/static/films"
ELEMENT = re.compile(r"<[^>]+>[^<]*")
SAME_LENGTH = -1
"""First number of a frame that is stored as pairs of a place and the element there that has changed."""


def positions(explorer: Explorer) -> Iterator[dict[str, str]]:
    """Yield the choices at every position of the knobs that a film has; the last knob turns fastest."""
    values = {name: explorer.knobs[name].values for name in explorer.filmed}
    for combination in product(*values.values()):
        yield {**explorer.chosen, **dict(zip(values, combination, strict=True))}


def film(explorer: Explorer) -> dict[str, Any]:
    """Return the film of an explorer as data for JSON.

    ``knobs`` are the names of the knobs that turn in it, and ``fixed`` the choices for the others. ``elements`` are
    pieces of SVG. ``frames`` has an entry for each of `positions`: the numbers of its elements in order, or the changes
    to the frame before it, or the message of the error that these choices raise.
    """
    drawn = [_elements(explorer, choices) for choices in positions(explorer)]
    uses = Counter(chain.from_iterable(frame for frame in drawn if not isinstance(frame, str)))
    numbers = {element: number for number, (element, _) in enumerate(uses.most_common())}
    frames: list[Any] = []
    before: list[int] = []
    for frame in drawn:
        if isinstance(frame, str):
            frames.append(frame)
            continue
        now = [numbers[element] for element in frame]
        changes = [(place, new) for place, (old, new) in enumerate(zip(before, now, strict=False)) if old != new]
        is_short = len(now) == len(before) and 2 * len(changes) < len(now)
        frames.append([SAME_LENGTH, *chain.from_iterable(changes)] if is_short else now)
        before = now
    fixed = {name: choice for name, choice in explorer.chosen.items() if name not in explorer.filmed}
    return {"knobs": list(explorer.filmed), "fixed": fixed, "elements": list(numbers), "frames": frames}


def _elements(explorer: Explorer, choices: dict[str, str]) -> list[str] | str:
    try:
        return ELEMENT.findall(explorer.at(choices).svg)
    except DpbookError as error:
        return str(error)


def name_of(explorer: Explorer) -> str:
    """Return the name that the output of an explorer has."""
    name: str = explorer._repr_mimebundle_()[0][EXPLORER_MIME]["name"]
    return name


def write(explorer: Explorer, folder: Path = FOLDER) -> Path:
    """Draw the film of an explorer, and write it under the explorer's name."""
    packed = gzip.compress(json.dumps(film(explorer), ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(explorer)}.json.gz"
    write_atomically(path, packed)
    return path


def draw_films(root: Path) -> list[Path]:
    """Write the films of all explorers in the chapters of a checkout, remove others, and return their paths."""
    written = [write(one) for path in sorted((root / "chapters").glob("*.ipynb")) for one in explorers(path).values()]
    for path in set(FOLDER.glob("*.json.gz")) - set(written):
        path.unlink()
    return written


def explorers(notebook: Path) -> dict[str, Explorer]:
    """Return the explorers that a stored notebook shows, by the ids of their cells.

    Of the other cells only those are run that assign names which an explorer's cell needs.
    """
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    found = {}
    for index, cell in enumerate(cells):
        if any(EXPLORER_MIME in output.get("data", {}) for output in cell["outputs"]):
            trees = [ast.parse("".join(each["source"])) for each in cells[: index + 1]]
            namespace: dict[str, Any] = {"__name__": "__main__"}
            *statements, last = [node for tree in _needed(trees) for node in tree.body]
            with redirect_stdout(StringIO()):
                exec(compile(ast.Module(statements, []), notebook.name, "exec"), namespace)
            assert isinstance(last, ast.Expr)
            found[cell["id"]] = eval(compile(ast.Expression(last.value), notebook.name, "eval"), namespace)
    return found


def _needed(trees: list[ast.Module]) -> list[ast.Module]:
    """Return the last module, and the last ones before it that assign what it and they read."""
    kept, missing = trees[-1:], _names(trees[-1], ast.Load)
    for tree in reversed(trees[:-1]):
        assigned = _assigned(tree)
        if assigned & missing:
            kept.insert(0, tree)
            missing = (missing - assigned) | (_names(tree, ast.Load) - assigned)
    return kept


def _names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def _assigned(tree: ast.AST) -> set[str]:
    names = _names(tree, ast.Store)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names
