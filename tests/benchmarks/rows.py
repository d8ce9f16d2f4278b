"""What the benchmarks print: a line for the machine, and a row per measurement with its median, spread and goal."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np

from dpbook.core import machine

WIDTH = 76  # of the first column


class Row(NamedTuple):
    what: str
    values: list[float]
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        middle, goals = median(self.values), []
        if self.at_least is not None:
            goals.append(f"≥ {self.at_least:g}: {'met' if middle >= self.at_least else 'MISSED'}")
        if self.at_most is not None:
            goals.append(f"≤ {self.at_most:g}: {'met' if middle <= self.at_most else 'MISSED'}")
        goal = ", ".join(goals) or "–"
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}"
        return f"{self.what:<{WIDTH}}{middle:>9.2f} {self.unit:<4}{spread:>19}   {goal}"


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def begin(doc: str, repeats: int) -> int:
    """Read ``--repeats`` from the command line, print the head of the table, and return the number."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"how often each is measured (default {repeats})")
    repeats = max(1, parser.parse_args().repeats)
    print(f"{datetime.date.today()}, {machine.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{platform.platform()}, Python {platform.python_version()}, NumPy {np.__version__}; {repeats} repeats\n")
    print(f"{'':<{WIDTH}}{'median':>9}     {'least to most':>19}   goal")
    return repeats
