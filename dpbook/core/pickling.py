"""Pickling of functions from notebooks, so that another process can call them."""

import inspect
import os
import sys
from threading import Lock
from types import ModuleType
from typing import Any

from dpbook.core.errors import InvalidArgument

INSTALLED = "-packages" + os.sep
"""Part of the path of every installed module: site-packages, or Debian's dist-packages."""
_REGISTERING = Lock()  # cloudpickle has one list of such modules for the whole process


def pickle_by_value(name: str, value: Any, *functions: Any) -> bytes:
    """Pickle ``value``. Modules that define one of ``functions`` and that others may not import are pickled by value.

    Raises `InvalidArgument` with this ``name`` if an object cannot be pickled.
    """
    import cloudpickle

    modules = {inspect.getmodule(function) for function in functions if callable(function)}
    local = {module for module in modules if module is not None and not _is_installed(module)}
    with _REGISTERING:
        local = {module for module in local if module.__name__ not in cloudpickle.list_registry_pickle_by_value()}
        for module in local:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        except Exception as error:  # an object may raise anything when it is pickled
            raise InvalidArgument(name, functions[0], f"possible to pickle ({error})") from error
        finally:
            for module in local:
                cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Return True if every process can import a module: one of Python's, an installed one or one of dpbook."""
    known = sys.stdlib_module_names | {"dpbook", "__main__"}
    return module.__name__.partition(".")[0] in known or INSTALLED in (getattr(module, "__file__", None) or "")
