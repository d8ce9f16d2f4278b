"""Chapter 09: Real processes.

Logs of the collective calls of all ranks in a step, in which one rank differs from the others.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Call = dict[str, Any]
"""A call with ``call``, ``source`` (None if it has none), ``shape``, ``dtype``, and the ``line`` of the script."""
Log = list[Call]

KINDS = ("skipped", "order", "source", "shape", "dtype")
SHAPES = ((10,), (64,), (10, 64), (64, 784))


@dataclass(frozen=True)
class LoggedStep:
    """Logs of all ranks, and the ``fault``: (rank, position, kind), or None."""

    logs: list[Log]
    fault: tuple[int, int, str] | None


def all_reduce(shape: tuple[int, ...], line: int, dtype: str = "float32") -> Call:
    return {"call": "all_reduce", "source": None, "shape": shape, "dtype": dtype, "line": line}


def broadcast(shape: tuple[int, ...], line: int, source: int = 0) -> Call:
    return {"call": "broadcast", "source": source, "shape": shape, "dtype": "float32", "line": line}


def draw(rng: np.random.Generator, world: int, kind: str | None, last: bool = False) -> LoggedStep:
    """Draw a step of some calls on ``world`` ranks, 3 or more; a random rank has a fault of this kind, if any.

    With ``last`` the fault is at the last possible call.
    """
    step = _step(rng)
    logs = [[dict(call) for call in step] for _ in range(world)]
    rank, places = int(rng.integers(world)), _places(step, kind)
    at = places[-1] if last else int(rng.choice(places))
    log = logs[rank]
    if kind == "skipped":
        del log[at]
    elif kind == "order":
        log[at], log[at + 1] = log[at + 1], log[at]
    elif kind == "source":
        log[at]["source"] = rank or 1
    elif kind == "shape":
        log[at]["shape"] = (*log[at]["shape"][:-1], log[at]["shape"][-1] + 1)
    elif kind == "dtype":
        log[at]["dtype"] = "float16"
    first = next((k for k, call in enumerate(step) if k == len(log) or log[k] != call), 0)
    for log in logs:
        _number(log, rng)
    return LoggedStep(logs, None if kind is None else (rank, first, kind))


def like_the_next(rng: np.random.Generator, world: int) -> LoggedStep:
    """Draw a rank with a call that has the shape of the next one; its order is right, since the next one follows."""
    step = [all_reduce(SHAPES[k], 0) for k in rng.permutation(len(SHAPES))]
    logs = [[dict(call) for call in step] for _ in range(world)]
    rank, at = int(rng.integers(world)), int(rng.integers(len(step) - 1))
    logs[rank][at]["shape"] = step[at + 1]["shape"]
    for log in logs:
        _number(log, rng)
    return LoggedStep(logs, (rank, at, "shape"))


def _places(step: Log, kind: str | None) -> list[int]:
    """Return the calls at which a fault of this kind is possible."""
    if kind == "order":
        return [k for k in range(len(step) - 1) if step[k] != step[k + 1]]
    return [k for k, call in enumerate(step) if kind != "source" or call["call"] == "broadcast"]


def _step(rng: np.random.Generator) -> Log:
    """Draw broadcasts and all-reduces in random order, one of them twice in a row."""
    shapes = [SHAPES[k] for k in rng.permutation(len(SHAPES))]
    calls = [broadcast(shapes[0], 0), broadcast(shapes[1], 0), *(all_reduce(shape, 0) for shape in shapes)]
    step = [calls[k] for k in rng.permutation(len(calls))]
    twice = int(rng.integers(len(step)))
    return [*step[:twice], step[twice], *step[twice:]]


def _number(log: Log, rng: np.random.Generator) -> None:
    """Give the calls line numbers. Ranks may make the same call on different branches."""
    line = 10
    for call in log:
        line += int(rng.integers(1, 5))
        call["line"] = line


def mistakes() -> dict[str, list[Log]]:
    """Return the logs of six common mistakes, on three ranks each, by their names."""
    layers = [(10, 64), (10,), (64, 784), (64,)]

    def backward() -> Log:
        return [all_reduce(shape, 31) for shape in layers]

    def start() -> Log:
        return [broadcast(shape, 12) for shape in layers]

    ready = backward()
    ready[1], ready[2] = ready[2], ready[1]
    eleven = backward()
    eleven[0] = all_reduce((11, 64), 31)
    steps = [all_reduce((64,), 31) for _ in range(3)]
    best = [*start(), broadcast((64,), 47, source=1)]
    half = backward()
    half[3] = all_reduce((64,), 31, "float16")
    return {
        "one batch fewer": [steps, steps, steps[:-1]],
        "no gradient for a layer that one rank did not use": [backward(), backward()[:2] + backward()[3:], backward()],
        "gradients sent as they become ready": [backward(), ready, backward()],
        "a label that only rank 0 has seen": [eleven, backward(), backward()],
        "broadcast from oneself": [[*start(), broadcast((64,), 45)], best, [*start(), broadcast((64,), 45)]],
        "one rank in half precision": [backward(), backward(), half],
    }
