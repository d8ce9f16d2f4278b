"""Launch a script with hooks in its ranks, and report progress until it ends. Loads no torch."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbook.runs.launch import RECORDED_VARIABLE, WATCHER_VARIABLE, Launch, LaunchResult, launch
from dpbook.runs.watching.journal import FINISHED_FILE, REQUEST_VARIABLE

PROGRESS_SECONDS = 30.0
"""Seconds between two reports of progress."""

Reporter = Callable[[str], None]
"""Receives a sentence whenever there is progress to report."""


def with_hooks(spec: Launch, folder: Path, options: Mapping[str, Any], *, moments: bool) -> Launch:
    """Return the launch with hooks in its ranks, which leave journals in ``folder``.

    They record the ``moments`` of each update, for a forecast or a report, or the contents, for an audit; ``options``
    are those of `dpbook.runs.watching.recording`.
    """
    request = json.dumps({"folder": str(folder.resolve()), "moments": moments, "options": dict(options)})
    watcher = {
        WATCHER_VARIABLE: "dpbook.runs.watching.installation",
        REQUEST_VARIABLE: request,
        RECORDED_VARIABLE: str(folder.resolve() / FINISHED_FILE),
    }
    return replace(spec, variables={**spec.variables, **watcher})


def launch_watched(
    spec: Launch,
    folder: Path,
    options: Mapping[str, Any],
    *,
    moments: bool,
    progress: Callable[[], str | None],
    report: Reporter,
) -> tuple[LaunchResult, str]:
    """Launch ``spec`` with hooks, see `with_hooks`; return its result, and the reason if it failed.

    Every `PROGRESS_SECONDS` ``report`` receives the sentence that ``progress`` returns, until it returns None.
    """
    finished = threading.Event()

    def report_progress() -> None:
        while not finished.wait(PROGRESS_SECONDS) and (sentence := progress()) is not None:
            report(sentence)

    threading.Thread(target=report_progress, daemon=True).start()
    try:
        ended = launch(with_hooks(spec, folder, options, moments=moments))
        return ended, "\n".join(ended.messages)
    finally:
        finished.set()
