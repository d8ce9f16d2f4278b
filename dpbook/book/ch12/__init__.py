"""Chapter 12: Trace and scale, and beside it 12b: A GPU's clock.

The lost time of a step, and functions that run on the stand-in accelerator. Where torch cannot have it, recorded
results are returned. While the environment variable `DPBOOK_RECORD` names a file, every call records its result there.
"""

import inspect
import json
import os
import platform
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpbook.book import sim
from dpbook.core import (
    DATA,
    DpbookError,
    InvalidArgument,
    check_int,
    lazy_exports,
    machine,
    milliseconds,
    parse,
    plural,
    write_atomically,
)
from dpbook.figures import Picture, Viewer
from dpbook.figures.steps import MOST_TIMELINES, draw_until, from_zero
from dpbook.overlap import Span, Timeline, split_waits
from dpbook.overlap.timeline import difference, length, union
from dpbook.ranks import start

if TYPE_CHECKING:
    from dpbook.book.ch12.own_step import measure_parts, measure_updates

__getattr__ = lazy_exports(__name__, measure_parts="own_step", measure_updates="own_step")  # with torch


class Loss(NamedTuple):
    """Seconds of one rank's step without computation; with the computation they make up the step.

    Attributes:
        transfer: bytes move.
        waiting: the rank is in a collective that not all ranks have entered, and no other collective moves bytes.
        idle: the rank is in no collective, for example because it waits for its input.
    """

    transfer: float
    waiting: float
    idle: float


def time_lost(timeline: Timeline) -> dict[int, Loss]:
    """Return the loss of every rank. The timeline needs all ranks of the run, on one clock.

    A collective's span may include its waiting, as in a profiler's trace, or the waiting may be a span of its own.
    Raises `InvalidArgument` if the ranks have different numbers of collectives: see `split_waits`.
    """
    split = split_waits(timeline)
    losses = {}
    for rank in split.ranks:
        transfer = split.exposed(rank)
        moving = union([*split.when("computation", rank), *split.when("communication", rank)])
        waiting = length(difference(split.when("wait", rank), moving))
        losses[rank] = Loss(transfer, waiting, split.idle(rank) - transfer - waiting)
    return losses


MIN_WAITING = 0.05
"""Share of the step below which waiting needs no diagnosis."""


def play_diagnosis(timeline: Timeline) -> Viewer:
    """Step through the diagnosis of a step of 2 to 8 ranks, rank 0 among them, whose collectives include their waiting.

    The first picture shows rank 0 as its own profiler does, the second all ranks on one clock, and the third separates
    the waiting for peers from the collectives. Raises `InvalidArgument` for other timelines.
    """
    ranks = timeline.ranks if isinstance(timeline, Timeline) else ()
    if not 2 <= len(ranks) <= MOST_TIMELINES or ranks[0] != 0:
        raise InvalidArgument("timeline", timeline, f"a Timeline of 2 to {MOST_TIMELINES} ranks, from rank 0 on")
    if timeline.busy("communication", 0) == 0:
        raise InvalidArgument("timeline", timeline, "one in which rank 0 communicates")
    views = _views(timeline)
    return Viewer(lambda after: views[after], len(views) - 1, "look")


