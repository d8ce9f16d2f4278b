"""Records of the proof for GPUs, `python -m tests.gpu`, among the measurements, and what they say in chapters."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.core import DATA, InvalidArgument

PATTERN = "gpu_proof_*.json"
NOT_YET = "Not yet run on a GPU: `python -m tests.gpu` does it, and CONTRIBUTING.md says how."


@dataclass(frozen=True)
class GpuRecord:
    """Record of one run of the proof: the device, the number of ranks, the date, and the outcome of each check."""

    device: str
    ranks: int
    date: str
    checks: dict[str, dict[str, Any]]

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.device}, {ranks}, {self.date}"


def read_gpu_records(folder: Path = DATA / "measurements") -> list[GpuRecord]:
    """Return the records in ``folder``, by the names of their files."""
    records = []
    for path in sorted(folder.glob(PATTERN)):
        found = json.loads(path.read_text(encoding="utf-8"))
        checks = {check["name"]: check for check in found["checks"]}
        records.append(GpuRecord(found["machine"]["device"], found["ranks"], found["date"], checks))
    return records


def measured_on_gpus(*names: str, folder: Path = DATA / "measurements") -> str:
    """Return what the records say of the checks with these ``names``, for a cell of a chapter to print.

    Of a refuted check a record may also say what has been done ``since``. Without a record it says so. Raises
    `InvalidArgument` for a check that no record has.
    """
    records = read_gpu_records(folder)
    if not records:
        return NOT_YET
    lines = []
    for name in names:
        having = [record for record in records if name in record.checks]
        if not having:
            raise InvalidArgument("name", name, "a check of the proof for GPUs")
        lines.append(having[0].checks[name]["claim"])
        for record in having:
            check = record.checks[name]
            details = check.get("why") or format_figures(check["figures"])
            details = "; ".join(filter(None, [details, check.get("since")]))
            lines.append(f"  {record}: {check['result']}" + (f" ({details})" if details else ""))
    return "\n".join(lines)


def format_figures(figures: dict[str, Any]) -> str:
    """Return the figures of a check in a line of text, floating-point numbers to four digits."""
    return "; ".join(f"{name}: {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in figures.items())
