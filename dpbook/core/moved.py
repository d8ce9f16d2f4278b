"""Imports of places that are no more say where things are now (the table: ``data/moved.json``)."""

import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from dpbook.core.files import DATA


class _Finder(MetaPathFinder):
    """Asked first: of a folder that is no more, its compiled files may still lie in a checkout."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("dpbook."):
            tell(fullname)
        return None


def watch_imports() -> None:
    """Let imports of modules of dpbook that have moved say where they are."""
    sys.meta_path.insert(0, _Finder())


def tell(old: str) -> None:
    """Raise ImportError if there was such a module or name. No AttributeError: ``from … import`` would not show it."""
    if new := _table().get(old):
        raise ImportError(f"{old} has moved: it is in {new} now", name=old)


@cache
def _table() -> dict[str, str]:
    table: dict[str, str] = json.loads((DATA / "moved.json").read_text(encoding="utf-8"))
    return table
