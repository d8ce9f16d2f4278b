"""What each rank of a step calls, written down, with one rank that does something else than the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Call = dict[str, Any]
"""``call``, ``source`` (None where it has none), ``shape``, ``dtype``, and the ``line`` that makes it."""
Log = list[Call]

KINDS = ("skipped", "order", "source", "shape", "dtype")
SHAPES = ((10,), (64,), (10, 64), (64, 784))


@dataclass(frozen=True)
class Case:
    """The logs of all ranks, and ``fault``: (rank, position, kind), or None."""

    logs: list[Log]
    fault: tuple[int, int, str] | None


def all_reduce(shape: tuple[int, ...], line: int, dtype: str = "float32") -> Call:
    return {"call": "all_reduce", "source": None, "shape": shape, "dtype": dtype, "line": line}


def broadcast(shape: tuple[int, ...], line: int, source: int = 0) -> Call:
    return {"call": "broadcast", "source": source, "shape": shape, "dtype": "float32", "line": line}


def draw(rng: np.random.Generator, world: int, kind: str | None, last: bool = False) -> Case:
    """A step of some calls on ``world`` ranks, 3 or more, of which a random one has a fault of this kind, or none.

    With ``last`` it is at the last call at which there can be one.
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
    return Case(logs, None if kind is None else (rank, first, kind))


def like_the_next(rng: np.random.Generator, world: int) -> Case:
    """A rank that makes a call with the shape of the next one: no exchange, since it makes the next one too."""
    step = [all_reduce(SHAPES[k], 0) for k in rng.permutation(len(SHAPES))]
    logs = [[dict(call) for call in step] for _ in range(world)]
    rank, at = int(rng.integers(world)), int(rng.integers(len(step) - 1))
    logs[rank][at]["shape"] = step[at + 1]["shape"]
    for log in logs:
        _number(log, rng)
    return Case(logs, (rank, at, "shape"))


def _places(step: Log, kind: str | None) -> list[int]:
    """The calls at which there can be a fault of this kind."""
    if kind == "order":
        return [k for k in range(len(step) - 1) if step[k] != step[k + 1]]
    return [k for k, call in enumerate(step) if kind != "source" or call["call"] == "broadcast"]


def _step(rng: np.random.Generator) -> Log:
    """Broadcasts and all-reduces in any order, a few of them equal to the one before."""
    shapes = [SHAPES[k] for k in rng.permutation(len(SHAPES))]
    calls = [broadcast(shapes[0], 0), broadcast(shapes[1], 0), *(all_reduce(shape, 0) for shape in shapes)]
    step = [calls[k] for k in rng.permutation(len(calls))]
    twice = int(rng.integers(len(step)))
    return [*step[:twice], step[twice], *step[twice:]]


def _number(log: Log, rng: np.random.Generator) -> None:
    """Give the calls their lines. Ranks may come to the same call from different branches."""
    line = 10
    for call in log:
        line += int(rng.integers(1, 5))
        call["line"] = line


def mistakes() -> dict[str, list[Log]]:
    """Six mistakes that are easily made, on three ranks each: what was done, and the logs."""
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
