"""Notebooks that a change concerns: those whose code uses a changed file, by the imports of modules and cells.

    python -m tools.touched_notebooks REVISION [options of dpbook validate]

runs `dpbook validate` on those that a change since REVISION touches; ``make notebooks CHANGED=1`` does the same.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from dpbook.app import main
from dpbook.app.notebooks import validation
from dpbook.core import PACKAGE, DpbookError, checkout

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
    """Return the names that a package's ``__init__`` imports, each with its module and its name there."""
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


def touched(notebooks: Iterable[Path], base: str = "HEAD") -> list[Path]:
    """Return those of ``notebooks`` that have changed since the revision ``base``, or use something of dpbook that has.

    What has changed is what git says of the working tree, files that it does not know yet included.
    Raises `DpbookError` where git has no answer.
    """
    root = checkout.root()
    changed = changed_since(base, root)
    return [notebook for notebook in notebooks if changed and concerns(notebook, changed)]


def changed_since(base: str, root: Path) -> set[Path]:
    """The files in the checkout ``root`` that differ from revision ``base``, that are new, or that are gone."""
    differ = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", base, "--")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return {root / name for name in (differ + new).split("\0") if name}


def concerns(notebook: Path, changed: Iterable[Path]) -> bool:
    """Whether one of the files ``changed`` is ``notebook``, or may alter what it shows."""
    chapter, data = (SOURCES["dpbook"].parent / name for name in (f"book/ch{notebook.stem[:2]}", "data"))
    sources = {SOURCES[module] for module in needed(notebook)}
    return any(file == notebook or file in sources or {chapter, data} & {*file.parents} for file in changed)


def needed(notebook: Path) -> set[str]:
    """The modules of dpbook that a notebook uses, and all that these use, in other processes too."""
    found: set[str] = set()
    waiting = [*_uses(code(notebook))]
    if notebook.parent.name != "chapters":  # an exercise is judged by what is found through the number of its task
        waiting += {f"dpbook.book.ch{notebook.stem[:2]}.judge"} & SOURCES.keys()
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += _uses_of(module)
    return found | {door for module in found for door in _doors(module)}


@cache
def _uses_of(module: str) -> set[str]:
    return set() if _only_imports(module) else _uses(tree(module))


def _only_imports(module: str) -> bool:
    """Whether a package's ``__init__`` only hands on names; some chapters have one that defines them."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    return is_package(module) and not any(isinstance(node, definitions) for node in tree(module).body)


def _uses(parsed: ast.Module) -> set[str]:
    """Yield what is imported or named in a string, as in a child's command: a module, or a package's program."""
    texts = [node.value for node in ast.walk(parsed) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = {program if (program := f"{text}.__main__") in SOURCES else text for text in texts}
    return {module for module in used(parsed) | named if module in SOURCES}


def _doors(module: str) -> Iterator[str]:
    """The packages that are imported on the way to a module."""
    return (module[: dot.start()] for dot in re.finditer(r"\.", module))


def _git(root: Path, *command: str) -> str:
    try:
        done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
    except OSError as error:
        raise DpbookError(f"what has changed is known to git, which cannot be run ({error})") from error
    if done.returncode:
        raise DpbookError(f"what has changed is known to git, which says: {done.stderr.strip()}")
    return done.stdout


def validate_touched(base: str, options: list[str]) -> int:
    """Print and validate the notebooks that a change since ``base`` touches; return the exit status."""
    paths = [str(path) for path in touched(validation.notebooks([]), base)]
    print("\n".join(["touched:", *paths]) if paths else "no notebook is touched", flush=True)
    return main(["validate", *options, *paths]) if paths else 0


if __name__ == "__main__":
    sys.exit(validate_touched(sys.argv[1], sys.argv[2:]))
