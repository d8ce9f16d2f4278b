"""The judge's end of an answer's process: requests to it, requests from it, and stand-ins for its objects."""

import io
import json
import pickle
import socket
import struct
from collections.abc import Callable, Generator
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from dpbook.classroom.sandbox.clock import LOOK, Clock
from dpbook.classroom.sandbox.encoding import BadFrame, Ended, Frames, SharedArrays, named_value, read
from dpbook.classroom.tasks.answer import NOT_PLAIN, Wrong
from dpbook.classroom.tasks.report import clean, one_line
from dpbook.collectives.programs import attributed_to_line


class RemoteObject:
    """Proxy of an object of the answer: its attributes and methods are requested from its process."""

    def __init__(self, worker: "Worker", number: int, methods: frozenset[str]) -> None:
        self._worker, self._number, self._methods = worker, number, methods

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._methods:
            return lambda *args: self._worker.request("method", self, name, args)
        return self._worker.request("get", self, name)


class RemoteCallable(RemoteObject):
    """A function of the answer."""

    def __call__(self, *args: Any) -> Any:
        return self._worker.request("call", self, args, True, False)[0]


class RemoteGenerator(Generator[Any, Any, Any]):
    """A generator of the answer."""

    def __init__(self, worker: "Worker", number: int, methods: frozenset[str]) -> None:
        self._worker, self._number = worker, number

    def send(self, value: Any) -> Any:
        what, result = self._worker.request("send", self, value)
        if what == "yielded":
            return result
        raise StopIteration(result)

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: the generator ends with its process."""


MAX_ASKED = 200_000
"""Most calls of the judge's side within one call of the answer."""
MAX_LINE = 200
NO_VALUE = (KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError)
"""Errors that decoding an invalid reply may raise."""


class Failed(Exception):
    """The answer raised an error, whose message this one has."""

    line: str

    def __init__(self, message: str, report: dict[str, Any]) -> None:
        super().__init__(message)
        self.message, self.cause = clean(str(report["summary"])), clean(str(report["cause"]))
        self.stub, self.line = report["stub"] is True, one_line(str(report["line"]))


class ProcessEnded(Exception):
    """The process has ended, or has sent an invalid message."""


