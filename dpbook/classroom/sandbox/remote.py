"""What stands for an answer's functions, generators and objects: what they do is done in their process."""

from collections.abc import Generator
from typing import Any, Protocol


class Asks(Protocol):
    """A `worker.Worker`."""

    def request(self, what: str, *given: Any) -> Any: ...


class RemoteObject:
    """An object of the answer: what it has and does is asked of its process."""

    def __init__(self, worker: Asks, number: int, methods: frozenset[str]) -> None:
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

    def __init__(self, worker: Asks, number: int, methods: frozenset[str]) -> None:
        self._worker, self._number = worker, number

    def send(self, value: Any) -> Any:
        what, result = self._worker.request("send", self, value)
        if what == "yielded":
            return result
        raise StopIteration(result)

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """It ends with its process."""
