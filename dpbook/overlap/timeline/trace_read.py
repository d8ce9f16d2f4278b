"""A trace of a real run, from ``torch.profiler``, as a timeline.

What becomes of torch's events:

| event | kind |
|---|---|
| a kernel with a name of NCCL's (`trace_names`) | communication |
| any other kernel, a memset, a copy within a device | computation |
| a copy between host and device | copy |
| ``gloo:all_reduce`` and its like, on gloo's threads | communication |
| ``c10d::…`` and the launch of a kernel, on the CPU | launch |
| the outermost ``aten::`` or other operator of a thread, where the trace has no kernels | computation |

Operators of the CPU nest, and the outermost counts. Kernels do not: on Hopper one may begin before the one before it
on its stream has ended (programmatic launches). The name of a computation begins with its phase, where the trace tells
it (`trace_phases`).
A collective's span holds its waiting for the other ranks; `split_waits` sets it apart where all ranks are there.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from dpbook.core import InvalidArgument
from dpbook.overlap.timeline.merging import merge
from dpbook.overlap.timeline.spans import Kind, Span, Timeline
from dpbook.overlap.timeline.trace_names import (
    BOOKKEEPING,
    CALLS,
    COLLECTIVE,
    GLOO,
    HOST_AND_DEVICE,
    LAUNCHES,
    NCCL,
    ON_DEVICE,
    STEP,
)
from dpbook.overlap.timeline.trace_phases import Phases
from dpbook.overlap.timeline.trace_write import FORMAT, VERSION

Event: TypeAlias = dict[str, Any]

LANES: dict[Kind, str] = {"computation": "compute"}
"""The lane of a kind, where it is not named like it."""


def read_profile(path: str | os.PathLike[str], step: int | None = None) -> Timeline:
    """Read a trace that ``torch.profiler`` exported, or that `write_trace` wrote; plain or compressed.

    Args:
        path: of the file.
        step: n, for the window of ``ProfilerStep#n`` and what starts in it; by default the whole trace. Where the trace
            has kernels it is the window on the device, which works on a step later than the CPU launches it.

    Returns:
        A timeline that starts at 0 (of `write_trace`'s files, the very same one). The rank is the trace's own, 0 where
        it names none. A lane is a stream or a thread: "compute", "compute 2", … in the order in which they appear.

    Raises:
        InvalidArgument: there is no such file or it is damaged, it is no trace, it has no such step, or nothing in it
            is computation or communication.
    """
    return read_profiles([path], step)


def read_profiles(paths: Iterable[str | os.PathLike[str]], step: int | None = None) -> Timeline:
    """Read the traces of several ranks of one run into one timeline, on a common clock.

    The clocks are taken to agree, as those of one machine do; `Timeline.shifted` moves one that does not.
    Arguments and errors are those of `read_profile`; besides, two traces must not be of one rank.
    """
    loaded = [(Path(path), _load(Path(path))) for path in paths]
    if not loaded:
        raise InvalidArgument("paths", [], "one path or more")
    own = [_is_own(path, data) for path, data in loaded]
    if all(own):
        return merge(_read_own(path, data) for path, data in loaded)
    if any(own):
        raise InvalidArgument("paths", [str(p) for p, _ in loaded], "all from torch.profiler, or all from write_trace")
    base = loaded[0][1].get("baseTimeNanoseconds", 0)
    traces = [_Trace.of(path, data, base) for path, data in loaded]
    windows = [trace.window(step) for trace in traces]
    origin = min(start for start, _ in windows)
    return merge(trace.timeline(window, origin) for trace, window in zip(traces, windows, strict=True))


class _Event(NamedTuple):
    kind: Kind
    thread: object
    start: float
    end: float
    name: str
    on_device: bool


@dataclass(frozen=True)
class _Trace:
    """torch's events that have a kind, and the steps that the profiler marked; times in microseconds."""

    path: Path
    rank: int
    events: list["_Event"]
    steps: dict[int, tuple[float, float]]

    @classmethod
    def of(cls, path: Path, data: Event, base: int) -> "_Trace":
        late = (data.get("baseTimeNanoseconds", base) - base) / 1000  # the origins of two files may differ
        complete = [event for event in data["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
        timed = [(event, *_times(path, event, late)) for event in complete]
        on_device = any(event.get("cat") == "kernel" for event in complete)
        on_host, found, phases = {}, [], Phases(complete)
        on_streams: dict[int, tuple[float, float]] = {}
        for event, start, end in sorted(timed, key=lambda t: (t[1], -t[2])):
            name, category = str(event.get("name")), event.get("cat")
            if name.startswith(STEP) and category == "user_annotation":
                on_host[_number(name)] = start, end
            elif name.startswith(STEP) and category == "gpu_user_annotation":  # one for each of its streams
                first, last = on_streams.get(_number(name), (start, end))
                on_streams[_number(name)] = min(first, start), max(last, end)
            if kind := _kind(event, on_device):
                name = f"{phases.of(event)} {name}".strip() if kind == "computation" else name
                thread = event.get("pid"), event.get("tid")
                found.append(_Event(kind, thread, start, end, name, category in ON_DEVICE))
        if not {"computation", "communication"} & {event.kind for event in found}:
            raise InvalidArgument("path", str(path), "a trace with computation or communication in it")
        rank = data.get("distributedInfo", {}).get("rank", 0)
        return cls(path, rank, list(_outermost(found)), on_host | on_streams)

    def window(self, step: int | None) -> tuple[float, float]:
        if step is None:
            return self.events[0].start, max(event.end for event in self.events)
        if step not in self.steps:
            there = ", ".join(map(str, sorted(self.steps))) or "none: it was recorded without a schedule"
            raise InvalidArgument("step", step, f"a step in {self.path.name} ({there})")
        return self.steps[step]

    def timeline(self, window: tuple[float, float], origin: float) -> Timeline:
        lanes: dict[tuple[Kind, object], str] = {}
        counts: dict[Kind, int] = {}
        spans = []
        for kind, thread, start, end, name, _ in self.events:
            if (kind, thread) not in lanes:
                counts[kind] = counts.get(kind, 0) + 1
                number = f" {counts[kind]}" if counts[kind] > 1 else ""
                lanes[kind, thread] = LANES.get(kind, kind) + number
            if window[0] <= start < window[1]:
                seconds = ((t - origin) / 1e6 for t in (start, end))
                spans.append(Span(name, self.rank, lanes[kind, thread], kind, *seconds))
        start, end = ((t - origin) / 1e6 for t in window)
        return Timeline(tuple(spans), (start, end))


def _number(name: str) -> int:
    return int(name.removeprefix(STEP))


def _kind(event: Event, on_device: bool) -> Kind | None:
    """What an event of torch's is, or None for one that holds others or says nothing about time."""
    name, category = str(event.get("name")), event.get("cat")
    if category == "kernel":
        return "communication" if name.startswith(NCCL) else "computation"
    if category in ON_DEVICE:
        return "copy" if any(way in name for way in HOST_AND_DEVICE) else "computation"
    if category in CALLS:
        return "launch" if name.startswith(LAUNCHES) else None
    if category == "user_annotation":
        return "communication" if name.startswith(GLOO) else None
    if category != "cpu_op" or "::" not in name or name.startswith(BOOKKEEPING):
        return None
    if name.startswith(COLLECTIVE):
        return "launch"
    return None if on_device else "computation"


def _outermost(events: Sequence[_Event]) -> Iterator[_Event]:
    """Drop what runs inside another event of its thread of the CPU. ``events`` are sorted, of equal starts the longer
    first."""
    until: dict[object, float] = {}
    for event in events:
        before = until.get(event.thread, -float("inf"))
        if event.on_device or event.start >= before or event.end > before:
            until[event.thread] = max(before, event.end)
            yield event


def _times(path: Path, event: Event, late: float) -> tuple[float, float]:
    start, duration = event.get("ts"), event.get("dur", 0)
    if not isinstance(start, int | float) or not isinstance(duration, int | float) or duration < 0:
        raise InvalidArgument("path", str(path), f"a trace whose events have a ts and a dur, unlike {event!r:.60}")
    return start + late, start + late + duration


def _load(path: Path) -> Event:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        data = json.loads(content)
    except OSError as error:
        raise InvalidArgument("path", str(path), f"a file that can be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise InvalidArgument("path", str(path), "a whole file; this one's compression is damaged") from None
    except ValueError as error:
        raise InvalidArgument("path", str(path), f"a trace in JSON ({error})") from None
    if isinstance(data, list):  # the format allows the events alone
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise InvalidArgument("path", str(path), 'a Chrome trace, with a list "traceEvents"')
    return data


def _is_own(path: Path, data: Event) -> bool:
    about = data.get("otherData")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        return False
    if about.get("version") != VERSION:
        raise InvalidArgument("path", str(path), f"of version {VERSION}, not {about.get('version')!r}")
    return True


def _read_own(path: Path, data: Event) -> Timeline:
    try:
        spans = tuple(
            Span(e["name"], e["pid"], a["lane"], e["cat"], a["start_s"], a["end_s"], a.get("ready_s"))
            for e in data["traceEvents"]
            if e["ph"] == "X" and (a := e["args"])
        )
        start, end = data["otherData"]["window_s"]
        return Timeline(spans, (start, end))
    except InvalidArgument:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument("path", str(path), f"as write_trace wrote it ({error!r})") from None
