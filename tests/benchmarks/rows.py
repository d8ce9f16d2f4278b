"""Rows that the benchmarks print: a line for the machine, and a row per measurement with median, spread and goal.

``python -m tests.benchmarks`` names a file in the variable ``ROWS``: rows with a goal are also written to it.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from dpbook.core import machine

WIDTH = 76  # of the first column
ROWS = "DPBOOK_BENCHMARK_ROWS"  # the variable of the environment that names a file of JSON lines


class Load:
    """Whether other work runs on this machine: what is measured then says little.

    Every core is given a sum to do, in a thread that holds no lock. Where one takes longer by the clock than it
    computes the core was another's for a while.
    """

    def __init__(self) -> None:
        self.before = False

    def since(self) -> bool:
        """Whether there was some when this was last asked, or is now."""
        before, self.before = self.before, median(slowdown() for _ in range(3)) > BUSY
        return before or self.before


def slowdown() -> float:
    """Ratio of the slowest core's time for a sum to the fastest core's."""
    with ThreadPoolExecutor(machine.cores()) as pool:
        return max(pool.map(lambda _: _spin(), range(machine.cores())))


def _spin() -> float:
    clock, computing = time.perf_counter(), time.thread_time()
    hashlib.sha256(SUM)
    return (time.perf_counter() - clock) / (time.thread_time() - computing)


BUSY = 1.2
SUM = bytes(2**25)
LOAD = Load()


@dataclass
class Row:
    """A row of the table; made when its ``values`` have just been measured."""

    name: str
    values: list[float]
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    headline: bool = False  # whether the README's table has it
    under_load: bool = field(default_factory=LOAD.since)

    def __str__(self) -> str:
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}"
        goal = self.goal() or ("under load" if self.under_load else "–")
        return f"{self.name:<{WIDTH}}{median(self.values):>9.2f} {self.unit:<4}{spread:>19}   {goal}"

    def goal(self) -> str:
        """Return the bounds, and whether the median meets them."""
        middle, missed = median(self.values), "under load" if self.under_load else "MISSED"
        goals = []
        if self.at_least is not None:
            goals.append(f"≥ {self.at_least:g}: {'met' if middle >= self.at_least else missed}")
        if self.at_most is not None:
            goals.append(f"≤ {self.at_most:g}: {'met' if middle <= self.at_most else missed}")
        return ", ".join(goals)


def show(row: Row) -> None:
    """Print a row; write it to the file of ``ROWS`` where it has a goal."""
    print(row, flush=True)
    if (path := os.environ.get(ROWS)) and (row.at_least, row.at_most) != (None, None):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row) | {"name": row.name.strip()}) + "\n")


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def begin(doc: str, repeats: int) -> int:
    """Read ``--repeats`` from the command line, print the head of the table, and return the number."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"how often each is measured (default {repeats})")
    repeats = max(1, parser.parse_args().repeats)
    LOAD.since()
    print(f"{datetime.date.today()}, {machine.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{platform.platform()}, Python {platform.python_version()}, NumPy {np.__version__}; {repeats} repeats\n")
    print(f"{'':<{WIDTH}}{'median':>9}     {'least to most':>19}   goal")
    return repeats
