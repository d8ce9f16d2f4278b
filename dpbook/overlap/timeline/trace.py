"""Traces of real runs from ``torch.profiler``, read into timelines, and timelines written as traces.

Events of torch become spans of these kinds:

| event | kind |
|---|---|
| a kernel with a name of NCCL's, a copy from one device to another | communication |
| any other kernel, a memset, a copy within a device | computation |
| a copy between host and device | copy |
| ``gloo:all_reduce`` and the like, on gloo's threads | communication |
| ``c10d::…`` and the launch of a kernel or of a CUDA graph, on the CPU | launch |
| the outermost ``aten::`` or other operator of a thread, where the trace has no kernels | computation |

Operators of the CPU nest, and the outermost counts. Kernels do not nest: on Hopper a kernel may begin before the
previous one on its stream has ended (programmatic launches). The name of a computation begins with its phase, where the
trace shows it (`Phases`).
The span of a collective includes its waiting for the other ranks; `split_waits` separates it where all ranks are there.

`write_trace` writes Chrome's format, Google's "Trace Event Format", which https://ui.perfetto.dev opens: a process for
each rank, a thread for each lane, microseconds. Traces and step times of real machines lie in the package.
"""

import gzip
import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from dpbook.core import DATA, InvalidArgument, check_type, write_atomically
from dpbook.overlap.timeline.spans import Kind, Span, Timeline, merge

TRACE_FORMAT, TRACE_VERSION = "dpbook.trace", 1
NCCL_PREFIXES = ("ncclDevKernel", "ncclKernel", "ncclSymk", "ncclSymDevKernel")
"""Prefixes of NCCL's kernels: since 2.19, before 2.19, and since 2.27 for kernels on memory that all GPUs of a node map
at the same address."""
GLOO_PREFIX = "gloo:"
"""Prefix of the annotation of a collective on gloo's threads."""
COLLECTIVE_PREFIX = "c10d::"
"""Prefix of the operator that launches a collective."""
LAUNCH_PREFIXES = (
    "cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel",
    "cudaGraphLaunch", "hipGraphLaunch",
)  # fmt: skip
"""Prefixes of calls that launch a kernel, or a graph of kernels; the rest of the name is the variant."""
BOOKKEEPING_PREFIXES = ("autograd::", "torch::autograd::")
"""Namespaces of operators that contain others, or only pass gradients on."""
HOST_DEVICE_COPIES = ("HtoD", "DtoH")
"""Parts of the names of copies between host and device."""
DEVICE_TO_DEVICE_COPY = "PtoP"
"""Part of the name of a copy from one device to another ("peer to peer")."""
STEP_PREFIX = "ProfilerStep#"
"""Prefix of the profiler's name of a step, before its number."""
PHASE_PREFIXES = {
    "DistributedDataParallel.forward": "forward",
    "autograd::engine::evaluate_function": "backward",
    "Optimizer.step": "optimizer",
}
"""Phases by the prefix of the event that contains them."""
AUTOGRAD_ARGUMENT = "Sequence number"
"""Argument that the profiler gives to each operator recorded by autograd; outside of backward it marks forward."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that run on a device."""
CALL_CATEGORIES = ("cuda_runtime", "cuda_driver")
"""Categories of calls to a device; traces of AMD GPUs use these names too."""


Event: TypeAlias = dict[str, Any]


