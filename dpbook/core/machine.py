"""What this machine has, found without loading torch."""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10
"""That the driver's own tool may take to list the GPUs."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use; ``memory`` in bytes."""

    name: str
    memory: int


def cores() -> int:
    """The cores this process may use, where the system says; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The name of the processor; its architecture where the system does not say more."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()


def memory() -> int | None:
    """The machine's memory in bytes, or the container's limit if that is lower; None where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(given)) if given.isdigit() else total


def shared_memory() -> int | None:
    """Bytes of shared memory, which data loaders and NCCL use between processes; None where there is none."""
    return shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None


def gpus() -> list[Gpu]:
    """The NVIDIA GPUs of this machine, of which ``CUDA_VISIBLE_DEVICES`` may leave some."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in said.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdigit():
            found.append(Gpu(name.strip(), int(mebibytes) * 2**20))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else found[: len([entry for entry in visible.split(",") if entry.strip()])]
