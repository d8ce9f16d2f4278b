"""What is this machine, what is installed, and which chapters can it run?

Every package is imported in a child process: one that is missing, broken, or crashes while it is loaded becomes a line
in the table and not the end of the diagnosis, and the caller's own process loads nothing heavy.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpbook import __version__, book, jupyter
from dpbook.errors import DpbookError

PROBE_SECONDS = 120
SMALL_SHM = 256 * 2**20  # bytes; containers often have 64 MiB, too few for several ranks with data-loading workers


@dataclass(frozen=True)
class Package:
    """A direct dependency: the version found, and what is wrong with it (empty if nothing)."""

    name: str
    needs: str
    version: str | None
    problem: str


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use; ``memory`` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Torch:
    """What torch can do here. ``cuda``: the CUDA version it was built for; ``gloo``: what failed, if anything did."""

    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    gloo: str = "torch could not be asked"
    nccl: str | None = None


@dataclass(frozen=True)
class Needs:
    """A chapter, and what this machine lacks for it (empty if it can run)."""

    chapter: str
    title: str
    hardware: str
    minutes: int
    lacks: str


@dataclass(frozen=True)
class Diagnosis:
    """The machine's state. ``memory`` and ``shared_memory`` in bytes, None where the system does not say."""

    python: str
    system: str
    cores: int
    memory: int | None
    shared_memory: int | None
    packages: tuple[Package, ...]
    torch: Torch
    chapters: tuple[Needs, ...]
    problems: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing that the book needs is missing."""
        return not self.problems

    def to_json(self) -> str:
        """The diagnosis as JSON, for a program or a bug report."""
        return json.dumps({"dpbook": __version__, "ok": self.ok, **asdict(self)}, indent=2)

    def __repr__(self) -> str:
        rows = [
            ("dpbook", __version__),
            ("Python", f"{self.python} on {self.system}"),
            *((p.name, f"{p.version or '–'}{f'  {p.problem}' if p.problem else ''}") for p in self.packages),
            ("cores", str(self.cores)),
            ("memory", f"{_gib(self.memory)}, shared memory {_gib(self.shared_memory)}"),
            ("GPUs", ", ".join(f"{g.name} ({_gib(g.memory)})" for g in self.torch.gpus) or "none"),
            ("gloo", self.torch.gloo or "works"),
            ("NCCL", self.torch.nccl or "not in this torch"),
        ]
        lines = [f"{name:<12}{value}" for name, value in rows]
        if self.chapters:
            lines += ["", "Chapters"]
            lines += [
                f"  {c.chapter}  {c.title:<36}{c.minutes:>4} min  {f'needs {c.lacks}' if c.lacks else 'runs here'}"
                for c in self.chapters
            ]
        lines += ["", *(f"warning: {warning}" for warning in self.warnings)] if self.warnings else []
        lines += ["", *(f"MISSING: {problem}" for problem in self.problems)] if self.problems else ["", "Ready."]
        return "\n".join(lines)


def diagnose() -> Diagnosis:
    """Look at this machine. Takes a few seconds, most of them for loading torch in a child process."""
    requirements = _requirements(book.root() / "pyproject.toml")
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        torch = pool.submit(_ask_torch)
        packages = tuple(pool.map(_package, *zip(*requirements, strict=True)))
    problems = [f"{p.name} {p.needs}: {p.problem}" for p in packages if p.problem]
    if torch.result().gloo and not any(p.name == "torch" and p.problem for p in packages):
        problems.append(f"gloo, which carries the chapters with real processes: {torch.result().gloo}")
    try:
        chapters = tuple(_needs(chapter, torch.result()) for chapter in book.chapters())
    except DpbookError as error:
        chapters = ()
        problems.append(f"a readable chapter: {error}")
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=_cores(),
        memory=_memory(),
        shared_memory=shared,
        packages=packages,
        torch=torch.result(),
        chapters=chapters,
        problems=tuple(problems),
        warnings=tuple(_warnings(torch.result(), shared)),
    )


def _requirements(pyproject: Path) -> list[tuple[str, str]]:
    """Name and range of each direct dependency: ``("numpy", ">=2.0")``."""
    dependencies = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    split = [re.fullmatch(r"([\w.-]+)\s*(.*)", dependency) for dependency in dependencies]
    return [(match[1], match[2]) for match in split if match]


def _package(name: str, needs: str) -> Package:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, needs, None, "not installed (`make lab` installs it)")
    least = needs.removeprefix(">=")
    if _release(version) < _release(least):
        return Package(name, needs, version, f"older than {least}")
    _, problem = _run_python(f"import {name}")
    return Package(name, needs, version, problem)


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for ``2.13.0+cpu``. ``packaging`` may be what is missing here."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _ask_torch() -> Torch:
    said, problem = _run_python("from dpbook.doctor import report_torch; report_torch()")
    if problem:
        return Torch()
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    gpus = tuple(Gpu(**gpu) for gpu in answer.pop("gpus"))
    return Torch(gpus=gpus, **answer)


def report_torch() -> None:
    """Print, as one line of JSON, what torch can do here. Runs in a child of `diagnose`."""
    torch = importlib.import_module("torch")  # by name: the doctor must load where there is no torch
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    distributed = torch.distributed
    has_nccl = distributed.is_available() and distributed.is_nccl_available()
    report = {
        "cuda": torch.version.cuda,
        "gpus": [{"name": p.name, "memory": p.total_memory} for p in properties],
        "gloo": _try_gloo(torch),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
    }
    print(json.dumps(report))


def _try_gloo(torch: Any) -> str:
    """All-reduce among one process: proves that gloo is built in and finds a network interface."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        return "not in this torch"
    with tempfile.TemporaryDirectory() as folder:
        try:
            distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
            ones = torch.ones(3)
            distributed.all_reduce(ones)
            distributed.destroy_process_group()
        except Exception as error:  # whatever torch raises is the diagnosis
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return "" if ones.sum().item() == 3 else f"all-reduce of ones over one process gave {ones.tolist()}"


def _run_python(code: str) -> tuple[str, str]:
    """Run ``code`` in a child and return its output and, if it failed, the last line it wrote about that."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=jupyter.environment(os.environ),
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PROBE_SECONDS} s"
    if child.returncode == 0:
        return child.stdout, ""
    if child.returncode < 0:
        return "", f"crashes while it is loaded (signal {-child.returncode})"
    return "", child.stderr.strip().rpartition("\n")[2] or f"exit status {child.returncode}"


def _needs(chapter: book.Chapter, torch: Torch) -> Needs:
    lacks = "a GPU" if chapter.hardware == "gpu" and not torch.gpus else ""
    return Needs(f"{chapter.number:02d}", chapter.title, chapter.hardware, chapter.minutes, lacks)


def _warnings(torch: Torch, shared: int | None) -> list[str]:
    found = []
    if torch.cuda and not torch.gpus:
        found.append(
            f"torch is built for CUDA {torch.cuda}, but no GPU can be used here. It works on the CPU; the CPU wheel is "
            'gigabytes smaller (README, "torch without CUDA")'
        )
    if shared is not None and shared < SMALL_SHM:
        found.append(f"shared memory is {_gib(shared)}: in a container, give it more (docker run --shm-size=1g)")
    return found


def _cores() -> int:
    """The cores this process may use, where the system says; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> int | None:
    """The machine's memory in bytes, or the container's limit if that is lower."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.is_file() else ""
    return min(total, int(given)) if given.isdigit() else total


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"
