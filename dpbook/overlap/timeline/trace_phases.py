"""Which phase of the step an event of torch's belongs to, by the events that hold it."""

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from typing import Any

from dpbook.overlap.timeline.trace_names import CALLS, PHASES, RECORDED


class Phases:
    """The phases that ``events`` mark, all of one trace and complete. A kernel has that of its launch."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._marks: dict[object, list[tuple[float, float, str]]] = {}
        self._launches: dict[object, dict[str, Any]] = {}
        for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0))):
            if event.get("cat") in CALLS and "correlation" in event.get("args", {}):
                self._launches[event["args"]["correlation"]] = event
            marks = self._marks.setdefault(_thread(event), [])
            if (phase := _marked(event)) and (not marks or event["ts"] >= marks[-1][1]):  # of nested ones the outermost
                marks.append((event["ts"], event["ts"] + event.get("dur", 0), phase))

    def of(self, event: dict[str, Any]) -> str:
        """The phase of an event, "" where nothing says it."""
        launch = self._launches.get(event.get("args", {}).get("correlation"), event)
        marks = self._marks.get(_thread(launch), [])
        place = bisect_right(marks, (launch["ts"], inf, "")) - 1
        return marks[place][2] if place >= 0 and launch["ts"] < marks[place][1] else ""


def _marked(event: dict[str, Any]) -> str:
    """The phase that an event holds, "" if none."""
    name = str(event.get("name"))
    recorded = "forward" if event.get("cat") == "cpu_op" and RECORDED in event.get("args", {}) else ""
    return next((phase for start, phase in PHASES.items() if name.startswith(start)), recorded)


def _thread(event: dict[str, Any]) -> object:
    return event.get("pid"), event.get("tid")
