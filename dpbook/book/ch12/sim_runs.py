"""Functions of a notebook that run on the stand-in accelerator, and the timeline of its streams.

Where torch cannot have the accelerator, recorded results are returned. While the environment variable `DPBOOK_RECORD`
names a file, every call records its result there.
"""

import inspect
import json
import os
import platform
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from dpbook.book import sim
from dpbook.core import DATA, DpbookError, InvalidArgument, check_int, machine, parse, plural, write_atomically
from dpbook.overlap import Kind, Span, Timeline
from dpbook.ranks import start

HOST = "host"
LANES: dict[Kind, str] = {"computation": "compute stream", "communication": "communication"}
COLLECTIVES = "c10d::"
"""Prefix of the names of torch.distributed's kernels."""


def sim_timeline(
    kernels: Sequence[Sequence[Any]], names: Sequence[str], begun: float, waits: Sequence[tuple[float, float]] = ()
) -> Timeline:
    """Return a timeline with a row for the host and one for each stream.

    Args:
        kernels: kernels as `sim.watch` lists them: name, stream, seconds launched, begun and ended.
        names: labels of the kernels, in the order of their launches.
        begun: start of the host's work, in seconds.
        waits: intervals in which the host waited for the device. A launch lasts from the host's last activity.

    Raises:
        InvalidArgument: the numbers of kernels and names differ.
    """
    if len(names) != len(kernels):
        raise InvalidArgument("names", names, f"one for each of {plural(len(kernels), 'kernel')}")
    host = [Span("waits", 0, HOST, "wait", begin, end) for begin, end in waits]
    device, free = [], begun
    for name, (operation, _, launched, begin, end) in zip(names, sorted(kernels, key=lambda k: k[2]), strict=True):
        free = max([free, *(end for _, end in waits if end <= launched)])
        host.append(Span("launch", 0, HOST, "launch", free, launched))
        kind: Kind = "communication" if operation.startswith(COLLECTIVES) else "computation"
        device.append(Span(name, 0, LANES[kind], kind, begin, end, ready=launched))
        free = launched
    return Timeline((*host, *device), (begun, max(span.end for span in (*host, *device))))


RECORD = DATA / "measurements" / "gpu_clock.json"
FORMAT, VERSION = "dpbook.on_sim", 1
RECORD_VARIABLE = "DPBOOK_RECORD"
Function = Callable[..., Any]


def on_sim(ranks: int = 1) -> Callable[[Function], Callable[[], Any]]:
    """Decorate a function to run on the stand-in accelerator, in a new process for each of ``ranks`` ranks.

    One rank is called without arguments, and its result is returned. Several are called with their numbers, in a group
    that serves CPU and device, and the list of their results is returned. Results pass through JSON.

    If `sim.missing` gives a reason, the recorded result is returned. `DpbookError` is then raised if the function's
    source differs from the recorded one; otherwise `ranks.start` raises its errors.
    """
    check_int("ranks", ranks, 1)

    def prepared(function: Function) -> Callable[[], Any]:
        def call() -> Any:
            source = inspect.getsource(function)
            if reason := sim.missing():
                return recorded_result(function.__name__, source, reason)
            results = start(_on_this_rank, [(function, rank, ranks) for rank in range(ranks)])
            plain = json.loads(json.dumps(results if ranks > 1 else results[0]))
            if path := os.environ.get(RECORD_VARIABLE):
                _record(Path(path), function.__name__, source, plain)
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
    """Return where the results come from: this machine, or the machine and the date of the recording."""
    if reason := sim.missing():
        return f"{reason}.\nThe cells play what was recorded: {', '.join(recording()['made'].values())}."
    return f"The stand-in runs here: {', '.join(_environment().values())}."


@cache
def recording(path: Path = RECORD) -> dict[str, Any]:
    """Return a recording: ``made`` describes its machine and date, ``results`` has source and result by function."""
    return parse(path.read_text(encoding="utf-8"), FORMAT, VERSION)


def recorded_result(name: str, source: str, reason: str) -> Any:
    """Return the recorded result of a function with this source. Raises `DpbookError`, with ``reason``, for others."""
    record = recording()["results"].get(name, {})
    if record.get("source") != source.splitlines():
        raise DpbookError(f"{name} is not what was recorded, and cannot run here: {reason}")
    return record["result"]


def _record(path: Path, name: str, source: str, result: Any) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else {}
    results[name] = {"source": source.splitlines(), "result": result}
    about = {"format": FORMAT, "version": VERSION, "made": _environment()}
    write_atomically(path, (json.dumps(about | {"results": results}, indent=1) + "\n").encode())


def _environment() -> dict[str, str]:
    import torch

    return {
        "machine": f"{machine.processor()} with {machine.cores()} cores",
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
        "date": str(date.today()),
    }
