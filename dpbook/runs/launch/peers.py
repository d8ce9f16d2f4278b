"""Messages between the GPUs of this machine, tried before ranks depend on them. Loads no torch."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from dpbook.core import PACKAGE
from dpbook.runs.launch.preflight_checks import Finding

PROBE = (sys.executable, "-m", "dpbook.runs.launch.peer_probe")
SECONDS = 90.0
"""That the messages of all pairs may take, torch's start and one context per GPU included."""
KILLED = 5.0
"""Seconds in which a killed process ends; one that hangs in the driver may never."""
CURE = (
    "copies straight from GPU to GPU fail where ACS or an IOMMU stands between them: have them switched off, or set "
    "NCCL_P2P_DISABLE=1, which sends through the host's memory and is slower (docs/server.md)"
)


def check_peers(command: Sequence[str] | None = None, seconds: float = SECONDS) -> list[Finding]:
    """Send two messages between every two GPUs that this process sees, there and back, and say which do not arrive.

    Nothing is tried where ``NCCL_P2P_DISABLE`` is set, since NCCL then sends none. ``command`` does it (by default
    `peer_probe`), and prints a line for each pair; it is ended after ``seconds``.
    """
    if os.environ.get("NCCL_P2P_DISABLE", "0") != "0":
        return []
    ended, said, error = _run(command or PROBE, seconds)
    lines = [line.split() for line in said.splitlines()]
    found = [f"{here}–{there}" for here, there, *how in lines if how == ["wrong"]]
    if found:
        return [Finding("problem", f"between GPUs {', '.join(found)} other bits arrive than were sent: {CURE}")]
    return list(_unfinished(lines, ended, error, seconds))


def _unfinished(lines: Sequence[Sequence[str]], ended: bool, error: str, seconds: float) -> Iterator[Finding]:
    """What is to be said where the messages of some pair are missing."""
    waiting = bool(lines) and len(lines[-1]) == 2
    if waiting and not ended:
        pair = "–".join(lines[-1])
        yield Finding("problem", f"between GPUs {pair} a message has not arrived within {seconds:g} s: {CURE}")
    elif not ended:
        yield Finding("warning", f"messages between the GPUs were not tried: torch was not ready within {seconds:g} s")
    elif error:
        yield Finding("warning", f"messages between the GPUs could not be tried: {error}")


def _run(command: Sequence[str], seconds: float) -> tuple[bool, str, str]:
    """Whether the command came to its end in time, what it printed, and if it failed its last words."""
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:  # files: nobody waits for them
        child = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ | {"PYTHONPATH": path})
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILLED)
            return False, _text(out), ""
        words = _text(err).strip().rpartition("\n")[2] or f"exit status {child.returncode}"
        return True, _text(out), words if child.returncode else ""


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
