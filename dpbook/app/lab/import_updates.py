"""Imports in a reader's notebooks that name a place of an earlier version, and what to write instead."""

import ast
import json
from collections.abc import Iterator
from typing import NamedTuple

MODULES = {
    "dpbook.audit": "dpbook.runs.audit",
    "dpbook.forecast": "dpbook.runs.forecast",
    "dpbook.grading": "dpbook.classroom",
    "dpbook.program": "dpbook.runs.trainer",
    "dpbook.standin": "dpbook.book.sim",
}
"""Packages that have another name, by the earlier one."""
NAMES = {
    ("dpbook.app", "diagnose"): "dpbook.app.lab",
    ("dpbook.app", "run_summary"): "dpbook.runs.report",
    ("dpbook.ranks", "check_peers"): "dpbook.runs.launch",
    ("dpbook.ranks", "Launch"): "dpbook.runs.launch",
    ("dpbook.ranks", "launch"): "dpbook.runs.launch",
    ("dpbook.ranks", "preflight"): "dpbook.runs.launch",
    ("dpbook.ranks", "read_dumps"): "dpbook.runs.postmortem",
}
"""Packages in which single names are now, by the earlier package and the name."""


class Renamed(NamedTuple):
    """An import of an earlier version, and the statements that take its place."""

    earlier: str
    now: str


def renamed_imports(content: bytes) -> list[Renamed]:
    """Return the imports of a notebook that name an earlier place; none for a file that is no notebook."""
    try:
        cells = json.loads(content)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    found = [renamed for source in sources for renamed in _in_cell(source)]
    return list(dict.fromkeys(found))


def _in_cell(source: str) -> Iterator[Renamed]:
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        statements = ast.walk(ast.parse("\n".join(lines)))
    except SyntaxError:  # half-written
        return
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.level == 0:
            now = _rewritten(statement.module or "", statement.names)
            if now != [ast.unparse(statement)]:
                yield Renamed(ast.unparse(statement), "; ".join(now))


def _rewritten(module: str, names: list[ast.alias]) -> list[str]:
    """Return the statements that import ``names`` from where they are now, under the names that the notebook uses."""
    by_module: dict[str, list[ast.alias]] = {}
    for alias in names:
        target, name = _place(module, alias.name)
        bound = alias.asname or alias.name
        by_module.setdefault(target, []).append(ast.alias(name, None if bound == name else bound))
    return [ast.unparse(ast.ImportFrom(target, aliases, 0)) for target, aliases in by_module.items()]


def _place(module: str, name: str) -> tuple[str, str]:
    """Return the package in which a name is now, and its name there."""
    renamed = MODULES.get(f"{module}.{name}")
    if renamed:
        package, _, last = renamed.rpartition(".")
        return package, last
    return NAMES.get((module, name)) or MODULES.get(module, module), name
