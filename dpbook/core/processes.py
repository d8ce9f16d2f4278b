"""Processes: one ends with its parent and without a crash, handles signals, and receives functions of a notebook."""

import atexit
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from dpbook.core.errors import InvalidArgument

PARENT = "DPBOOK_PARENT"
"""The environment variable with the id of the process that started this one."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent ends, even if that is killed; do nothing elsewhere.

    Linux sends no signal if the parent has ended before this call. The process then has another parent, and exits here.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit("the process that started this one has ended")
        os.environ[PARENT] = str(os.getpid())


def exit_without_teardown(status: int) -> NoReturn:
    """End the process after its exit handlers have run, without taking the interpreter down.

    gloo's threads may still hold the last tensors. If they release them when the interpreter is gone, the process
    aborts ("terminate called without an active exception"): about once in fifty starts with torch 2.13.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # ends pools, and waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def print_error_and_exit(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Print an error and end the process at once, without exit handlers that wait for other ranks.

    It has the parameters of `sys.excepthook`.
    """
    sys.stdout.flush()
    sys.__excepthook__(kind, error, trace)
    os._exit(1)


LAUNCH_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a launch; at SIGUSR1 its ranks may save first."""


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` for each of `LAUNCH_SIGNALS`, except for a SIGHUP that is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in LAUNCH_SIGNALS if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


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
    known = sys.stdlib_module_names | {__name__.partition(".")[0], "__main__"}
    return module.__name__.partition(".")[0] in known or INSTALLED in (getattr(module, "__file__", None) or "")
