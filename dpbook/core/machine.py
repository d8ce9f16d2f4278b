"""What this machine has, found without loading torch."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10
"""That the driver's own tool may take to list the GPUs."""
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20)}
"""For the environment: keep what glibc frees. It would hand gradients back to the system in every step, and take them
again page by page. With 40 gradients of 1 MiB that is a sixth of a step of two ranks on the CPU, in torch's DDP as in
ours; a quarter of one of an MLP in NumPy, over 4,096 examples."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment variable that gives BLAS and torch one thread. The book's matrices are small: more threads spend CPU time
on waiting for each other, and on a busy machine a training step takes several times as long. The order of a sum, and
with it the last bit, depends on the number of threads too."""


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
    """The NVIDIA GPUs that ``CUDA_VISIBLE_DEVICES`` leaves of this machine's, in its order.

    As CUDA reads it: numbers, or UUIDs or how they begin; what comes after an entry that names none does not count, and
    of two entries for one GPU nothing is left. Of GPUs that are in parts (MIG) a process sees one part.
    """
    whole, parts = _gpus(), _parts()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        in_parts = {of for of, _ in parts}
        return [gpu for uuid, gpu in whole if uuid not in in_parts] or [gpu for _, (_, gpu) in parts[:1]]
    known = [*whole, *(part for _, part in parts)]
    chosen: dict[str, Gpu] = {}
    for entry in map(str.strip, visible.split(",")):
        number = int(entry) if entry.isdecimal() else len(whole)
        named = whole[number : number + 1] or [one for one in known if entry and one[0].startswith(entry)]
        if not named:
            break
        uuid, gpu = named[0]
        if uuid in chosen:
            return []
        if uuid.startswith("MIG"):
            return [gpu]
        chosen[uuid] = gpu
    return list(chosen.values())


def torch_build() -> str | None:
    """For which devices torch was built: "cpu", "cuda 13.0" or "hip 7.0"; None where that is not to be seen."""
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    if version is None or not version.is_file():
        return None
    match = re.search(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", version.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{match[1]} {match[2]}" if match else "cpu"


def _gpus() -> list[tuple[str, Gpu]]:
    """All GPUs of the machine, each with its UUID, in the order of their places on the bus."""
    found = []
    for line in _ask("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"):
        uuid, name, mebibytes = (part.strip() for part in (line + ",,").split(",")[:3])
        if mebibytes.isdigit():
            found.append((uuid, Gpu(name, int(mebibytes) * 2**20)))
    return found


def _parts() -> list[tuple[str, tuple[str, Gpu]]]:
    """The parts that MIG has made of GPUs: the UUID of the GPU, and the part with its own.

    A part's profile tells its memory: "MIG 3g.20gb".
    """
    found, of = [], ""
    for line in _ask("-L"):
        if match := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            of = match[1]
        elif match := re.match(r"\s+MIG (\S*?(\d+)gb\S*) .*\(UUID: (\S+)\)", line):
            found.append((of, (match[3], Gpu(f"MIG {match[1]}", int(match[2]) * 2**30))))
    return found


def _ask(*options: str) -> list[str]:
    """The lines of the driver's own tool; none where there is none."""
    try:
        command = ["nvidia-smi", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