def _views(timeline: Timeline) -> list[Picture]:
    """Draw rank 0 alone, all ranks, and all ranks with the waiting separated."""
    exposed = milliseconds(timeline.exposed(0))
    alone = f"A slow network? Rank 0 alone: {exposed} of {milliseconds(timeline.duration)} are exposed"
    shortest = min(timeline.ranks, key=lambda rank: timeline.busy("communication", rank))
    here, there = (milliseconds(timeline.busy("communication", rank)) for rank in (0, shortest))
    together = f"All ranks: in the same collectives rank 0 spends {here}, rank {shortest} {there}"
    split, lost = split_waits(timeline), time_lost(timeline)
    separated = f"The bytes need {milliseconds(split.busy('communication', 0))}; {_verdict(timeline, lost)}"
    parts = {rank: " + ".join(f"{1e3 * max(s, 0):.3g}" for s in loss) for rank, loss in lost.items()}  # rounding: -0
    losses = " · ".join(f"rank {rank} {loss} ms" for rank, loss in parts.items())
    views = (
        ({"rank 0": from_zero(timeline, 0)}, alone, _unexplained(timeline, (0,))),
        (_ranks(timeline), together, _unexplained(timeline, timeline.ranks)),
        (_ranks(split), separated, f"transfer + waiting + idle: {losses}"),
    )
    return [draw_until(lines, title, meters=m) for lines, title, m in views]


def _verdict(timeline: Timeline, lost: dict[int, Loss]) -> str:
    """Say which rank the others wait for, and what that rank does meanwhile."""
    longest = max(loss.waiting for loss in lost.values())
    if longest < MIN_WAITING * timeline.duration:
        return f"no rank waits for more than {milliseconds(longest)}"
    last = min(lost, key=lambda rank: lost[rank].waiting)
    computes = {rank: timeline.busy("computation", rank) for rank in timeline.ranks}
    if lost[last].idle < computes[last] - min(computes.values()):
        return f"the ranks wait for rank {last}: it computes for {milliseconds(computes[last])}"
    return f"the ranks wait for rank {last}: it is without work for {milliseconds(lost[last].idle)}"


def _ranks(timeline: Timeline) -> dict[str, Timeline]:
    return {f"rank {rank}": from_zero(timeline, rank) for rank in timeline.ranks}


def _unexplained(timeline: Timeline, ranks: tuple[int, ...]) -> str:
    exposed = (f"rank {rank} {milliseconds(timeline.exposed(rank))}" for rank in ranks)
    return f"in collectives and not computing: {' · '.join(exposed)}"


def sim_timeline(
    kernels: Sequence[Sequence[Any]], names: Sequence[str], begun: float, waits: Sequence[tuple[float, float]] = ()
) -> Timeline:
    """Return a timeline with a row for the host and one for each stream.

    Args:
        kernels: kernels as `sim.watch` lists them: name, stream, seconds launched, begun and ended.
        names: labels of the kernels, in the order of their launches; `InvalidArgument` for another number of them.
        begun: start of the host's work, in seconds.
        waits: intervals in which the host waited for the device. A launch lasts from the host's last activity.
    """
    if len(names) != len(kernels):
        raise InvalidArgument("names", names, f"one for each of {plural(len(kernels), 'kernel')}")
    host = [Span("waits", 0, "host", "wait", begin, end) for begin, end in waits]
    device, free = [], begun
    for name, (operation, _, launched, begin, end) in zip(names, sorted(kernels, key=lambda k: k[2]), strict=True):
        free = max([free, *(end for _, end in waits if end <= launched)])
        host.append(Span("launch", 0, "host", "launch", free, launched))
        if operation.startswith("c10d::"):  # a collective of torch.distributed
            device.append(Span(name, 0, "communication", "communication", begin, end, ready=launched))
        else:
            device.append(Span(name, 0, "compute stream", "computation", begin, end, ready=launched))
        free = launched
    return Timeline((*host, *device), (begun, max(span.end for span in (*host, *device))))


RECORD = DATA / "measurements" / "gpu_clock.json"
FORMAT, VERSION = "dpbook.on_sim", 1
RECORD_VARIABLE = "DPBOOK_RECORD"
Function = Callable[..., Any]


def on_sim(ranks: int = 1) -> Callable[[Function], Callable[[], Any]]:
    """Decorate a function to run on the stand-in accelerator, in a new process for each of ``ranks`` ranks.

    One rank is called without arguments, and its result is returned. Several are called with their rank numbers, in a
    group that serves CPU and device, and the list of their results is returned. Results pass through JSON.

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
