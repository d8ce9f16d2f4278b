"""The proof: every check on this machine, one after another, with a record of what was proved, refuted and not run.

The checks in ranks run in one launch. If one of them fails or hangs on some rank the launch ends, what it says is the
reason, and a new launch goes on behind that check.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from dpbook.book.gpu_records import format_figures
from dpbook.core import DpbookError, checkout
from dpbook.runs.launch import Launch, launch
from tests.gpu import clock, faults, launches, measuring, programs, sharding, traces, wrappers  # noqa: F401, for checks
from tests.gpu.checks import BEGUN, CHECKS, CHOICES, NOT_RUN, PROVED, REFUTED, attempt, line

LIMIT = 300.0
"""Seconds without progress after which a launch of the checks counts as hanging."""
QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Environment of the ranks: as many queues as a GPU has, so that streams do not wait for each other by sharing one."""
AT_THE_END = "clocks.sm,temperature.gpu,power.draw,ecc.errors.uncorrected.volatile.total"
"""What is asked of every GPU after the last check: whether it was hot and slow, or made errors."""
VARIABLES = ("CUDA_", "CUBLAS_", "NCCL_", "PYTORCH_", "TORCH_")
"""Prefixes of the environment variables that are recorded: they change what is proved."""


def prove(kind, ranks, names=None, say=print, keep=lambda record: None, place=""):
    """Run the checks with these ``names`` (default: all) on ``ranks`` devices of a ``kind``; return the record.

    ``place``: only the checks in that place. ``keep`` is called with the record so far after each check in the host's
    place and each launch of the others; what comes later is not run yet in it.
    """
    chosen = [one for name, one in CHECKS.items() if (not names or name in names) and place in ("", one.place)]
    for name in names or ():
        if name not in CHECKS:
            raise DpbookError(f"there is no check {name!r}; there are: {', '.join(CHECKS)}")
    outcomes, about = {}, {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "ranks": ranks, "machine": describe(kind)}

    def record():
        later = {"result": NOT_RUN, "why": "the proof ended before it", "figures": {}}
        checks = [{"name": one.name, "claim": one.claim, **outcomes.get(one.name, later)} for one in chosen]
        return {**about, "checks": checks}

    for one in chosen:
        if why := one.why_not(kind, ranks):
            outcomes[one.name] = {"result": NOT_RUN, "why": why}
    with tempfile.TemporaryDirectory(prefix="dpbook-gpu-") as folder:
        in_ranks = [one.name for one in chosen if one.place == "ranks" and one.name not in outcomes]
        while in_ranks:
            outcomes |= _in_ranks(kind, ranks, in_ranks, Path(folder), say)
            keep(record())
            in_ranks = [name for name in in_ranks if name not in outcomes]
        machine = launches.Machine(kind, ranks, Path(folder))
        for one in chosen:
            if one.place == "host" and one.name not in outcomes:
                outcomes[one.name] = _timed(lambda one=one: attempt(one, machine))
                say(line(one.name, outcomes[one.name]))
                keep(record())
    return record() | ({"at the end": _nvidia_smi(AT_THE_END, lines=None)} if kind == "cuda" else {})


def _timed(call):
    begun = time.monotonic()
    result, why, figures = call()
    return {"result": result, "why": why, "figures": figures, "seconds": round(time.monotonic() - begun, 2)}


def _in_ranks(kind, ranks, names, folder, say):
    """Run checks in one launch, and return the outcomes of those that ended, and of the one that ended the launch.

    Rank 0 prints the former.
    """
    outcomes, messages = folder / f"outcomes-{len(names)}.jsonl", []
    script = str(Path(__file__).with_name("in_ranks.py"))
    modules = sorted({CHECKS[name].function.__module__ for name in names})
    variables = QUEUES | {CHOICES: json.dumps([kind, str(outcomes), modules, names])}
    spec = Launch((script,), ranks, hang_timeout=LIMIT, logs=folder / f"logs-{len(names)}", variables=variables)
    status = launch(spec, messages.append).status
    lines = outcomes.read_text().splitlines() if outcomes.exists() else []
    found = dict(json.loads(each) for each in lines)
    begun = found.pop(BEGUN, None)  # the last one
    lost = [name for name in names if name not in found]
    why = "\n".join(messages) or f"the ranks ended with status {status}"
    for name in [begun] if begun in lost else lost:  # all of them, if the ranks did not come to the first
        found[name] = {"result": REFUTED, "why": why, "figures": {}}
        say(line(name, found[name]))
    return found


