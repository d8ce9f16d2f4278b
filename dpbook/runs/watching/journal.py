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
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dpbook.core import PACKAGE

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


_OTHERS = (
    str(PACKAGE) + os.sep, sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("purelib") + os.sep,
    sysconfig.get_path("platlib") + os.sep, "<",
)  # fmt: skip
"""How the files begin that are not the script's."""
PATIENCE = 20.0
"""Seconds for which a rank that has seen enough waits for the others."""
SEEN = "enough-{}"


class Enough(SystemExit):
    """Ends a script whose updates have been seen."""


@dataclass(frozen=True)
class Wanted:
    """What is to be watched: ``updates`` of an optimizer before the script is ended (0: until its own end), of these
    each ``every``-th; ``replay``: the update of which the gradients of all ranks are kept (0: none); ``saving``: let
    the script go on after its last update until the next one begins, so that it may save.
    """

    updates: int = 5
    every: int = 1
    replay: int = 0
    saving: bool = False
    keep: int = 0
    """The update after which the parameters themselves are kept (0: none)."""
    timeout: float = 0.0
    """Seconds for which a collective may wait, where the script does not say it itself (0: torch's own)."""
    state: bool = False
    """Whether the optimizer's state is hashed too, which takes twice as long as the parameters."""


class Recorder:
    """Writes the journal of ``rank`` in ``folder``. Watchers register what they change, and `undo` takes it back."""

    def __init__(self, folder: Path, rank: int, wanted: Wanted) -> None:
        self.folder, self.rank, self.wanted = folder, rank, wanted
        self.active = True
        self.spent = 0.0
        self._journal = Journal(folder, rank)
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._last = time.perf_counter()

    def note(self, kind: str, **fields: Any) -> None:
        """Write an event."""
        self._journal.note(kind, **fields)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What is done inside is counted as the cost of watching, and if it fails the script does not."""
        begun = time.perf_counter()
        self._depth += 1
        try:
            yield
        except Exception as error:
            self.note("trouble", error=f"{type(error).__name__}: {error}")
        finally:
            self._depth -= 1
            if not self._depth:
                self.spent += time.perf_counter() - begun

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(old)`` in the place of ``owner.name``."""
        before = getattr(owner, name)
        setattr(owner, name, make(before))
        self.later(lambda: setattr(owner, name, before))

    def later(self, undo: Callable[[], None]) -> None:
        """``undo`` is called at the end."""
        self._undo.append(undo)

    def begin_update(self, update: int) -> None:
        """The ``update``-th is being prepared from now on: is it one of those that are watched?"""
        self.active = update <= 1 or update % self.wanted.every == 0

    def end_update(self, update: int) -> None:
        """Write what watching it cost."""
        now = time.perf_counter()
        self.note("cost", update=update, watching=self.spent, seconds=now - self._last)
        self._last, self.spent = now, 0.0

    def enough(self, world: int) -> None:
        """End the script when all ranks have come so far: one that leaves early may take a message with it."""
        (self.folder / SEEN.format(self.rank)).touch()
        seen = [self.folder / SEEN.format(rank) for rank in range(world)]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not all(path.exists() for path in seen):
            time.sleep(0.01)
        raise Enough(0)

    def close(self, how: str) -> None:
        """Take back every change, and write how the script ended."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self.note("end", how=how)
        self._journal.close()


def place() -> list[Any] | None:
    """The line of the script from which this was called: [file, line, text], or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS):
            text = linecache.getline(name, frame.f_lineno).strip()
            return [_relative(name), frame.f_lineno, text]
        frame = frame.f_back
    return None


def _relative(name: str) -> str:
    inside = os.path.relpath(name)
    return name if inside.startswith("..") else inside
