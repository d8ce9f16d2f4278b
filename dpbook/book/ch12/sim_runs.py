"""Functions of a notebook that run on the stand-in accelerator; where torch cannot have it, their recording is played.

A recording is kept anew by every call while the environment names its file as ``DPBOOK_RECORD``.
"""

import inspect
import json
import os
import platform
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from dpbook.book import sim
from dpbook.core import DATA, DpbookError, check_int, machine, parse, write_atomically
from dpbook.ranks import start

RECORD = DATA / "measurements" / "gpu_clock.json"
FORMAT, VERSION = "dpbook.on_sim", 1
KEEP = "DPBOOK_RECORD"
Function = Callable[..., Any]


def on_sim(ranks: int = 1) -> Callable[[Function], Callable[[], Any]]:
    """Let a function run on the stand-in, in a process of its own for each of ``ranks`` ranks, when it is called.

    One rank is called without arguments, and what it returns is returned. Several are called with their number, in a
    group that serves CPU and device; a list of what they return is returned. All of it passes through JSON.

    Where `sim.missing` says so, what was recorded is returned. Raises `DpbookError` there for a function that is
    not, to the letter, the one that was recorded; elsewhere what `ranks.start` raises.
    """
    check_int("ranks", ranks, 1)

    def prepared(function: Function) -> Callable[[], Any]:
        def call() -> Any:
            source = inspect.getsource(function)
            if reason := sim.missing():
                return played(function.__name__, source, reason)
            results = start(_on_this_rank, [(function, rank, ranks) for rank in range(ranks)])
            plain = json.loads(json.dumps(results if ranks > 1 else results[0]))
            if path := os.environ.get(KEEP):
                _keep(Path(path), function.__name__, source, plain)
            return plain

        return call

    return prepared


def _on_this_rank(function: Function, rank: int, world: int) -> Any:
    if world == 1:
        sim.install()
        return function()
    sim.join()
    return function(rank)


def whereabouts() -> str:
    """Whether the stand-in runs here, and with what; or when and where that was recorded which is played."""
    if reason := sim.missing():
        made = recording()["made"]
        return f"{reason}.\nThe cells play what was recorded: {', '.join(made.values())}."
    return f"The stand-in runs here: {', '.join(_here().values())}."


@cache
def recording(path: Path = RECORD) -> dict[str, Any]:
    """What is kept in a file: ``made`` says where and when, ``results`` holds source and result by function."""
    return parse(path.read_text(encoding="utf-8"), FORMAT, VERSION)


def played(name: str, source: str, reason: str) -> Any:
    """The recorded result of a function with this source. Raises `DpbookError`, with the ``reason``, for any other."""
    kept = recording()["results"].get(name, {})
    if kept.get("source") != source.splitlines():
        raise DpbookError(f"{name} is not what was recorded, and cannot run here: {reason}")
    return kept["result"]


def _keep(path: Path, name: str, source: str, result: Any) -> None:
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"results": {}}
    kept["results"][name] = {"source": source.splitlines(), "result": result}
    about = {"format": FORMAT, "version": VERSION, "made": _here()}
    write_atomically(path, (json.dumps(about | {"results": kept["results"]}, indent=1) + "\n").encode())


def _here() -> dict[str, str]:
    import torch

    return {
        "machine": f"{machine.processor()} with {machine.cores()} cores",
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
        "date": str(date.today()),
    }
