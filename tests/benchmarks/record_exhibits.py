"""Run all exhibits of chapter 15, and store which checks fire as ``dpbook/data/measurements/museum.json``.

It takes minutes: python -m tests.benchmarks.record_exhibits
"""

import json

from dpbook.book.ch15.collection import exhibits
from dpbook.book.ch15.exhibit_runs import bad, verdicts
from dpbook.book.ch15.pictures import CAUSE, CONSEQUENCE, RECORDED
from dpbook.core import write_atomically


def record_exhibits() -> None:
    """Run all exhibits, uncured, and store their table as the recording."""
    matrix = {
        name: {line.name: CONSEQUENCE if line.because else CAUSE for line in bad(lines)}
        for name, lines in verdicts(exhibits()).items()
    }
    write_atomically(RECORDED, (json.dumps(matrix, indent=1) + "\n").encode())


if __name__ == "__main__":
    record_exhibits()
