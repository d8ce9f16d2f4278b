"""The doctor: can this machine run the book, and what is missing?

Packages are looked at in a child process. One that is missing, broken, or crashes while it is loaded becomes a line of
the table and does not end the diagnosis, and the caller's own process loads nothing heavy.
"""

import importlib.metadata
import json
import os
import platform
import re
import sys
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from dpbook import __version__
from dpbook.app.lab import jupyter
from dpbook.core import DpbookError, Gpu, checkout, gibibytes, machine, run_probe


@dataclass(frozen=True)
class Package:
    """A direct dependency: the version found, and what is wrong with it (empty if nothing)."""

    name: str
    needs: str
    version: str | None
    problem: str


@dataclass(frozen=True)
class Torch:
    """Abilities of torch here. ``cuda``: the CUDA version it was built for; ``gloo``: the failure, if there was one."""

    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    gloo: str = "torch cannot be queried"
    nccl: str | None = None


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
    chapters: tuple[checkout.Chapter, ...]
    problems: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether nothing that the book needs is missing."""
        return not self.problems

    def to_json(self) -> str:
        """Return the diagnosis as JSON, for a program or a bug report."""
        chapters = [{"chapter": c.label, "title": c.title, "minutes": c.minutes} for c in self.chapters]
        return json.dumps({"dpbook": __version__, "ok": self.ok, **asdict(self), "chapters": chapters}, indent=2)

    def __repr__(self) -> str:
        rows = [
            ("dpbook", __version__),
            ("Python", f"{self.python} on {self.system}"),
            *((p.name, f"{p.version or '–'}{f'  {p.problem}' if p.problem else ''}") for p in self.packages),
            ("cores", str(self.cores)),
            ("memory", f"{gibibytes(self.memory)}, shared memory {gibibytes(self.shared_memory)}"),
            ("GPUs", ", ".join(f"{g.name} ({gibibytes(g.memory)})" for g in self.torch.gpus) or "none"),
            ("gloo", self.torch.gloo or "works"),
            ("NCCL", self.torch.nccl or "not in this torch"),
        ]
        lines = [f"{name:<13} {value}" for name, value in rows]
        if self.chapters:
            lines += ["", "Chapters"]
            lines += [
                f"  {c.label:3} {c.title:<36}{c.minutes:>4} min{'  runs here' if self.ok else ''}"
                for c in self.chapters
            ]
        lines += ["", *(f"warning: {warning}" for warning in self.warnings)] if self.warnings else []
        lines += ["", *(f"MISSING: {problem}" for problem in self.problems)] if self.problems else ["", "Ready."]
        return "\n".join(lines)


PROBE_SECONDS = 120
SMALL_SHM = 256 * 2**20  # bytes; containers often have 64 MiB, too few for several ranks with data-loading workers


def diagnose() -> Diagnosis:
    """Examine this machine. This takes a few seconds, mostly to import torch in a child process."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        asked = pool.submit(_ask_torch)
        looks = [pool.submit(_package, name, needs, asked) for name, needs in _requirements()]
    packages, torch = tuple(look.result() for look in looks), asked.result() or Torch()
    problems = [f"{p.name} {p.needs}: {p.problem}" for p in packages if p.problem]
    if torch.gloo and not any(p.name == "torch" and p.problem for p in packages):
        problems.append(f"gloo, which carries the chapters with real processes: {torch.gloo}")
    try:
        chapters = tuple(checkout.chapters())
    except DpbookError as error:
        chapters = ()
        problems.append(f"a readable chapter: {error}")
    shared = machine.shared_memory()
    warnings = _warnings(torch, shared)
    if len(torch.gpus) > 1:
        from dpbook.runs.launch import check_peers  # a doctor is needed where what this loads is missing

        warnings += (finding.text for finding in check_peers())
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=machine.cores(),
        memory=machine.memory(),
        shared_memory=shared,
        packages=packages,
        torch=torch,
        chapters=chapters,
        problems=tuple(problems),
        warnings=tuple(warnings),
    )


def _requirements() -> list[tuple[str, str]]:
    """Name and range of each direct dependency of the book: ``("numpy", ">=2.0")``."""
    if checkout.is_checkout():  # which need not be installed
        project = tomllib.loads((checkout.root() / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        dependencies = [*project["dependencies"], *project["optional-dependencies"]["book"]]
    else:
        split = [line.partition(";") for line in importlib.metadata.requires("dpbook") or []]
        dependencies = [needed for needed, _, marker in split if "extra" not in marker or "book" in marker]
    matches = [re.fullmatch(r"([\w.-]+)\s*(.*?)\s*", dependency) for dependency in dependencies]
    return [(match[1], match[2]) for match in matches if match]


def _package(name: str, needs: str, loaded: Future[Torch | None] | None = None) -> Package:
    """Return the installed version and whether it can be loaded; ``loaded`` is what torch reported, if known."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, needs, None, "not installed (`make lab`, or pip install 'dpbook[book]', installs it)")
    least = needs.removeprefix(">=")
    if _release(version) < _release(least):
        return Package(name, needs, version, f"older than {least}")
    if name == "torch" and loaded and loaded.result():
        return Package(name, needs, version, "")
    _, problem = _run_python("-c", f"import {name}")
    return Package(name, needs, version, problem)


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) for ``2.13.0+cpu``. ``packaging`` may be what is missing."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _ask_torch() -> Torch | None:
    """Return what torch can do here, or None if the child process does not answer."""
    output, problem = _run_python("-m", "dpbook.runs.launch.torch_probe")
    if problem:
        return None
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    gpus = tuple(Gpu(**gpu) for gpu in answer.pop("gpus"))
    return Torch(gpus=gpus, **answer)


def _run_python(*arguments: str) -> tuple[str, str]:
    """Run Python in a child and return its output and, if it failed, the last line it wrote about that."""
    try:
        probe = run_probe([sys.executable, *arguments], PROBE_SECONDS, jupyter.environment(os.environ))
    except OSError as error:  # of a temporary folder that is full, say
        return "", str(error)
    if probe.status is None:
        return "", f"no answer within {PROBE_SECONDS} s"
    if probe.status < 0:
        return "", f"crashes during import (signal {-probe.status})"
    return ("", probe.error) if probe.status else (probe.output, "")


def _warnings(torch: Torch, shared: int | None) -> list[str]:
    found = []
    if torch.cuda and not torch.gpus:
        found.append(
            f"torch is built for CUDA {torch.cuda}, but no GPU is usable here. It works on the CPU; the CPU wheel is "
            'gigabytes smaller (docs/installing.md, "torch without CUDA")'
        )
    if shared is not None and shared < SMALL_SHM:
        found.append(f"shared memory is {gibibytes(shared)}: in a container, increase it (docker run --shm-size=1g)")
    return found
