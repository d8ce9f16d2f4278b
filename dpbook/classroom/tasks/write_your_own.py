"""Library functions that would solve a task: they reject calls from the answer, and calls in its text are detected.

An answer that goes out of its way still reaches them. The search of its text then remains, and a copy of the library's
code, which a comparison of answers shows.
"""

import ast
import functools
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from dpbook.classroom.tasks.answer import is_learners
from dpbook.core import DpbookError


class NotYourOwn(DpbookError):
    """An answer calls a library function that solves the task."""


def refuse(names: Iterable[str]) -> None:
    """Let each of these functions and classes raise `NotYourOwn` when an answer calls it, for the rest of this process.

    ``names`` are those of Python, ``"dpbook.collectives.simulate"`` or ``"dpbook.overlap.Timeline.exposed"``. Calls of
    the library's own code go on as before. Raises `DpbookError` for a name that the library does not have.
    """
    for name in names:
        owner, last = _owner_of(name)
        target = getattr(owner, last)
        if isinstance(target, type):
            target.__init__ = _refusing(target.__init__, name)  # type: ignore[misc]
        elif isinstance(owner, type):
            setattr(owner, last, _refusing(target, name))
        else:
            _replace_everywhere(target, _refusing(target, name))


def _owner_of(name: str) -> tuple[Any, str]:
    """Return the module or class in which a name is defined, and the last part of the name."""
    path, _, last = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        owner = None
    if not hasattr(owner, last):
        raise DpbookError(f"a task forbids its answer to call {name!r}, which the library does not have")
    return owner, last


def _refusing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if is_learners(sys._getframe(1).f_code.co_filename):
            raise NotYourOwn(f"write your own: {name} solves this task, so the answer cannot call it")
        return function(*args, **options)

    return called


def _replace_everywhere(target: object, replacement: object) -> None:
    """Replace an object in all modules of the library that have it under some name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "dpbook":
            for key, value in list(vars(module).items()):
                if value is target:
                    setattr(module, key, replacement)


def called_in(text: str, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that a cell seems to call.

    The cell reads the last part of the name, which it has not defined, imports it, or reads it as an attribute of the
    module. A method is found as an attribute of anything.
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    plain = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} - own
    plain |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    modules = {alias.asname for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    accesses = [node for node in nodes if isinstance(node, ast.Attribute)]
    attributes = [(getattr(node.value, "id", getattr(node.value, "attr", "")), node.attr) for node in accesses]

    def is_called(name: str) -> bool:
        *path, last = name.split(".")
        method = path[-1][0].isupper()
        bases = {base for base, attribute in attributes if attribute == last}
        return bool(bases) if method else last in plain or not bases.isdisjoint({*path, *modules})

    return [name for name in names if is_called(name)]
