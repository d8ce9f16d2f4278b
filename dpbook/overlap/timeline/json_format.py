"""Timelines as JSON, with a format version."""

import json

from dpbook.core import InvalidArgument, check_type, parse
from dpbook.overlap.timeline.spans import Span, Timeline

FORMAT = "dpbook.timeline"
VERSION = 1


def to_json(timeline: Timeline) -> str:
    """Write a timeline out; `from_json` gives the same one back."""
    check_type("timeline", timeline, Timeline, "a Timeline")
    spans = [
        [s.name, int(s.rank), s.lane, s.kind, float(s.start), float(s.end), *([] if s.ready is None else [s.ready])]
        for s in timeline.spans
    ]
    return json.dumps({"format": FORMAT, "version": VERSION, "window": timeline.window, "spans": spans})


def from_json(text: str) -> Timeline:
    """Read what `to_json` wrote. Raises `InvalidArgument` for anything else."""
    data = parse(text, FORMAT, VERSION)
    try:
        return Timeline(tuple(Span(*fields) for fields in data["spans"]), tuple(data["window"]))
    except InvalidArgument:
        raise
    except (KeyError, TypeError) as error:
        raise InvalidArgument(
            "text", repr(error), "a complete timeline; a field is missing or of a wrong type"
        ) from None
