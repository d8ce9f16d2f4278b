"""Start of a rank: its files, its evidence and its watches; and how its errors are written down."""

import errno
import importlib
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

from dpbook.ranks import failure_files
from dpbook.runs.launch.command import CHECK_CALLS_VARIABLE, START_TIMEOUT_VARIABLE, WATCHER_VARIABLE
from dpbook.runs.launch.rank_evidence import RankEvidence, drop_starter_frames, traceback_to
from dpbook.runs.postmortem import flight_recorder

POLL_SECONDS = 0.25
"""Interval at which the start watchdog looks at the stack of the main thread."""
FULL_DISK_BYTES = 2**20
"""A disk with less free space counts as full."""
_ARCHIVE_WRITER = "inline_container.cc"
"""torch's source file of the writer of archives, which its errors name."""
_SERIALIZATION = os.path.join("torch", "serialization.py")


def prepare_rank(folder: Path, parent: int | None = None) -> RankEvidence:
    """Prepare this process to become a rank: install the handlers of its evidence, whose ``parent`` this is."""
    stack = open(folder / failure_files.STACK_FILE.format(f"of-{os.getpid()}"), "a")  # noqa: SIM115  # open until the end
    evidence = RankEvidence(folder, stack, parent)
    evidence.watch()
    return evidence


def begin_rank(folder: Path, rank: int, world: int, evidence: RankEvidence, *, anew: bool = True) -> None:
    """Make this process a rank: its files in ``folder`` are new, and the environment's watches begin.

    ``anew``: whether it is the first process of its rank, and the script has not begun in it.
    """
    for name in (
        failure_files.ERROR_FILE,
        failure_files.RESULT_FILE,
        failure_files.CALLS_FILE,
        failure_files.HEARTBEAT_FILE,
        f"{failure_files.HANDLED_ERRORS_FOLDER}/{failure_files.ERROR_FILE}",
    ):  # if another node restarted all ranks, the number of the attempt is the same
        (folder / name.format(rank)).unlink(missing_ok=True)
    evidence.begin_rank(rank)
    (folder / failure_files.PROCESS_ID_FILE.format(rank)).write_text(str(os.getpid()))
    if start_timeout := float(os.environ.get(START_TIMEOUT_VARIABLE, 0)):
        watch_start(start_timeout, lambda: _give_up(folder, rank, start_timeout))
    if check_timeout := float(os.environ.get(CHECK_CALLS_VARIABLE, 0)):
        from dpbook.runs.launch import collective_check  # loads torch

        collective_check.install(timedelta(seconds=check_timeout))
    if watcher := os.environ.get(WATCHER_VARIABLE):
        importlib.import_module(watcher).install(rank, world, anew=anew)


def end_rank(folder: Path, rank: int) -> None:
    """Write that the rank has finished, and its last collectives."""
    stop_watcher()
    flight_recorder.write_calls(folder, rank)
    (folder / failure_files.RESULT_FILE.format(rank)).touch()


def stop_watcher() -> None:
    """Stop what `begin_rank` has begun of the watcher; else it stops when the process exits."""
    if watcher := os.environ.get(WATCHER_VARIABLE):
        importlib.import_module(watcher).stop_watching()


def write_error(folder: Path, rank: int | str, error: BaseException) -> str:
    """Write the error and then a rank's last collectives; return the error's traceback.

    A signal that ends the rank meanwhile has its `RankEvidence` write the collectives.
    """
    error = explain_full_disk(error)
    trace = drop_starter_frames(error.__traceback__)
    text = failure_files.write_error(folder, rank, error, trace, joined=flight_recorder.joined())
    if isinstance(rank, int):
        flight_recorder.write_calls(folder, rank)
    return text


def _give_up(folder: Path, rank: int, seconds: float) -> None:
    """End this process, whose main thread waits inside torch."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    sizes = [each.f_locals.get("world_size") for each, _ in traceback.walk_stack(frame) if _is_join(each)]
    asked = f"; it was given world_size={sizes[0]}" if sizes and sizes[0] not in (None, -1) else ""
    error = TimeoutError(f"{failure_files.NOT_JOINED} within {seconds:g} s{asked}")
    trace = drop_starter_frames(traceback_to(frame))
    sys.stderr.write(failure_files.write_error(folder, rank, error, trace))
    sys.stderr.flush()
    os._exit(1)


def watch_start(seconds: float, give_up: Callable[[], None]) -> None:
    """Call ``give_up`` from a thread if the main thread stays in `init_process_group` for so many ``seconds``.

    torch waits for ten minutes or for thirty, and names no rank. Only the first call counts; nothing happens in a
    program that never calls it.
    """
    thread = threading.get_ident()

    def watch() -> None:
        begun: float | None = None
        while True:
            time.sleep(POLL_SECONDS)
            if not _joins(thread):
                if begun is not None:
                    return
            elif begun is None:
                begun = time.monotonic()
            elif time.monotonic() - begun > seconds:
                give_up()
                return

    threading.Thread(target=watch, daemon=True).start()


def _joins(thread: int) -> bool:
    """Return True if the thread is in `init_process_group`.

    The frame is a local variable of this function alone: kept while the watchdog sleeps, it would keep the tensors of
    the script's function from being freed. Adam's temporaries were seen to last into the next step.
    """
    frame = sys._current_frames().get(thread)
    return bool(frame) and any(_is_join(caller) for caller, _ in traceback.walk_stack(frame))


def _is_join(frame: FrameType) -> bool:
    return frame.f_code.co_name == failure_files.JOIN_FUNCTION


def explain_full_disk(error: BaseException) -> BaseException:
    """Return the `OSError` that `torch.save` hides when the disk is full, with the file's name; else ``error`` itself.

    torch reports only "unexpected pos 704 vs 598".
    """
    if _ARCHIVE_WRITER not in str(error):
        return error
    path = next(_saved_files(error), None)
    earlier = failure_files.earlier_errors(error)
    reported = any(isinstance(one, OSError) and one.errno == errno.ENOSPC for one in earlier)
    if not reported and (path is None or not _is_full(path)):
        return error
    plain = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([str(path)] if path else []))
    plain.__cause__ = error
    return plain.with_traceback(error.__traceback__)


def _saved_files(error: BaseException) -> Iterator[Path]:
    """Yield the file that `torch.save` was given, by name or open."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "save" and frame.f_code.co_filename.endswith(_SERIALIZATION):
            file = frame.f_locals.get("f")
            name = getattr(file, "name", file)
            if isinstance(name, str | os.PathLike):
                yield Path(name)


def _is_full(path: Path) -> bool:
    folder = path.resolve().parent
    return folder.is_dir() and shutil.disk_usage(folder).free < FULL_DISK_BYTES