class Phases:
    """Phases of the step, from all complete ``events`` of one trace. A kernel has the phase of its launch."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._marks: dict[object, list[tuple[float, float, str]]] = {}
        self._launches: dict[object, Event] = {}
        for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0))):
            if event.get("cat") in CALL_CATEGORIES and "correlation" in event.get("args", {}):
                self._launches[event["args"]["correlation"]] = event
            marks, name = self._marks.setdefault(_thread(event), []), str(event.get("name"))
            by_autograd = event.get("cat") == "cpu_op" and AUTOGRAD_ARGUMENT in event.get("args", {})
            recorded = "forward" if by_autograd else ""
            phase = next((phase for start, phase in PHASE_PREFIXES.items() if name.startswith(start)), recorded)
            if phase and (not marks or event["ts"] >= marks[-1][1]):  # the outermost of nested ones
                marks.append((event["ts"], event["ts"] + event.get("dur", 0), phase))

    def of(self, event: Event) -> str:
        """Return the phase of an event, "" if no event around it marks one."""
        launch = self._launches.get(event.get("args", {}).get("correlation"), event)
        marks = self._marks.get(_thread(launch), [])
        place = bisect_right(marks, (launch["ts"], inf, "")) - 1
        return marks[place][2] if place >= 0 and launch["ts"] < marks[place][1] else ""


def _thread(event: Event) -> object:
    return event.get("pid"), event.get("tid")


LANE_NAMES: dict[Kind, str] = {"computation": "compute"}
"""Lanes by kind, for kinds whose lane has another name."""


def read_profile(path: str | os.PathLike[str], step: int | None = None) -> Timeline:
    """Read a trace that ``torch.profiler`` exported, or that `write_trace` wrote; plain or compressed.

    Args:
        path: path of the file.
        step: n, for the window of ``ProfilerStep#n`` and all events that start in it; by default the whole trace. If
            the trace has kernels, the window is that of the device, which runs a step later than the CPU launches it.

    Returns a timeline that starts at 0; for a file of `write_trace`, the timeline that was written. The rank is that of
    the trace, 0 if it names none. Lanes are streams or threads: "compute", "compute 2", … in order of appearance.
    Raises `InvalidArgument` if the file is missing, damaged or no trace, has no such step, or neither computation nor
    communication.
    """
    return read_profiles([path], step)


def read_profiles(paths: Iterable[str | os.PathLike[str]], step: int | None = None) -> Timeline:
    """Read the traces of several ranks of one run into one timeline, on a common clock.

    The clocks are taken to agree, as on one machine; `Timeline.shifted` moves a timeline whose clock does not.
    Arguments and errors are those of `read_profile`. Two traces of the same rank also raise `InvalidArgument`.
    """
    loaded = [(Path(path), _load(Path(path))) for path in paths]
    if not loaded:
        raise InvalidArgument("paths", [], "one path or more")
    written_here = [_is_from_write_trace(path, data) for path, data in loaded]
    if all(written_here):
        return merge(_timeline_of(path, data) for path, data in loaded)
    if any(written_here):
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
    """Events of one trace that have a kind, and the steps that the profiler marked; times in microseconds."""

    path: Path
    rank: int
    events: list["_Event"]
    steps: dict[int, tuple[float, float]]

    @classmethod
    def of(cls, path: Path, data: Event, base: int) -> "_Trace":
        offset = (data.get("baseTimeNanoseconds", base) - base) / 1000  # the origins of two files may differ
        complete = [event for event in data["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
        timed = [(event, *_times(path, event, offset)) for event in complete]
        on_device = any(event.get("cat") == "kernel" for event in complete)
        on_host, events, phases = {}, [], Phases(complete)
        on_streams: dict[int, tuple[float, float]] = {}
        for event, start, end in sorted(timed, key=lambda t: (t[1], -t[2])):
            name, category = str(event.get("name")), event.get("cat")
            step = int(name.removeprefix(STEP_PREFIX)) if name.startswith(STEP_PREFIX) else None
            if step is not None and category == "user_annotation":
                on_host[step] = start, end
            elif step is not None and category == "gpu_user_annotation":  # one event for each stream
                first, last = on_streams.get(step, (start, end))
                on_streams[step] = min(first, start), max(last, end)
            if kind := _kind(event, on_device):
                name = f"{phases.of(event)} {name}".strip() if kind == "computation" else name
                events.append(_Event(kind, _thread(event), start, end, name, category in DEVICE_CATEGORIES))
        if not {"computation", "communication"} & {event.kind for event in events}:
            raise InvalidArgument("path", str(path), "a trace with computation or communication in it")
        rank = data.get("distributedInfo", {}).get("rank", 0)
        return cls(path, rank, list(_outermost(events)), on_host | on_streams)

    def window(self, step: int | None) -> tuple[float, float]:
        if step is None:
            return self.events[0].start, max(event.end for event in self.events)
        if step not in self.steps:
            known = ", ".join(map(str, sorted(self.steps))) or "none: it was recorded without a schedule"
            raise InvalidArgument("step", step, f"a step in {self.path.name} ({known})")
        return self.steps[step]

    def timeline(self, window: tuple[float, float], origin: float) -> Timeline:
        lanes: dict[tuple[Kind, object], str] = {}
        counts: dict[Kind, int] = {}
        spans = []
        for kind, thread, start, end, name, _ in self.events:
            if (kind, thread) not in lanes:
                counts[kind] = counts.get(kind, 0) + 1
                number = f" {counts[kind]}" if counts[kind] > 1 else ""
                lanes[kind, thread] = LANE_NAMES.get(kind, kind) + number
            if window[0] <= start < window[1]:
                seconds = ((t - origin) / 1e6 for t in (start, end))
                spans.append(Span(name, self.rank, lanes[kind, thread], kind, *seconds))
        start, end = ((t - origin) / 1e6 for t in window)
        return Timeline(tuple(spans), (start, end))


def _kind(event: Event, on_device: bool) -> Kind | None:
    """Return the kind of a torch event, or None if it contains others or takes no time of its own."""
    name, category = str(event.get("name")), event.get("cat")
    if category == "kernel":
        return "communication" if name.startswith(NCCL_PREFIXES) else "computation"
    if category in DEVICE_CATEGORIES and DEVICE_TO_DEVICE_COPY in name:
        return "communication"
    if category in DEVICE_CATEGORIES:
        return "copy" if any(way in name for way in HOST_DEVICE_COPIES) else "computation"
    if category in CALL_CATEGORIES:
        return "launch" if name.startswith(LAUNCH_PREFIXES) else None
    if category == "user_annotation":
        return "communication" if name.startswith(GLOO_PREFIX) else None
    if category != "cpu_op" or "::" not in name or name.startswith(BOOKKEEPING_PREFIXES):
        return None
    if name.startswith(COLLECTIVE_PREFIX):
        return "launch"
    return None if on_device else "computation"


def _outermost(events: Sequence[_Event]) -> Iterator[_Event]:
    """Yield ``events``, sorted by start, the longer first, except those inside another of the same CPU thread."""
    until: dict[object, float] = {}
    for event in events:
        before = until.get(event.thread, -float("inf"))
        if event.on_device or event.start >= before or event.end > before:
            until[event.thread] = max(before, event.end)
            yield event


def _times(path: Path, event: Event, offset: float) -> tuple[float, float]:
    start, duration = event.get("ts"), event.get("dur", 0)
    if not isinstance(start, int | float) or not isinstance(duration, int | float) or duration < 0:
        raise InvalidArgument("path", str(path), f"a trace whose events have a ts and a dur, unlike {event!r:.60}")
    return start + offset, start + offset + duration


def _load(path: Path) -> Event:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        data = json.loads(content)
    except OSError as error:
        raise InvalidArgument("path", str(path), f"a file that can be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise InvalidArgument("path", str(path), "a complete file; its compressed data is damaged") from None
    except ValueError as error:
        raise InvalidArgument("path", str(path), f"a trace in JSON ({error})") from None
    if isinstance(data, list):  # the format allows the events alone
        data = {"traceEvents": data}
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise InvalidArgument("path", str(path), 'a Chrome trace, with a list "traceEvents"')
    return data


def _is_from_write_trace(path: Path, data: Event) -> bool:
    about = data.get("otherData")
    if not isinstance(about, dict) or about.get("format") != TRACE_FORMAT:
        return False
    if about.get("version") != TRACE_VERSION:
        raise InvalidArgument("path", str(path), f"of version {TRACE_VERSION}, not {about.get('version')!r}")
    return True


def _timeline_of(path: Path, data: Event) -> Timeline:
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


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as a Chrome trace, as data for `json.dumps`.

    Each event also has its exact times in seconds, since microseconds as floats would lose bits.
    """
    check_type("timeline", timeline, Timeline, "a Timeline")
    events: list[dict[str, Any]] = []
    threads: dict[tuple[int, str], int] = {}
    for rank in timeline.ranks:
        events.append({"ph": "M", "name": "process_name", "pid": int(rank), "tid": 0, "args": {"name": f"rank {rank}"}})
        for tid, lane in enumerate(timeline.lanes(rank)):
            threads[rank, lane] = tid
            events.append({"ph": "M", "name": "thread_name", "pid": int(rank), "tid": tid, "args": {"name": lane}})
    events += (
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "pid": int(span.rank),
            "tid": threads[span.rank, span.lane],
            "ts": float(span.start) * 1e6,
            "dur": float(span.duration) * 1e6,
            "args": {"start_s": float(span.start), "end_s": float(span.end), "lane": span.lane}
            | ({} if span.ready is None else {"ready_s": float(span.ready)}),
        }
        for span in timeline.spans
    )
    about = {"format": TRACE_FORMAT, "version": TRACE_VERSION, "window_s": [timeline.start, timeline.end]}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the Chrome trace to ``path``, compressed if the name ends in ".gz", and return the path."""
    target = Path(path)
    content = json.dumps(chrome_trace(timeline)).encode()
    write_atomically(target, gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
    return target


@dataclass(frozen=True)
class StepRecord:
    """Step times over a slow link in milliseconds, several of each, and the predictions of the simulator.

    ``emulated`` and ``real`` are by wrapper, over an emulated link and a real one of the same speed; ``predicted`` and
    ``measured`` by bucket cap in MiB. ``about`` has the machine, versions, date, link and model.
    """

    emulated: Mapping[str, tuple[float, ...]]
    real: Mapping[str, tuple[float, ...]]
    predicted: Mapping[float, tuple[float, ...]]
    measured: Mapping[float, tuple[float, ...]]
    about: Mapping[str, Any]

    def error(self, cap: float) -> float:
        """Return the relative error of the median prediction at this cap: 0.1 is ten per cent too long."""
        return median(self.predicted[cap]) / median(self.measured[cap]) - 1

    def __repr__(self) -> str:
        worst = max((self.error(cap) for cap in self.predicted), key=abs)
        return (
            f"{len(self.emulated)} wrappers, {len(self.predicted)} caps, predictions off by {worst:+.1%} at worst\n"
            f"{self.about['machine']}, torch {self.about['torch']}, {self.about['date']}"
        )


def recorded_steps() -> StepRecord:
    """Read the record of ``tests/benchmarks/real_link.py`` that ships with the package."""
    record = json.loads((DATA / "measurements" / "slow_link.json").read_text(encoding="utf-8"))
    emulated, real = ({name: tuple(times) for name, times in record.pop(link).items()} for link in ("emulated", "real"))
    caps = record.pop("caps_mib")
    predicted, measured = (
        dict(zip(caps, map(tuple, record.pop(kind)), strict=True)) for kind in ("predicted", "measured")
    )
    return StepRecord(emulated, real, predicted, measured, record)


def recorded_traces() -> tuple[Path, ...]:
    """Return the trace files of a real run, rank 0's first, for `read_profiles` or Perfetto.

    The run is torch's DistributedDataParallel over gloo: two ranks on one machine, two steps.
    ``dpbook/data/traces/ddp_gloo.json`` names the model, the machine, the versions and the date.
    """
    return tuple(sorted((DATA / "traces").glob("ddp_gloo_rank*.json.gz")))
