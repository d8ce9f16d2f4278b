"""What does `dpbook launch --report` cost? Steps of the small GPT on 2 ranks, with its hooks and without, in turn.

python tests/benchmarks/bench_report.py [--repeats 40]

In each turn two models train for some steps in the same ranks, one with the hooks of a report and one without; which
comes first alternates. A value is the ratio of the medians of their steps in one turn, by the clock and in processor
time of rank 0, which other work on the machine changes less.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpbook.ranks import start
from tests.benchmarks.rows import Row, begin, show

WORLD, WARMUP, STEPS = 2, 3, 8


def ratios(turns: int) -> list[tuple[float, float]]:
    """Return the watched step over the plain one for each turn, by the clock and in processor time; in a rank."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for turn in range(turns):
            order = (True, False) if turn % 2 else (False, True)
            seconds = {watched: step(Path(folder, str(turn)), watched=watched) for watched in order}
            clock, cpu = (one / other for one, other in zip(seconds[True], seconds[False], strict=True))
            found.append((clock, cpu))
    return found


def step(folder: Path, *, watched: bool) -> tuple[float, float]:
    """Return the median seconds of a step, and of its processor time."""
    import torch
    import torch.distributed as dist

    from dpbook.runs.trainer import Options, Trainer
    from dpbook.runs.watching.installation import record_moments

    recorder: Any = None
    if watched:
        recorder = record_moments(folder, dist.get_rank(), WORLD, {"sampled": True})
    try:
        trainer, seconds = Trainer(Options(out=str(folder)), torch.device("cpu")), []
        for _ in range(WARMUP + STEPS):
            begun, computed = time.perf_counter(), time.process_time()
            trainer.train_step()
            seconds.append((time.perf_counter() - begun, time.process_time() - computed))
        clock, cpu = zip(*seconds[WARMUP:], strict=True)
        return median(clock), median(cpu)
    finally:
        if recorder is not None:
            recorder.close()


def main() -> None:
    repeats = begin(__doc__, repeats=40)
    values = start(ratios, [(repeats,)] * WORLD, timeout=900)[0]
    for name, ratio in zip(("by the clock", "in processor time"), zip(*values, strict=True), strict=True):
        text = f"small GPT on 2 ranks: hooks of a report, {name}"
        show(Row(text, [100 * (value - 1) for value in ratio], "%", at_most=3, headline=name == "in processor time"))


if __name__ == "__main__":
    main()
