"""Which phase of the step an event of torch's belongs to, by the events that hold it."""

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from typing import Any

MARKS = {
    "DistributedDataParallel.forward": "forward",
    "autograd::engine::evaluate_function": "backward",
    "Optimizer.step": "optimizer",
}
"""What the names of events begin with that hold a phase. (A model without a wrapper does not mark its forward.)"""


class Phases:
    """The phases that ``events`` mark, all of one trace and complete. A kernel has that of its launch."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self._marks: dict[object, list[tuple[float, float, str]]] = {}
        self._launches: dict[object, dict[str, Any]] = {}
        for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0))):
            if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {}):
                self._launches[event["args"]["correlation"]] = event
            phase = next((p for start, p in MARKS.items() if str(event.get("name")).startswith(start)), None)
            marks = self._marks.setdefault(_thread(event), [])
            if phase and (not marks or event["ts"] >= marks[-1][1]):  # of nested ones the outermost
                marks.append((event["ts"], event["ts"] + event.get("dur", 0), phase))

    def of(self, event: dict[str, Any]) -> str:
        """The phase of an event, "" where nothing says it."""
        launch = self._launches.get(event.get("args", {}).get("correlation"), event)
        marks = self._marks.get(_thread(launch), [])
        place = bisect_right(marks, (launch["ts"], inf, "")) - 1
        return marks[place][2] if place >= 0 and launch["ts"] < marks[place][1] else ""


def _thread(event: dict[str, Any]) -> object:
    return event.get("pid"), event.get("tid")
