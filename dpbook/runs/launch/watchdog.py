"""A rank that waits too long for the others to meet: torch waits for ten minutes or thirty, and blames nobody."""

import sys
import threading
import time
import traceback
from collections.abc import Callable

MEETING = "init_process_group"
LOOK = 0.25
"""Seconds between two looks at where the main thread is."""


def watch_start(patience: float, late: Callable[[], None]) -> None:
    """Call ``late`` from a thread if the main thread stays in `init_process_group` for ``patience`` seconds.

    The first meeting counts; nothing happens in a program that never calls it.
    """
    threading.Thread(target=_watch, args=(threading.get_ident(), patience, late), daemon=True).start()


def _watch(thread: int, patience: float, late: Callable[[], None]) -> None:
    begun: float | None = None
    while True:
        time.sleep(LOOK)
        frame = sys._current_frames().get(thread)
        if not frame or all(one.f_code.co_name != MEETING for one, _ in traceback.walk_stack(frame)):
            if begun is not None:
                return
        elif begun is None:
            begun = time.monotonic()
        elif time.monotonic() - begun > patience:
            late()
            return
