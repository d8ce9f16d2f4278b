"""Start a script as `dpbook launch` does, watched for some updates, and read what was measured. Loads no torch."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpbook.collectives import Link
from dpbook.core import check_int, plural, temporary_folder
from dpbook.runs.forecast.measured_step import WARM, Measured, NoForecast, measured
from dpbook.runs.launch import Launch, launch
from dpbook.runs.watching import read_journal
from dpbook.runs.watching.journal import FORECAST_VARIABLE

PATIENCE = 30.0
"""Seconds after which somebody who waits is told for what."""

Say = Callable[[str], None]


class Stopped(NoForecast):
    """A signal ended the script; ``status`` is 128 and its number."""

    def __init__(self, status: int) -> None:
        super().__init__("ended before enough was seen")
        self.status = status


@dataclass(frozen=True)
class Script:
    """A script and its arguments (or "-m" and a module's), on ``nproc`` ranks of this machine, for so many ``updates``
    that count. With ``check`` as many more are made, in turn with these, to compare a forecast with. The gradients of
    those go over ``link``, an emulated one: bytes arrive when it would have carried them. Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int = 1
    updates: int = 12
    check: bool = False
    link: Link | None = None
    start_timeout: float = 300.0

    def __post_init__(self) -> None:
        check_int("updates", self.updates, 1)
        self.launch()

    def launch(self, **told: str) -> Launch:
        """The launch of the script, watched if it is ``told`` how."""
        watcher = "dpbook.runs.watching.forecast_installation" if told else None
        return Launch(self.program, self.nproc, start_timeout=self.start_timeout, watcher=watcher, told=told)


def measure(script: Script, say: Say = lambda text: None) -> Measured:
    """Run the script until enough is seen, and return what its updates took. ``say`` is told what is waited for.

    Raises `NoForecast` where it makes no updates, fails, or does what is not modelled; `Stopped` for Ctrl-C.
    """
    with temporary_folder("forecast") as folder:
        why: list[str] = []
        link = (script.link.latency, script.link.bandwidth) if script.link else None
        wanted = WARM + script.updates * (2 if script.check else 1)
        asked = json.dumps({"folder": str(folder), "updates": wanted, "check": script.check, "link": link})
        done = threading.Event()
        threading.Thread(target=_tell_progress, args=(folder, wanted, done, say), daemon=True).start()
        try:
            ended = launch(script.launch(**{FORECAST_VARIABLE: asked}), why.append)
        finally:
            done.set()
        if ended.status > 128:
            raise Stopped(ended.status)
        if ended.status:
            raise NoForecast("the script failed: " + "\n".join(why))
        return measured([read_journal(folder, rank) for rank in range(script.nproc)])


def _tell_progress(folder: Path, wanted: int, done: threading.Event, say: Say) -> None:
    while not done.wait(PATIENCE):
        seen = sum(event["kind"] == "update" for event in read_journal(folder, 0))
        say(f"{seen} of {plural(wanted, 'update')} seen; Ctrl-C ends it")