def describe(kind):
    """Return the machine, its driver, and the versions of what the proof depends on."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    commit = _command("git", "-C", str(checkout.root()), "rev-parse", "--short", "HEAD")
    described = {"device": "stand-in accelerator", "system": platform.platform(), "cores": os.cpu_count()}
    if kind == "cuda":
        devices = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        versions |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        described |= {"device": devices[0], "devices": devices, "driver": _nvidia_smi("driver_version")}
        described |= {"clocks": _nvidia_smi("clocks.max.sm"), "MIG": _nvidia_smi("mig.mode.current")}
        described |= {"topology": _command("nvidia-smi", "topo", "-m")}
    variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    return described | {"versions": versions, "variables": variables, "dpbook": commit or "no checkout"}


def _nvidia_smi(field, lines=1):
    return _command("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader").splitlines()[:lines]


def _command(*command):
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


HEADINGS = {REFUTED: "Refuted", PROVED: "Proved", NOT_RUN: "Not run"}


def page(record):
    """Return the record as a page of Markdown: what is refuted, proved and not run, each claim with its figures."""
    machine, checks = record["machine"], record["checks"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    counts = ", ".join(f"{sum(c['result'] == result for c in checks)} {result}" for result in HEADINGS)
    ranks = "1 rank" if record["ranks"] == 1 else f"{record['ranks']} ranks"
    lines = [
        f"# {machine['device']}, {ranks}: {counts}",
        "",
        f"{record['date']}; {versions}; dpbook {machine['dpbook']}",
    ]
    for result, heading in HEADINGS.items():
        found = [one for one in checks if one["result"] == result]
        lines += ["", f"## {heading}", ""] if found else []
        for one in found:
            why = f" **{one['why']}**" if one.get("why") else ""
            figures = format_figures(one.get("figures", {}))
            lines.append(f"- {one['claim']}{why}" + (f" ({figures})" if figures else ""))
    return "\n".join(lines) + "\n"


def _refuse_unwritable(path):
    """Raise `DpbookError` if no file can be written to ``path``: better now than after ten minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise DpbookError(f"the record cannot be written to --out {path}: {error.strerror}") from error


def write(record, path):
    """Write the record as JSON to ``path``, and the page beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(record), encoding="utf-8")


def numbers_of_ranks(kind, ranks, gpus):
    """Return the numbers of ranks to prove with, without one that is there twice. Raises `DpbookError`."""
    default = [gpus, *(n for n in (4, 3, 2) if n < gpus)] if kind == "cuda" else [1]
    for number in ranks or ():
        if number < 1 or (kind == "cuda" and number > gpus):
            most = f" to {gpus}, the number of GPUs" if kind == "cuda" else " or more"
            raise DpbookError(f"--ranks {number} is not possible: it is from 1{most}")
    return list(dict.fromkeys(ranks or default))


def main(device, ranks, names, out, place=""):
    """Prove, write and print, for each number of ranks; return 1 if a check is refuted."""
    gpus = torch.cuda.device_count()
    kind = device or "cuda"
    if kind == "cuda" and not gpus:
        build = f"torch {torch.__version__} of {sys.executable}"
        print(f"there is no GPU that {build} can use; --device sim rehearses on the stand-in", file=sys.stderr)
        return 2
    numbers = numbers_of_ranks(kind, ranks, gpus)
    name = "-".join(describe(kind)["device"].lower().split())
    paths = [out or Path(f"gpu_proof_{name}_{number}.json") for number in numbers]
    if out and len(numbers) > 1:
        paths = [out.with_stem(f"{out.stem}_{number}") for number in numbers]
    _refuse_unwritable(paths[0])
    refuted = False
    for number, path in zip(numbers, paths, strict=True):
        chosen = names
        if number != numbers[0]:
            chosen = [one.name for one in CHECKS.values() if one.is_between_ranks and one.name in (names or CHECKS)]
        record = prove(kind, number, chosen, keep=lambda record, path=path: write(record, path), place=place)
        write(record, path)
        print(page(record) + f"\nwritten: {path} and {path.with_suffix('.md')}")
        refuted = refuted or any(one["result"] == REFUTED for one in record["checks"])
    return int(refuted)
