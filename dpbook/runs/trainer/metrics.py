"""Metrics of a run: one JSON object per line, appended by rank 0 and read back by the report."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE, DESCRIPTION, PREDICTION, REPORT = "metrics.jsonl", "run.json", "prediction.json", "report.html"
"""Files in the folder of a run: metrics, description, predicted step, report."""
PARTS = ("computing", "summing", "updating")
"""Parts of a step: until the local gradients are ready, until they are summed, and until the weights are updated."""


class Metrics:
    """Rank 0's file of metrics. Lines after the step ``resumed_at`` are dropped, because these steps run again."""

    def __init__(self, folder: Path, resumed_at: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        valid = [line for line in read(folder) if line["step"] <= resumed_at] if resumed_at else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in valid), encoding="utf-8")

    def append(self, **values: Any) -> None:
        """Append a line to the file before returning."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run; a line that was cut off when the process was killed is skipped."""
    path = folder / FILE
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict) and "step" in line]
