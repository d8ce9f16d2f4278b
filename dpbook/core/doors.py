"""Front doors of rooms: names that are loaded when they are asked for, and those that have moved."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dpbook.core.moved import tell


def lazily(room: str, **homes: str) -> Callable[[str], Any]:
    """A room's ``__getattr__`` (PEP 562): each name is imported from its module when it is first asked for.

    Names that the room has lost to others are told.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{room}.{homes[name]}"), name)
        tell(f"{room}.{name}")
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return find
