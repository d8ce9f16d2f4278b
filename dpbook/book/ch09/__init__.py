"""Chapter 09: Real processes. Logs of the collective calls of all ranks in a step, of which one rank's differ."""

from collections.abc import Sequence
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
    """Draw a step on 3 or more ranks, with a fault of this kind on one rank, at the last possible call if ``last``."""
    step = _step(rng)
    logs = [[dict(call) for call in step] for _ in range(world)]
    rank = int(rng.integers(world))
    places: Sequence[int] = range(len(step))
    if kind == "order":
        places = [k for k in places[:-1] if step[k] != step[k + 1]]
    elif kind == "source":
        places = [k for k in places if step[k]["call"] == "broadcast"]
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
    return LoggedStep(_numbered(logs, rng), None if kind is None else (rank, first, kind))


def like_the_next(rng: np.random.Generator, world: int) -> LoggedStep:
    """Draw a rank with a call that has the shape of the next one; its order is right, since the next one follows."""
    step = [all_reduce(SHAPES[k], 0) for k in rng.permutation(len(SHAPES))]
    logs = [[dict(call) for call in step] for _ in range(world)]
    rank, at = int(rng.integers(world)), int(rng.integers(len(step) - 1))
    logs[rank][at]["shape"] = step[at + 1]["shape"]
    return LoggedStep(_numbered(logs, rng), (rank, at, "shape"))


def _step(rng: np.random.Generator) -> Log:
    """Draw broadcasts and all-reduces in random order, one of them twice in a row."""
    shapes = [SHAPES[k] for k in rng.permutation(len(SHAPES))]
    calls = [broadcast(shapes[0], 0), broadcast(shapes[1], 0), *(all_reduce(shape, 0) for shape in shapes)]
    step = [calls[k] for k in rng.permutation(len(calls))]
    twice = int(rng.integers(len(step)))
    return [*step[:twice], step[twice], *step[twice:]]


def _numbered(logs: list[Log], rng: np.random.Generator) -> list[Log]:
    """Give the calls line numbers. Ranks may make the same call on different branches."""
    for log in logs:
        line = 10
        for call in log:
            line += int(rng.integers(1, 5))
            call["line"] = line
    return logs


def mistakes() -> dict[str, list[Log]]:
    """Return the logs of six common mistakes, on three ranks each, by their names."""
    shapes = [(10, 64), (10,), (64, 784), (64,)]
    backward = [first, second, third, last] = [all_reduce(shape, 31) for shape in shapes]
    start = [broadcast(shape, 12) for shape in shapes]
    usual = [*start, broadcast((64,), 45)]
    return {
        "one batch fewer": [[last] * 3, [last] * 3, [last] * 2],
        "no gradient for a layer that one rank did not use": [backward, [first, second, last], backward],
        "gradients sent as they become ready": [backward, [first, third, second, last], backward],
        "a label that only rank 0 has seen": [[all_reduce((11, 64), 31), second, third, last], backward, backward],
        "broadcast from oneself": [usual, [*start, broadcast((64,), 47, source=1)], usual],
        "one rank in half precision": [backward, backward, [first, second, third, all_reduce((64,), 31, "float16")]],
    }
