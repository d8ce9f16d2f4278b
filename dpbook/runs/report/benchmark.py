"""Benchmark of ``dpbook bench``: sweeps of message sizes over processes of this machine, as table, JSON and figure."""

import datetime
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpbook.collectives import ALGORITHMS, fit
from dpbook.core import check_one_of, files, machine
from dpbook.ranks import Sweep, sweep, sweep_accelerators

TORCH, ON_ACCELERATORS = "dist.all_reduce", "accelerators"
"""Names, beside those of algorithms, of torch.distributed's all-reduce on the CPU and on accelerators."""


@dataclass(frozen=True, eq=False)
class Bench:
    """Sweeps over ``world`` ranks, by the name of the algorithm."""

    world: int
    sweeps: dict[str, Sweep]

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON, with machine, versions and date."""
        return {
            "format": "dpbook.bench",
            "version": 2,
            "world": self.world,
            "sweeps": {name: _sweep_data(one) for name, one in self.sweeps.items()},
            "machine": {"processor": machine.processor(), "cores": os.cpu_count()},
            "versions": {"python": platform.python_version(), "torch": version("torch")},
            "date": str(datetime.date.today()),
        }

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{name}, {self.world} ranks over {one.backend}\n{one!r}\n{fit(one.nbytes, one.seconds)!r}"
            for name, one in self.sweeps.items()
        )


def _sweep_data(one: Sweep) -> dict[str, Any]:
    arrays = {"nbytes": one.nbytes, "seconds": one.times, "algbw": one.algbw, "busbw": one.busbw}
    lists = {name: values.tolist() for name, values in arrays.items()}
    return {"backend": one.backend, **lists, **asdict(fit(one.nbytes, one.seconds).model)}


def names_here(world: int) -> list[str]:
    """Return the default names: torch's all-reduce, a ring, and accelerators if there is one for each rank."""
    return [TORCH, "ring", *([ON_ACCELERATORS] if len(machine.gpus()) >= world else [])]


def run(
    world: int,
    names: Sequence[str] = (TORCH, "ring"),
    nbytes: Sequence[int] | None = None,
    repeats: int = 25,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Bench:
    """Sweep each of the named algorithms in turn; ``progress`` may wrap the names.

    Bandwidths are those of nccl-tests: algbw is bytes over seconds, busbw what a link carries of it.

    Raises `InvalidArgument` for an unknown name, and the errors of `dpbook.ranks.sweeps`.
    """
    known = [TORCH, ON_ACCELERATORS, *ALGORITHMS]
    for name in names:
        check_one_of("algorithm", name, known)
    sizes = {} if nbytes is None else {"nbytes": nbytes}
    sweeps = {}
    for name in progress(list(dict.fromkeys(names))):
        if name == ON_ACCELERATORS:
            sweeps[name] = sweep_accelerators(world, repeats=repeats, timeout=600, **sizes)
        else:
            algorithm = None if name == TORCH else ALGORITHMS[name](world)
            sweeps[name] = sweep(world, algorithm, repeats=repeats, timeout=600, **sizes)
    return Bench(world, sweeps)


def write(bench: Bench, folder: Path) -> list[Path]:
    """Write ``bench.json`` and ``bench.svg`` into ``folder``; a number in the name keeps those of earlier runs."""
    from dpbook import figures

    stems = (f"bench-{number}" if number > 1 else "bench" for number in itertools.count(1))
    data = next(path for stem in stems if not (path := folder / f"{stem}.json").exists())
    picture = data.with_suffix(".svg")
    files.write_atomically(data, (json.dumps(bench.to_data(), indent=1) + "\n").encode())
    plot = figures.sweeps(bench.sweeps, f"Bus bandwidth over {bench.world} ranks on this machine")
    files.write_atomically(picture, f"{plot.svg}\n".encode())
    return [data, picture]
