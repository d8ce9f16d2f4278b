"""Front doors of rooms: names that are imported when they are first used."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(room: str, **homes: str) -> Callable[[str], Any]:
    """Return a room's ``__getattr__`` (PEP 562), which imports each name from its module when it is first used.

    ``dir(room)`` lists these names too, so that an editor completes them.
    """
    loaded = vars(sys.modules[room])
    loaded["__dir__"] = lambda: sorted({*loaded, *homes})

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{room}.{homes[name]}"), name)
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return find
