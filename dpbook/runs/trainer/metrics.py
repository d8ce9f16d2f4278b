"""Metrics of a run: one JSON object per line, appended by rank 0 and read back by the report."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE, DESCRIPTION, PREDICTION, REPORT = "metrics.jsonl", "run.json", "prediction.json", "report.html"
"""In the folder of a run: a line per step; what was run, where; what the simulator says of a step; all of it shown."""
PARTS = ("computing", "summing", "updating")
"""Of a step: until a rank's own gradients are there, until their sum is, and until the weights are new."""


class Metrics:
    """Rank 0's file of metrics. What a run that was ended wrote after ``resumed_at`` is dropped: it is done again."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        kept = [line for line in read(folder) if line["step"] <= resumed_at] if resumed_at else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def append(self, **values: Any) -> None:
        """Add a line; it is in the file when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run, one per step; one that was cut off by the end of the process is left out, or is no line."""
    path = folder / FILE
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict) and "step" in line]
