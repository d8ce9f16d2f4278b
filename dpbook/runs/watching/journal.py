"""What a rank writes down while it is watched, and how it is read: one JSON object a line, with its ``kind``.

kind        written when                        fields
optimizer   before its first update             optimizer, name, names, group, wrappers, replicas, sharded, unwrapped,
                                                devices
forward     the model is called                 loader, rows, random, drawn, buffers, sync, wrapped, finite
backward    a loss is differentiated            losses, value, sync
clip        gradients are clipped               norm, most, scaled
scheduler   a learning-rate scheduler steps     scheduler, name
scaled      a gradient scaler multiplies a loss  factor
scaler      a gradient scaler is updated        scale
epoch       a loader gives its first batch      loader, batches, sampler, shuffle, epoch, replicas, examples,
                                                padded, part, order
collective  the script calls a collective       name, shape, dtype, graded
step        an optimizer is about to step       optimizer, update, gradients, infinite, own_infinite, missing,
                                                rates, before, held
stepped     it has                              optimizer, update, parameters, state, sent
cost        after an update                     update, watching, seconds
join        torch's Join is entered             –
trouble     watching itself failed              error
end         the rank ends                       how

``place`` is the script's line: [file, line, text]. A rank that is killed has written all that came before.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

JOURNAL = "journal-{}.jsonl"
"""The events of one rank, by its number."""
REPLAY_ARRAYS, FINAL_PARAMETERS = "replay-{}-{}.npz", "parameters-{}-{}.npz"
"""Gradients of a replay, and parameters at the end: by rank and optimizer."""
AUDIT_VARIABLE, FORECAST_VARIABLE = "DPBOOK_AUDIT", "DPBOOK_FORECAST"
"""Environment variables by which an audit or a forecast passes its request to the ranks, as JSON."""


def array_key(kind: str, name: str, line: str = "") -> str:
    """Return the key of an array in a rank's file: its kind, its parameter, and the line that called backward."""
    return f"{kind}|{line}|{name}"


class Journal:
    """The journal of one rank, for writing."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = open(folder / JOURNAL.format(rank), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._begun = time.perf_counter()

    def note(self, kind: str, **fields: Any) -> None:
        """Write one event; it is in the file when this returns."""
        self._file.write(json.dumps({"kind": kind, "at": time.perf_counter() - self._begun, **fields}) + "\n")

    def close(self) -> None:
        """No more is written."""
        self._file.close()


def read(folder: Path, rank: int) -> list[Event]:
    """The events of one rank, in their order; none where it has not begun."""
    path = folder / JOURNAL.format(rank)
    return list(_events(path)) if path.exists() else []


def _events(path: Path) -> Iterator[Event]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # the last one of a rank that was killed
            return
