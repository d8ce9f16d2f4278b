"""Journal of a rank: one JSON object in each line, with its ``kind``, for writing and reading.

kind        written when                        fields
optimizer   before its first update             optimizer, id, name, names, group, roots, wrappers, comm_hooks,
                                                replicas, sharded, unwrapped, devices
forward     the model is called                 number, loader, object, batch, rows, random, drawn, buffers, sync,
                                                wrapped, infinite, batch_norm, module
used        a loss is differentiated            forwards: numbers of those in its graph, unless noted before
backward    a loss is differentiated            losses, value, sync, line, gathered, coupled
clip        gradients are clipped               norm, most, scaled
scheduler   a learning-rate scheduler steps     scheduler, name, of, by_accelerate
scaled      a gradient scaler multiplies a loss  factor
scaler      a gradient scaler is updated        scale
epoch       a loader gives its first batch      loader, batches, sampler, shuffle, epoch, replicas, examples,
                                                share, part, part_sample, part_place, object,
                                                sampler_object, order
collective  the script calls a collective       name, shape, dtype
step        an optimizer is about to step       optimizer, update, gradients, infinite, removed, own, own_infinite,
                                                missing, rates, before, frozen, state_before
stepped     the optimizer has stepped           optimizer, update, parameters, state, sent
cost        after an update                     update, watching, seconds
join        torch's Join is entered             –
trouble     recording itself failed             error

``place`` is the line of the script: [file, line, text]. Each event is in the file at once, so a killed rank loses none.
"""

import functools
import itertools
import json
import linecache
import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dpbook.core import PACKAGE

Event = dict[str, Any]

JOURNAL = "journal-{}.jsonl"
"""The events of one rank, by its number."""
REPLAY_ARRAYS, FINAL_PARAMETERS = "replay-{}-{}.npz", "parameters-{}-{}.npz"
"""Gradients of a replay, and parameters at the end: by rank and optimizer."""
REQUEST_VARIABLE = "DPBOOK_WATCHING"
"""Environment variable with the request of an audit or a forecast for the ranks, as JSON."""


def array_key(kind: str, name: str, line: str = "") -> str:
    """Return the key of an array in a rank's file: its kind, its parameter, and the line that called backward."""
    return f"{kind}|{line}|{name}"


def number_of_journals(folder: Path) -> int:
    """Return how many ranks left a journal in ``folder``, counted from rank 0 to the first that is missing."""
    return next(rank for rank in itertools.count() if not (folder / JOURNAL.format(rank)).is_file())


def read_journal(folder: Path, rank: int) -> list[Event]:
    """Return the events of one rank in order; an empty list if it has no journal."""
    return read_lines(folder / JOURNAL.format(rank))


def read_lines(path: Path) -> list[Any]:
    """Return what the lines of a file have in JSON; one that was cut off when the process was killed is skipped."""
    values = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            values.append(json.loads(line))
    return values


_NOT_SCRIPT = (
    str(PACKAGE) + os.sep, sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("purelib") + os.sep,
    sysconfig.get_path("platlib") + os.sep, "<",
)  # fmt: skip
"""Beginnings of the paths of files that do not belong to the script."""
FINISH_TIMEOUT_SECONDS = 20.0
"""Seconds for which a rank that has finished waits for the others."""
FINISHED_FILE = "finished-{}"
"""File that a rank creates when it has recorded all updates, by its number."""


class RecordingFinished(SystemExit):
    """Raised in a script to end it when all updates have been recorded."""


@dataclass(frozen=True)
class RecordingOptions:
    """Options of a recording.

    Attributes:
        updates: updates of an optimizer after which the script is stopped (0: it runs to its end).
        every: record one update in so many.
        replay: update of which all ranks save their local gradients (0: none).
        saving: let the script continue after its last update until the next one begins, so that it can save.
        keep: update after which the ranks save the parameters (0: none).
        timeout: seconds for which a collective may wait if the script sets no timeout (0: torch's default).
        state: whether the optimizer's state is hashed too, which takes twice as long as the parameters.
    """

    updates: int = 5
    every: int = 1
    replay: int = 0
    saving: bool = False
    keep: int = 0
    timeout: float = 0.0
    state: bool = False


