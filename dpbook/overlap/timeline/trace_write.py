"""A timeline as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

The format is Google's "Trace Event Format": a process for each rank, a thread for each lane, microseconds.
"""

import gzip
import json
import os
from pathlib import Path
from typing import Any

from dpbook.core import check_type, write_atomically
from dpbook.overlap.timeline.spans import Timeline

FORMAT = "dpbook.trace"
VERSION = 1


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace as data for `json.dumps`.

    Each event carries its times in seconds too, exactly: microseconds as floats would not come back to the last bit.
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
    about = {"format": FORMAT, "version": VERSION, "window_s": [timeline.start, timeline.end]}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the trace to ``path``, compressed where that ends in ".gz", and return the path."""
    target = Path(path)
    content = json.dumps(chrome_trace(timeline)).encode()
    write_atomically(target, gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
    return target
