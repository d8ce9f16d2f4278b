"""Launch a script with hooks in its ranks, and report progress until it ends. Loads no torch."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpbook.runs.launch import WATCHER_VARIABLE, Launch, LaunchResult, launch
from dpbook.runs.watching.journal import REQUEST_VARIABLE

PROGRESS_SECONDS = 30.0
"""Seconds between two reports of progress."""

Reporter = Callable[[str], None]
"""Receives a sentence whenever there is progress to report."""


def with_hooks(spec: Launch, folder: Path, options: Mapping[str, Any], *, moments: bool) -> Launch:
    """Return the launch with hooks in its ranks, which leave journals in ``folder``.

    Args:
        spec: launch of the script.
        folder: folder for the journals of the ranks.
        options: options of the recording, as in `dpbook.runs.watching.installation`.
        moments: record the moments of each update, for a forecast or a report, and not the contents, for an audit.
    """
    request = json.dumps({"folder": str(folder.resolve()), "moments": moments, "options": dict(options)})
    watcher = {WATCHER_VARIABLE: "dpbook.runs.watching.installation", REQUEST_VARIABLE: request}
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
    """Launch ``spec`` with hooks; return its result, and the reason if it failed.

    Args:
        spec, folder, options, moments: as for `with_hooks`.
        progress: returns a sentence on the progress for ``report`` every `PROGRESS_SECONDS`, or None to end that.
        report: receives these sentences.
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
