"""What `doctor.diagnose` finds: values with a readable form, and as JSON."""

import json
from dataclasses import asdict, dataclass, field

from dpbook import __version__
from dpbook.core import Gpu, gibibytes


@dataclass(frozen=True)
class Package:
    """A direct dependency: the version found, and what is wrong with it (empty if nothing)."""

    name: str
    needs: str
    version: str | None
    problem: str


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
            ("memory", f"{gibibytes(self.memory)}, shared memory {gibibytes(self.shared_memory)}"),
            ("GPUs", ", ".join(f"{g.name} ({gibibytes(g.memory)})" for g in self.torch.gpus) or "none"),
            ("gloo", self.torch.gloo or "works"),
            ("NCCL", self.torch.nccl or "not in this torch"),
        ]
        lines = [f"{name:<12}{value}" for name, value in rows]
        if self.chapters:
            lines += ["", "Chapters"]
            lines += [
                f"  {c.chapter:3} {c.title:<36}{c.minutes:>4} min  {f'needs {c.lacks}' if c.lacks else 'runs here'}"
                for c in self.chapters
            ]
        lines += ["", *(f"warning: {warning}" for warning in self.warnings)] if self.warnings else []
        lines += ["", *(f"MISSING: {problem}" for problem in self.problems)] if self.problems else ["", "Ready."]
        return "\n".join(lines)
