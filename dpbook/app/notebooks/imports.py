"""Who imports what, read from the sources: modules of dpbook, and the code cells of notebooks."""

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dpbook.core import PACKAGE

_PACKAGE = PACKAGE.resolve()  # as the checkout says it

SOURCES = {
    ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(_PACKAGE.rglob("*.py"))
}
"""Every module by its dotted name."""


def notebooks(root: Path) -> list[Path]:
    """The published notebooks of the checkout ``root``: chapters, exercises, solutions."""
    return sorted([*root.glob("chapters/*.ipynb"), *root.glob("exercises/**/*.ipynb")])


def is_package(module: str) -> bool:
    """Whether a module of `SOURCES` is a door."""
    return SOURCES[module].name == "__init__.py"


@cache
def tree(module: str) -> ast.Module:
    """The source of a module, parsed."""
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def defined(module: str) -> set[str]:
    """The names that a module itself gives a value."""
    names = set()
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return names


@cache
def offered(module: str) -> dict[str, tuple[str, str]]:
    """What a door imports, by name: (module, name there)."""
    return {alias.asname or alias.name: (base, alias.name) for base, alias in pairs(tree(module)) if alias}


def pairs(parsed: ast.AST) -> Iterator[tuple[str, ast.alias | None]]:
    """(module, alias) of every import of dpbook; the alias is None for ``import module``. No import is relative."""
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.partition(".")[0] == "dpbook")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            if base.partition(".")[0] == "dpbook":
                yield from ((base, alias) for alias in node.names)


def home(module: str, name: str) -> str:
    """The module in which ``name``, as ``module`` has it, is defined; the name of a module where it is one."""
    while name not in defined(module):
        if f"{module}.{name}" in SOURCES and offered(module).get(name, (module, name)) == (module, name):
            return f"{module}.{name}"
        if name not in offered(module):
            return module
        module, name = offered(module)[name]
    return module


def used(parsed: ast.AST) -> set[str]:
    """The modules whose names a source uses, imported one by one or as attributes of a room."""
    found, rooms = set(), {}
    for module, alias in pairs(parsed):
        where = home(module, alias.name) if alias else module
        found.add(where)
        if is_package(where):
            rooms[alias.asname or alias.name if alias else module] = where
    for node in ast.walk(parsed):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            found.add(home(rooms[node.value.id], node.attr))
    return found


def code(notebook: Path) -> ast.Module:
    """The code of a notebook as one tree; lines that are IPython's own count for nothing."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    body = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n".join(body).splitlines()
    return ast.parse("\n".join("" if line.startswith(("%", "!")) else line for line in lines))
