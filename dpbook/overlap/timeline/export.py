"""Timelines as JSON with a format version, and as Chrome traces, which https://ui.perfetto.dev opens.

Chrome's format is Google's "Trace Event Format": a process for each rank, a thread for each lane, microseconds.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

from dpbook.core import InvalidArgument, check_type, parse, write_atomically
from dpbook.overlap.timeline.spans import Span, Timeline

TIMELINE_FORMAT, TIMELINE_VERSION = "dpbook.timeline", 1


def to_json(timeline: Timeline) -> str:
    """Return a timeline as JSON; `from_json` restores it exactly."""
    check_type("timeline", timeline, Timeline, "a Timeline")
    spans = [
        [s.name, int(s.rank), s.lane, s.kind, float(s.start), float(s.end), *([] if s.ready is None else [s.ready])]
        for s in timeline.spans
    ]
    return json.dumps(
        {"format": TIMELINE_FORMAT, "version": TIMELINE_VERSION, "window": timeline.window, "spans": spans}
    )


def from_json(text: str) -> Timeline:
    """Return the timeline that `to_json` wrote. Raises `InvalidArgument` for any other text."""
    data = parse(text, TIMELINE_FORMAT, TIMELINE_VERSION)
    try:
        return Timeline(tuple(Span(*fields) for fields in data["spans"]), tuple(data["window"]))
    except InvalidArgument:
        raise
    except (KeyError, TypeError) as error:
        raise InvalidArgument(
            "text", repr(error), "a complete timeline; a field is missing or has a wrong type"
        ) from None


TRACE_FORMAT, TRACE_VERSION = "dpbook.trace", 1


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
