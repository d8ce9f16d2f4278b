"""One family of errors, and checks of arguments. Each message names the value and what was expected."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dpbook.core.quantities import listed, shortened

T = TypeVar("T")


class DpbookError(Exception):
    """Base class of every error that dpbook raises on purpose."""


class InvalidArgument(DpbookError, ValueError):
    """An argument has a value that the function does not accept."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name} must be {expected}, got {shortened(repr(value))}")
        self.name, self.value, self.expected = name, value, expected


class UnitsError(DpbookError, ValueError):
    """A quantity has an impossible value in its unit; most likely it was given in another unit."""


class ScheduleError(DpbookError):
    """A schedule breaks a rule of schedules, or does not compute the result that it promises."""


class Deadlock(DpbookError):
    """Every running rank waits for a message that no rank will send."""


class MessageError(DpbookError):
    """The two ends of a message do not agree on its length or dtype."""


class RankFailed(DpbookError):
    """One rank raised an error, hung or died; the others were stopped."""


class ReplicasDiffer(DpbookError):
    """Ranks that must have equal state differ."""


class UnusedParameters(DpbookError):
    """Trained parameters got no gradient in a backward whose gradients are averaged."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"no gradient for {listed(names)}: the loss of this rank does not depend on what is trained. "
            "Freeze it (requires_grad=False), use it, or wrap the module with find_unused=True"
        )


def check_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int, or raise `InvalidArgument` if it is no integer or out of range."""
    expected = f"an integer of at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum or (maximum is not None and number > maximum):
        raise InvalidArgument(name, value, expected)
    return number


def check_type(name: str, value: Any, kind: type[T] | tuple[type[T], ...], expected: str) -> T:
    """Return ``value`` if it is an instance of ``kind``, or raise `InvalidArgument`."""
    if not isinstance(value, kind):
        raise InvalidArgument(name, value, expected)
    return value


def check_each(name: str, values: Any, kind: type[T]) -> tuple[T, ...]:
    """Return ``values`` as a tuple, or raise `InvalidArgument` unless it is a non-empty sequence of ``kind``."""
    if not isinstance(values, Sequence) or not values:
        raise InvalidArgument(name, values, f"a sequence of one or more {kind.__name__}")
    return tuple(check_type(f"{name}[{k}]", value, kind, f"a {kind.__name__}") for k, value in enumerate(values))


def check_one_of(name: str, value: Any, known: Iterable[object]) -> None:
    """Raise `InvalidArgument` unless ``value`` is one of ``known``."""
    if value not in (choices := list(known)):
        raise InvalidArgument(name, value, f"one of {', '.join(map(str, choices))}")


def check_float(
    name: str, value: Any, *, minimum: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> float:
    """Return ``value`` as a finite float in the given range, or raise `InvalidArgument`.

    The result is a plain float, not NumPy's: a float64 scalar would turn float32 arrays into float64.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (minimum <= number < below and number > above):
        bounds = [
            *([f"above {above:g}"] if math.isfinite(above) else []),
            *([f"of at least {minimum:g}"] if math.isfinite(minimum) else []),
            *([f"below {below:g}"] if math.isfinite(below) else []),
        ]
        raise InvalidArgument(name, value, f"a finite number {' and '.join(bounds)}".rstrip())
    return number