class Worker:
    """One process of an answer. ``clock`` raises when the time limit is exceeded."""

    def __init__(self, sock: socket.socket, clock: Clock, print_: Callable[[str], None]) -> None:
        self._print, self._clock = print_, clock
        self.broken = False
        self._reset()
        self._frames = Frames(sock, clock.look, LOOK)
        self.guards, self.process = self._guarded(_hello, sock, self._frames)

    def _reset(self) -> None:
        self._arrays = SharedArrays(0)
        self._ours: dict[int, Any] = {}
        self._raised: dict[int, BaseException] = {}
        self.answered_for_objects = False

    def reset(self) -> None:
        """Forget all objects that were sent."""
        self.request("reset")
        self._reset()

    def close(self) -> None:
        self._frames.close()

    def request(self, kind: str, *given: Any) -> Any:
        """Send a request to the process. Raises `ProcessEnded`, `Failed`, `Wrong`, and the errors of our calls."""
        reply = self._guarded(self._exchange, (kind, *given))
        for _ in range(MAX_ASKED):
            if "ask" not in reply:
                break
            self._clock.look()  # who asks without end is late, too
            reply = self._guarded(self._exchange, self._served(reply))
        else:
            self.broken = True
            raise Wrong("an answer in time", f"more than {MAX_ASKED:,} calls", cause="too many calls")
        if "failed" in reply:
            raise self._guarded(self._failure, reply["failed"])
        if "not plain" in reply:
            text = clean(str(reply["not plain"]))
            raise Wrong(NOT_PLAIN, text, cause=text)
        return self._guarded(lambda: read(reply["value"], self._arrays, self._live))

    def _guarded(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return work(*given)
        except Ended:
            self.broken = True
            raise ProcessEnded("its process ended before it returned one") from None
        except BadFrame as error:
            self.broken = True
            raise ProcessEnded(str(error)) from None
        except NO_VALUE:
            self.broken = True
            raise ProcessEnded("its process sent a message that does not encode a value") from None

    def _served(self, reply: dict[str, Any]) -> tuple[str, Any]:
        """Make a call that the answer asks for, and return the reply to it."""
        call, args, options = self._guarded(self._asked, reply)
        try:
            with attributed_to_line(str(reply.get("line", ""))[:MAX_LINE]):
                return "value", call(*args, **options)
        except Exception as error:
            return "raise", self._copy(error)
        except BaseException:  # the run is over: nobody waits for this process any more
            self.broken = True
            raise

    def _asked(self, reply: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        number, method, given = reply["ask"]
        args, options = read(given, self._arrays, self._live)
        target = self._ours[number]
        if method and method not in type(target).OFFERS:
            raise KeyError(method)
        if not all(isinstance(name, str) for name in options):
            raise TypeError
        return (getattr(target, method) if method else target), tuple(args), options

    def _copy(self, error: Exception) -> Exception:
        """Return a copy of an error for the answer, with its number."""
        number = len(self._raised)
        self._raised[number] = error
        try:
            copied: Exception = pickle.loads(pickle.dumps(error))
        except Exception:
            copied = RuntimeError(str(error))
        copied.number_given = number  # type: ignore[attr-defined]
        return copied

    def _failure(self, report: Any) -> BaseException:
        given = report["given"]
        if type(given) is int and given in self._raised:
            return self._raised[given]
        name = str(report["name"])[:80]
        kind = type(name if name.isidentifier() else "Error", (Failed,), {})
        error: BaseException = kind(clean(str(report["message"])), report)
        return error

    def _exchange(self, message: Any) -> dict[str, Any]:
        """Send a message and return the reply."""
        file = io.BytesIO()
        _Writer(self, file).dump(message)
        arrays, changed = self._arrays.outgoing()
        self._frames.send(pickle.dumps(arrays) + file.getvalue(), changed)
        text, data = self._frames.receive()
        reply: dict[str, Any] = json.loads(str(text, "utf-8"))
        self._arrays.incoming(reply["arrays"], data)
        if "printed" in reply:
            self._print(str(reply["printed"]))
        return reply

    def _live(self, name: dict[str, Any]) -> Any:
        number, kind, type_name, methods = name["live"]
        if type(number) is not int or not isinstance(type_name, str) or not type_name.isidentifier():
            raise ValueError
        self.answered_for_objects = True
        made: Any = {"generator": RemoteGenerator, "callable": RemoteCallable, "object": RemoteObject}[kind]
        return type(type_name[:80], (made,), {})(self, number, frozenset(map(str, methods)))

    def name(self, value: Any) -> Any:
        """Return the name that stands for a value in a pickle, or None for a value that is pickled."""
        if type(value) is np.ndarray and value.dtype.kind in "biufc":
            return ("array", self._arrays.reference(value))
        if isinstance(value, RemoteObject | RemoteGenerator):
            return ("yours", value._number)
        if isinstance(value, FunctionType) and "<" not in value.__qualname__:
            return None  # pickle finds it by its name
        if isinstance(value, FunctionType | MethodType):
            return ("function", self._number(value), value.__name__)
        offers = getattr(type(value), "OFFERS", None)
        if offers is None or isinstance(value, type):
            return None
        data = {each: found for each in offers if not callable(found := getattr(value, each))}
        return ("object", self._number(value), data, [each for each in offers if each not in data])

    def _number(self, value: Any) -> int:
        number = next((n for n, each in self._ours.items() if each is value), len(self._ours))
        self._ours[number] = value
        return number


class _Writer(pickle.Pickler):
    def __init__(self, worker: Worker, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._worker = worker

    def reducer_override(self, value: Any) -> Any:  # called for what is no number, no text and no container
        name = self._worker.name(value)
        return NotImplemented if name is None else (named_value, (name,))


def _hello(sock: socket.socket, frames: Frames) -> tuple[dict[str, bool], int]:
    """Return the guards of a process, and its number, which the kernel vouches for."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    size = struct.calcsize("3i")
    frames.wait()
    text, extra, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(size))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    if not text:
        raise Ended
    process = next((struct.unpack("3i", data[:size])[0] for _, _, data in extra), 0)
    return dict(json.loads(text)), process