BUFFERS = "broadcast of buffers"
"""Name of the call in which DDP broadcasts buffers before a forward."""
READY = "ready"
"""Name of the span of a loader whose worker had the batch ready."""
MOMENTS_FORMAT = 1
"""Version of the journal of moments."""


@dataclass(frozen=True)
class MomentOptions:
    """Options of a recording of moments, for a forecast or a report.

    Attributes:
        updates: updates of an optimizer after which the script is stopped (0: it runs to its end).
        link: latency and bandwidth of a link to emulate, in seconds and bytes per second; None for none.
        check: emulate the link in every second update.
        sampled: record ever fewer updates.
    """

    updates: int = 0
    link: tuple[float, float] | None = None
    check: bool = False
    sampled: bool = False


class Recorder:
    """Writes the journal of ``rank`` in ``folder``; when it closes, it undoes the changes that hooks registered."""

    def __init__(self, folder: Path, rank: int, options: RecordingOptions) -> None:
        self.folder, self.rank, self.options = folder, rank, options
        self.active = True
        self.spent = 0.0
        self.collectives = 0  # that the script has called
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / JOURNAL.format(rank), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.replaced: list[tuple[Any, Any]] = []  # functions of modules, each with what replaces it
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._begun = self._last = time.perf_counter()

    def note(self, kind: str, **fields: Any) -> None:
        """Write one event to the journal before returning."""
        self._file.write(json.dumps({"kind": kind, "at": time.perf_counter() - self._begun, **fields}) + "\n")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the time of the block as cost of recording; an error in it is written and does not reach the script."""
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
        """Replace ``owner.name`` by ``make(owner.name)`` until the recorder closes."""
        before = getattr(owner, name)
        setattr(owner, name, after := make(before))
        if isinstance(owner, ModuleType):
            self.replaced.append((before, after))
        self.on_close(lambda: setattr(owner, name, before))

    def replace_everywhere(self, owners: tuple[Any, ...], name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function that several modules export by one new function."""
        replacement = make(getattr(owners[0], name))
        for owner in owners:
            self.replace(owner, name, lambda old: replacement)

    def after(self, owner: Any, name: str, record: Callable[..., None]) -> None:
        """Give ``record`` the result and the arguments of each call of ``owner.name`` until the recorder closes."""

        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                record(result, *args, **kwargs)
                return result

            return watched

        self.replace(owner, name, make)

    def on_close(self, undo: Callable[[], None]) -> None:
        """Call ``undo`` when the recorder closes, in reverse order of registration."""
        self._undo.append(undo)

    def end_update(self, update: int) -> None:
        """Write the cost of recording an update; decide whether the next one is recorded."""
        now = time.perf_counter()
        self.note("cost", update=update, watching=self.spent, seconds=now - self._last)
        self._last, self.spent = now, 0.0
        self.active = (update + 1) % self.options.every == 0

    def finish(self, world: int) -> None:
        """End the script once all ranks have finished: a rank that ends early may abort collectives of the others."""
        (self.folder / FINISHED_FILE.format(self.rank)).touch()
        files = [self.folder / FINISHED_FILE.format(rank) for rank in range(world)]
        until = time.monotonic() + FINISH_TIMEOUT_SECONDS
        while time.monotonic() < until and not all(path.exists() for path in files):
            time.sleep(0.01)
        raise RecordingFinished(0)

    def close(self) -> None:
        """Undo every change, and close the journal."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self._file.close()


def place() -> list[Any] | None:
    """Return the line of the script that is being executed as [file, line, text], or None."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_SCRIPT):
            return [_relative(name), line, linecache.getline(name, line).strip()]
    return None


_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in .*\n +(.+)$', re.MULTILINE)


def place_of_error(text: str) -> list[Any] | None:
    """Return the innermost line of the script in the ``text`` of a traceback, as `place` returns it."""
    frames = [frame for frame in _FRAME.findall(text) if not frame[0].startswith(_NOT_SCRIPT)]
    return [_relative(frames[-1][0]), int(frames[-1][1]), frames[-1][2]] if frames else None


@functools.cache
def _relative(name: str) -> str:
    inside = os.path.relpath(name)
    return name if inside.startswith("..") else inside
