"""Calls of an answer in another interpreter, whose strings have other hashes, as those of another rank have."""

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dpbook.classroom.tasks.answer import Answer, Wrong, call, is_stub, where_apart
from dpbook.classroom.tasks.plain_data import plain
from dpbook.core import own_modules, pickle_by_value

START_SECONDS = 60.0
"""Seconds on the clock for an interpreter to start, on a busy machine, and to make the calls."""
Calls = Sequence[tuple[Any, ...]]


def call_each(answer: Answer, calls: Calls, *, where: str = "", other_interpreter: bool = False) -> list[Any]:
    """Return the answer's result for each of ``calls``, all made in one process, one after another.

    With ``other_interpreter`` that is another one than in all other calls: it shares no memory with them, and hashes
    strings differently. They may take as long as the check in all. Raises what `call` raises.
    """
    through = _call_elsewhere if other_interpreter else _call_here
    returned: list[Any] = call(answer, calls, through=through, seconds=math.inf, where=where, by_hand=tuple(calls[-1]))
    return returned


@where_apart(lambda function, calls: function.each(calls, False))
def _call_here(function: Callable[..., Any], calls: Calls) -> list[Any]:
    return [function(*args) for args in calls]


@where_apart(lambda function, calls: function.each(calls, True))
def _call_elsewhere(function: Callable[..., Any], calls: Calls) -> Any:
    pickled = pickle_by_value("answer", (function, calls), function, modules=own_modules())
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import make_calls; make_calls()"],
        input=pickle.dumps((list(sys.path), pickled)), capture_output=True, timeout=START_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": hashes},
    )  # fmt: skip
    if done.returncode:
        raise Wrong("a result", f"its process ended with exit status {done.returncode}")
    returned, error = pickle.loads(done.stdout)
    if error is not None:
        raise Wrong("a result, no error", f"{error} in a second interpreter", cause=error)
    return returned


def make_calls() -> None:
    """Make the calls that come on the standard input, and write what they returned, or the error, in its place."""
    result = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the answer prints is no result
    path, pickled = pickle.load(sys.stdin.buffer)
    sys.path[:] = path
    try:
        function, calls = pickle.loads(pickled)
        outcome: tuple[Any, str | None] = plain(_call_here(function, calls)), None
    except Exception as error:
        if is_stub(error):
            raise
        outcome = None, f"{type(error).__name__}: {error}"
    with result:
        pickle.dump(outcome, result)
