"""The process of an answer: it runs the cells, then the calls that the judge's side requests.

Nothing here is armour: the answer may change all of it, and can then say what it likes, which is judged as what it is.
"""

import contextlib
import importlib
import io
import itertools
import json
import linecache
import pickle
import random
import socket
import threading
from collections.abc import Callable, Generator, Hashable
from functools import cache
from typing import Any

import numpy as np

from dpbook.classroom.sandbox.encoding import Ended, Frames, SharedArrays, named_value, write
from dpbook.classroom.tasks.answer import LimitedOutput, blame, causes, is_stub, kind_of, last_line
from dpbook.classroom.tasks.plain_data import NotPlain, plain
from dpbook.classroom.tasks.report import Report
from dpbook.classroom.tasks.write_your_own import refuse
from dpbook.collectives.programs import line_of_caller


def serve(sock: socket.socket, guards: dict[str, bool]) -> None:
    """Serve requests until the other end closes the socket."""
    printed = LimitedOutput()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), contextlib.suppress(Ended):
        side = _Side(Frames(sock), printed)
        sock.send(json.dumps(guards).encode())
        while True:
            side.step()


class _Side:
    def __init__(self, frames: Frames, printed: LimitedOutput) -> None:
        self._frames, self._printed, self._reported = frames, printed, 0
        self._names: dict[str, Any] = {}
        self._answer: Any = None
        self._lock = threading.RLock()
        self._arrays = SharedArrays(1, weak=True)
        self._live: dict[int, Any] = {}
        self._generators: list[tuple[Any, tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def step(self) -> None:
        """Execute the next request, and send its result."""
        try:
            # Both names keep arrays alive until they are sent: those of the call may have been changed in place.
            request = self._receive()
            result = self._execute(request)
            reply = {"value": write(result, self._arrays, self._named)}
        except Ended:
            raise
        except NotPlain as error:
            reply = {"not plain": str(error)}
        except BaseException as error:  # SystemExit and whatever else an answer may raise
            reply = {"failed": self._failure(error)}
        self._send(reply)

    def _execute(self, request: tuple[Any, ...]) -> Any:
        match request:
            case "load", cells, name, write_your_own:
                return self._load(cells, name, write_your_own)
            case ("kind",):
                return kind_of(self._answer)
            case ("value",):
                return plain(self._answer)
            case "call", target, args, live, after:
                return self._call(target, args, live, after)
            case "each", calls:
                return [plain(self._answer(*args)) for args in calls]
            case "arguments", generator:  # of the call that made it, as they are now
                return next([plain(arg) for arg in args] for made, args in self._generators if made is generator)
            case "method", target, name, args:
                return getattr(target, name)(*args)
            case "get", target, name:
                return getattr(target, name)
            case "send", generator, value:
                try:
                    return "yielded", generator.send(value)
                except StopIteration as stop:
                    return "returned", stop.value
            case "beside", through, args:
                return plain(through(self._answer, *args))
            case ("reset",):
                self._live.clear()
                self._generators.clear()
                self._arrays = SharedArrays(1, weak=True)
                return None
        raise ValueError(f"an unknown request: {request!r}")

    def _load(self, cells: list[tuple[str, str]], name: str, write_your_own: list[str]) -> bool:
        """Run cells, each with the name of its file. Return whether they left an answer."""
        _without_checks()
        refuse(write_your_own)
        self._names["__name__"] = "__main__"
        for file, text in cells:
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(text, file, "exec"), self._names)
        self._answer = self._names.get(name)
        return name in self._names

    def _call(self, target: Any, args: tuple[Any, ...], live: bool, after: bool) -> Any:
        """Return the result of a call and, if ``after``, its arguments as they are after it.

        A generator has run no line yet: the request "arguments" has its arguments when it has.
        """
        result = (self._answer if target is None else target)(*args)
        result = result if live else plain(result)
        if after and isinstance(result, Generator):
            self._generators.append((result, args))
            return result, None
        return result, [plain(arg) for arg in args] if after else None

    def ask(self, number: int, method: str, args: tuple[Any, ...]) -> Any:
        """Call an object of the other side. Raises the errors of that call."""
        with self._lock:
            asked = [number, method, write(args, self._arrays, self._named)]
            self._send({"ask": asked, "line": line_of_caller(2)})
            what, result = self._receive()
        if what == "raise":
            raise result
        return result

    def _named(self, value: Any) -> dict[str, Any]:
        number = next((n for n, each in self._live.items() if each is value), None)
        if number is None:
            self._live[number := next(self._numbers)] = value
        kind = "generator" if isinstance(value, Generator) else "callable" if callable(value) else "object"
        made: Any = type(value)
        return {"live": [number, kind, made.__name__, _methods(made)]}

    def _send(self, reply: dict[str, Any]) -> None:
        reply["arrays"], data = self._arrays.outgoing()
        if self._printed.written != self._reported:
            reply["printed"], self._reported = str(self._printed), self._printed.written
        self._frames.send(json.dumps(reply).encode(), data)

    def _receive(self) -> Any:
        text, data = self._frames.receive()
        file = io.BytesIO(text)
        self._arrays.incoming(pickle.load(file), data)
        return _Reader(self, file).load()

    def resolve(self, name: tuple[Any, ...]) -> Any:
        """Return the value that a name in a pickle stands for."""
        match name:
            case ("array", reference):
                return self._arrays.resolve(reference)
            case ("yours", number):
                return self._live[number]
            case ("function", number, text):
                return _method(self, number, "", text)
            case ("object", number, data, methods):
                return Proxy(self, number, data, methods)
        raise pickle.UnpicklingError

    def _failure(self, error: BaseException) -> dict[str, Any]:
        given = next((n for each in causes(error) if (n := getattr(each, "number_given", None)) is not None), None)
        report = {"stub": is_stub(error), "given": given, "name": type(error).__name__, "line": last_line(error)}
        try:
            summary, cause = blame(error)
        except BaseException:  # it cannot even be printed
            summary = cause = "an error that cannot be printed"
        try:
            message = str(error)[:2000]
        except BaseException:
            message = ""
        return {**report, "summary": summary, "cause": cause, "message": message}


class _Reader(pickle.Unpickler):
    def __init__(self, side: _Side, file: io.BytesIO) -> None:
        super().__init__(file)
        self._side = side

    def find_class(self, module: str, name: str) -> Any:
        made = super().find_class(module, name)
        return self._side.resolve if made is named_value else made


class Proxy:
    """Proxy of an object of the judge's side: its data as it was when it was sent, and its methods."""

    def __init__(self, side: _Side, number: int, data: dict[str, Any], methods: list[str]) -> None:
        vars(self).update(data)
        for name in methods:
            setattr(self, name, _method(side, number, name, name))


@cache
def _methods(kind: Hashable) -> list[str]:
    """Return the names of the methods of a type."""
    return [name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))]


def _method(side: _Side, number: int, method: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return side.ask(number, method, (args, options))

    call.__name__ = call.__qualname__ = name
    return call


def _without_checks() -> None:
    """Make a check in a cell do nothing here, and start no process for one: an answer may have few processes."""
    grading = importlib.import_module("dpbook.classroom")

    def nothing(*args: Any, **options: Any) -> Report:
        return Report("", "", ())

    grading.check = grading.hint = nothing  # type: ignore[attr-defined]
    importlib.import_module("dpbook.classroom.tasks.notebook_check").prepare = nothing  # type: ignore[attr-defined]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # what an answer draws is the same in every run
