"""Processes: their end, their signals, functions of a notebook that they receive, and probes under a time limit."""

import atexit
import functools
import gc
import importlib.util
import inspect
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn

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


def exit_at_once(status: int) -> NoReturn:
    """End the process and those that it has started by `multiprocessing`, whatever its threads do."""
    import multiprocessing

    for process in multiprocessing.active_children():
        process.kill()
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


class _Importing(MetaPathFinder):
    """Finder of modules that calls ``execute(execute_module, module)`` to import each; other finders find them."""

    def __init__(
        self, names: Iterable[str], execute: Callable[[Callable[[ModuleType], None], ModuleType], None]
    ) -> None:
        self._names, self._execute = set(names), execute

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.remove(name)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._execute, loader.exec_module)
        return spec


def _execute_without_collection(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        execute(module)
    finally:
        if was_enabled:
            gc.enable()


def import_without_collection(*names: str) -> None:
    """Pause garbage collection while the program imports each of the modules ``names``, whenever it does.

    Modules are not garbage, and searching torch's for it again and again takes time: a process that imports torch and
    makes an optimizer used 3.8 s of a core in place of 4.5 (torch 2.13, medians of ten runs each, November 2026).
    """
    sys.meta_path.insert(0, _Importing(names, _execute_without_collection))


def call_after_import(name: str, function: Callable[[ModuleType], None]) -> None:
    """Call ``function(module)`` when the program has imported this module, at once if it has already."""

    def execute_and_call(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        function(module)

    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Importing([name], execute_and_call))


LAUNCH_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a launch; at SIGUSR1 its ranks may save first."""


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` for each of `LAUNCH_SIGNALS` that is not ignored, as SIGHUP is under nohup."""
    numbers = [number for number in LAUNCH_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


KILL_SECONDS = 5.0
"""Seconds in which a killed process ends; one that hangs in a driver may never end."""


class ProbeResult(NamedTuple):
    """Exit ``status`` of a command, None if its time was up; its ``output``; the last line of stderr if it failed."""

    status: int | None
    output: str
    error: str


def run_probe(command: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> ProbeResult:
    """Run a command, and kill it after ``seconds``. Raises `OSError` if it cannot be started.

    Return after `KILL_SECONDS` more at the latest, with the output until then, even if the command cannot be killed.
    """
    # Files, not pipes: a process that cannot be killed would keep a pipe open, and reading it would not end.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=env)
        status = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = child.wait(seconds)
        finally:
            child.kill()  # at Ctrl-C too; nothing happens to a process that has ended
        with suppress(subprocess.TimeoutExpired):
            child.wait(KILL_SECONDS)
        out.seek(0)
        err.seek(0)
        error = (err.read().strip().rpartition("\n")[2] or f"exit status {status}") if status else ""
        return ProbeResult(status, out.read(), error)


INSTALLED = "-packages" + os.sep
"""Part of the path of every installed module: site-packages, or Debian's dist-packages."""
_REGISTERING = Lock()  # cloudpickle has one list of such modules for the whole process


def pickle_by_value(name: str, value: Any, *functions: Any, modules: Iterable[ModuleType] = ()) -> bytes:
    """Pickle ``value``. Modules that define one of ``functions`` and that others may not import are pickled by value.

    So are ``modules`` of that kind. Raises `InvalidArgument` with this ``name`` if an object cannot be pickled.
    """
    import cloudpickle

    defining = {inspect.getmodule(function) for function in functions if callable(function)}
    local = {module for module in (*defining, *modules) if module is not None and not _is_installed(module)}
    with _REGISTERING:
        local = {module for module in local if module.__name__ not in cloudpickle.list_registry_pickle_by_value()}
        for module in local:
            cloudpickle.register_pickle_by_value(module)
        try:
            buffer = io.BytesIO()
            _pickler()(buffer).dump(value)
            return buffer.getvalue()
        except Exception as error:  # an object may raise anything when it is pickled
            raise InvalidArgument(name, functions[0], f"possible to pickle ({error})") from None
        finally:
            for module in local:
                cloudpickle.unregister_pickle_by_value(module)


def own_modules() -> list[ModuleType]:
    """Return the loaded modules that belong to the user: read from a file, and not installed."""
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [module for module in loaded if vars(module).get("__file__") and not _is_installed(module)]


def rebind_names(replaced: Iterable[tuple[Any, Any]]) -> None:
    """Rebind names that the user's modules have imported, from the first object of each pair to the second."""
    new = {id(before): after for before, after in replaced}
    for module in [*own_modules(), sys.modules["__main__"]]:
        functions = [value for value in vars(module).values() if isinstance(value, FunctionType)]
        own = [each.__globals__ for each in functions if each.__module__ == module.__name__]  # runpy
        for names in {id(names): names for names in (vars(module), *own)}.values():
            names.update({name: new[id(value)] for name, value in names.items() if id(value) in new})


@functools.cache
def _pickler() -> Any:
    """Return cloudpickle's pickler, which also pickles by value functions that `functools.cache` has wrapped."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, functools._lru_cache_wrapper):
                module = sys.modules.get(value.__module__)
                if module is None or module.__name__ == "__main__" or not _is_installed(module):
                    return _cached, (value.__wrapped__, value.cache_parameters())
            return super().reducer_override(value)

    return Pickler


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return ``function`` with a new cache."""
    return functools.lru_cache(**parameters)(function)


def _is_installed(module: ModuleType) -> bool:
    """Return True if every process can import a module: one of Python's, an installed one or one of dpbook."""
    known = sys.stdlib_module_names | {__name__.partition(".")[0], "__main__"}
    return module.__name__.partition(".")[0] in known or INSTALLED in (getattr(module, "__file__", None) or "")
