"""Launches of the trainer whose rank 1 is killed, and their weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dpbook.core import checkout

STEPS = 120
OPTIONS = ["--nproc", "3", "--name", "r", "--width", "64", "--depth", "2", "--steps", str(STEPS), "--save-every", "20"]
WAIT_SECONDS = 300.0


def begin(folder: Path, *options: str, program: bool = True) -> subprocess.Popen[str]:
    """Begin a launch in ``folder``, of the trainer or of a script that the ``options`` name."""
    command = [sys.executable, "-m", "dpbook", "launch", *(OPTIONS if program else OPTIONS[:2]), *options]
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_rank_1(folder: Path, launch: subprocess.Popen[str], wait: float | None = None) -> None:
    """Send rank 1 SIGKILL ``wait`` seconds after the first checkpoint; within a second of it if None."""
    wait_until(lambda: list((folder / "runs/r").glob("checkpoint-*.pt")), launch)
    time.sleep(random.uniform(0.0, 1.0) if wait is None else wait)
    process = process_of(folder, rank=1)
    assert process is not None, "rank 1 has ended before it could be killed"
    os.kill(process, signal.SIGKILL)


def wait_until(condition: Callable[[], object], launch: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition; fail after `WAIT_SECONDS`, or if the ``launch`` has ended without it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline or (launch is not None and launch.poll() is not None and not condition()):
            raise AssertionError(f"the condition did not come true:\n{launch.communicate()[0] if launch else ''}")
        time.sleep(0.01)


def process_of(folder: Path, rank: int) -> int | None:
    """Return the process of a rank that works in ``folder``; None if there is none."""
    for process in processes_in(folder):
        with suppress(OSError):
            if f"RANK={rank}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                return process
    return None


def processes_in(folder: Path) -> list[int]:
    """Return the processes whose working directory is ``folder``."""
    processes = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(folder):
                processes.append(int(entry))
        except OSError:
            continue
    return processes


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the model after the last step."""
    content: dict[str, dict[str, torch.Tensor]] = torch.load(folder / f"runs/r/checkpoint-{STEPS:08}.pt")
    return content["model"]


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
