"""Metrics of a run, JSON lines that rank 0 appends, and those of its baseline on one process."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbook.core import machine, temporary_folder
from dpbook.runs.launch import Launch, launch
from dpbook.runs.trainer.options import Options
from dpbook.runs.watching import JOURNAL, read_lines, with_hooks

FILE, DESCRIPTION, PREDICTION, REPORT = "metrics.jsonl", "run.json", "prediction.json", "report.html"
"""Files in the folder of a run: metrics, description, predicted step, report."""


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
    return [line for line in read_lines(folder / FILE) if isinstance(line, dict) and "step" in line]


ALONE = "alone"
"""Folder of the run on one process, in the folder of a run or of a report."""
STEPS_ALONE = 30


def train_alone(options: Options, nproc: int, report: Callable[[str], None]) -> bool:
    """Train with ``options`` on one process, and save its metrics in the run's folder; return False if it failed.

    The process has as many cores as each of the ``nproc`` ranks of a machine had, and the batch of one rank.
    """
    with temporary_folder("alone") as folder:
        alone = replace(
            options, out=str(folder), name=ALONE, all_reduce="torch", steps=STEPS_ALONE, save_every=0, predict=False,
            profile=0,
        )  # fmt: skip
        program = ("-m", "dpbook.runs.trainer", *alone.to_arguments())
        spec = Launch(program, 1, threads=max(1, machine.cores() // nproc))
        ended = launch(with_hooks(spec, alone.folder, {"sampled": True}, moments=True), report)
        if ended.status == 0:
            target = options.folder / ALONE
            target.mkdir(exist_ok=True)
            for file in (DESCRIPTION, FILE, JOURNAL.format(0)):
                shutil.copyfile(alone.folder / file, target / file)
        return ended.status == 0
