"""Hardware of this machine, detected without loading torch."""

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from dpbook.core.processes import run_probe

NVIDIA_SMI_TIMEOUT = 10
"""Seconds that ``nvidia-smi`` may take to list the GPUs."""
DRIVER_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of the drivers for GPUs of NVIDIA and of AMD, and for either in Windows' Linux; without one of them there is no
GPU to ask torch about."""
TORCH_SECONDS = 60
"""Seconds that torch may take to list the GPUs."""
LIST_TORCHS_GPUS = """
import json, torch
kind = torch.accelerator.current_accelerator(check_available=True)
indices = range(torch.accelerator.device_count() if kind else 0)
found = [torch.get_device_module(kind).get_device_properties(index) for index in indices]
print(json.dumps([[one.name, one.total_memory] for one in found]))
"""
MALLOC_SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20)}
"""Environment variables that make glibc keep freed memory. Otherwise it returns gradients to the system in every step,
and gets them back page by page. With 40 gradients of 1 MiB that costs a sixth of a step of two ranks on the CPU, in
torch's DDP as in ours; a quarter of a step of an MLP in NumPy, over 4,096 examples."""
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
    """Return the number of CPU cores that this process may use, or of all cores if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor, or its architecture if the system reports no name."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return names[0] if names else platform.processor() or platform.machine()


def memory() -> int | None:
    """Return the memory in bytes, or the container's limit if that is lower; None if the system does not report it."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    value = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(value)) if value.isdigit() else total


def shared_memory() -> int | None:
    """Return the bytes of shared memory, which data loaders and NCCL use between processes; None if there is none."""
    return shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine that ``CUDA_VISIBLE_DEVICES`` selects, in its order.

    Entries are read as CUDA reads them: numbers, UUIDs or prefixes of UUIDs. Entries after one that names no GPU are
    ignored, and two entries for the same GPU select none at all. A process sees one part of GPUs partitioned by MIG.

    Where ``nvidia-smi`` lists none, as in a slim container or with GPUs of AMD, torch is asked, in another process.
    """
    if not (whole := _gpus()):
        # The GPUs that torch sees; none if it was built for the CPU, or there is no driver.
        if not any(map(os.path.exists, DRIVER_FILES)) or torch_build() in (None, "cpu"):
            return []
        lines = _output([sys.executable, "-c", LIST_TORCHS_GPUS], TORCH_SECONDS)
        return [Gpu(name, memory) for name, memory in json.loads(lines[-1])] if lines else []
    parts = _parts()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        in_parts = {parent for parent, _ in parts}
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
    """Return the device that torch was built for, such as "cpu", "cuda 13.0" or "hip 7.0"; None if it is unknown."""
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version is None or not version.is_file():
        return None
    match = re.search(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", version.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{match[1]} {match[2]}" if match else "cpu"


def _gpus() -> list[tuple[str, Gpu]]:
    """Return all GPUs of the machine with their UUIDs, in bus order."""
    gpus = []
    for line in _nvidia_smi("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"):
        uuid, name, mebibytes = (part.strip() for part in (line + ",,").split(",")[:3])
        if mebibytes.isdigit():
            gpus.append((uuid, Gpu(name, int(mebibytes) * 2**20)))
    return gpus


def _parts() -> list[tuple[str, tuple[str, Gpu]]]:
    """Return the UUID of the GPU of each MIG instance, and the instance with its UUID; "MIG 3g.20gb" has 20 GiB."""
    instances, parent = [], ""
    for line in _nvidia_smi("-L"):
        if match := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            parent = match[1]
        elif match := re.match(r"\s+MIG (\S*?(\d+)gb\S*) .*\(UUID: (\S+)\)", line):
            instances.append((parent, (match[3], Gpu(f"MIG {match[1]}", int(match[2]) * 2**30))))
    return instances


def _nvidia_smi(*options: str) -> list[str]:
    return _output(["nvidia-smi", *options], NVIDIA_SMI_TIMEOUT)


def _output(command: list[str], seconds: float) -> list[str]:
    """Return the output lines of a command; none if it is missing, fails or takes too long."""
    try:
        probe = run_probe(command, seconds)
    except OSError:
        return []
    return probe.output.splitlines() if probe.status == 0 else []
