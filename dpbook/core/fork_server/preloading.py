"""Import of the modules that the processes of a server share."""

import gc
import importlib
import traceback
import weakref
from collections.abc import Iterable


def preload(modules: Iterable[str]) -> None:
    """Import modules before the first fork, in a state that forked processes copy as little of as possible.

    A module that cannot be imported is printed and left out: the process that needs it will raise.
    """
    gc.disable()  # modules are not garbage, and searching them for it takes a quarter of the time
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        # torch has 200 of these, which would take a tenth of a second at the end of each process.
        finalizer.atexit = False
    gc.freeze()  # a collection would copy the memory of these objects, in every process
    gc.enable()
