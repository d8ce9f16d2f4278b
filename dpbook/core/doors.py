"""Front doors of rooms: names that are loaded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(room: str, **homes: str) -> Callable[[str], Any]:
    """A room's ``__getattr__`` (PEP 562): each name is imported from its module when it is first asked for."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{homes[name]}"), name)

    return find
