"""One family of errors. Each message names the value and what was expected."""

from __future__ import annotations

import operator
from typing import Any


class DpbookError(Exception):
    """Base class of every error that dpbook raises on purpose."""


class InvalidArgument(DpbookError, ValueError):
    """An argument has a value that the function cannot work with."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{name} must be {expected}, got {shown}")


class ScheduleError(DpbookError):
    """A schedule breaks its own rules, or does not compute what it promises."""


class Deadlock(DpbookError):
    """Every rank that still runs waits for a message that cannot come."""


class MessageError(DpbookError):
    """The two ends of a message do not agree on its length or dtype."""


class RankFailed(DpbookError):
    """One rank raised, hung or died; the others were ended."""


def check_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int, or raise `InvalidArgument` if it is none or out of range."""
    expected = f"an integer of at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"
    if isinstance(value, bool):
        raise InvalidArgument(name, value, expected)
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(name, value, expected) from None
    if number < minimum or (maximum is not None and number > maximum):
        raise InvalidArgument(name, value, expected)
    return number
