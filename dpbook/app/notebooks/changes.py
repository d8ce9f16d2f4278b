"""Which notebooks does a change of the library touch? Read from the imports and from git."""

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from dpbook.app.notebooks.imports import SOURCES, code, tree, used
from dpbook.core import DpbookError, checkout


def touched(notebooks: Iterable[Path], base: str = "HEAD") -> list[Path]:
    """Those of ``notebooks`` that have changed since the revision ``base``, or use something of dpbook that has.

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
        waiting += [module for module in SOURCES if module.startswith(f"dpbook.book.ch{notebook.stem[:2]}.judge.")]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += _uses_of(module)
    return found | {door for module in found for door in _doors(module)}


@cache
def _uses_of(module: str) -> set[str]:
    return set() if SOURCES[module].name == "__init__.py" else _uses(tree(module))


def _uses(parsed: ast.Module) -> set[str]:
    """What is imported, and what is named in a string, as in a child's command: a module, or a package's program."""
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
