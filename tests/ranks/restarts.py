"""A launch whose rank 1 is killed on the way: is it the run that it would have been?"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from dpbook.core import checkout

STEPS = 120
OPTIONS = ["--nproc", "3", "--name", "r", "--width", "64", "--depth", "2", "--steps", str(STEPS), "--save-every", "20"]
PATIENCE = 90.0


def begin(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A launch of our program in ``folder``."""
    command = [sys.executable, "-m", "dpbook", "launch", *OPTIONS, *options]
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill_rank_1(folder: Path, launch: subprocess.Popen[str], wait: float | None = None) -> None:
    """Kill it, by SIGKILL, ``wait`` seconds after the first checkpoint; some time within the run if None."""
    until = time.monotonic() + PATIENCE
    while not list((folder / "runs/r").glob("checkpoint-*.pt")):
        if launch.poll() is not None or time.monotonic() > until:
            raise AssertionError(f"no checkpoint:\n{launch.communicate()[0]}")
        time.sleep(0.01)
    time.sleep(random.uniform(0.0, 1.0) if wait is None else wait)
    for process in in_folder(folder):
        if b"RANK=1" in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            os.kill(process, signal.SIGKILL)
            return
    raise AssertionError("rank 1 has ended before it could be killed")


def in_folder(folder: Path) -> list[int]:
    """The processes whose working directory is ``folder``."""
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd") == str(folder):
                found.append(int(entry))
        except OSError:
            continue
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The model after the last step."""
    content: dict[str, dict[str, torch.Tensor]] = torch.load(folder / f"runs/r/checkpoint-{STEPS:08}.pt")
    return content["model"]


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
