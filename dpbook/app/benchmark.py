"""``dpbook bench``: sweeps of message sizes over processes on this machine, as a table, as JSON and as a figure."""

import datetime
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpbook.collectives import ALGORITHMS, Fit, fit
from dpbook.core import InvalidArgument, check_one_of, files, machine
from dpbook.ranks import Sweep, sweep

OWN = "dist.all_reduce"
"""torch.distributed's all-reduce, among the names of algorithms."""


@dataclass(frozen=True, eq=False)
class Bench:
    """A sweep for each algorithm over ``world`` ranks, by its name."""

    world: int
    sweeps: dict[str, Sweep]

    def fits(self) -> dict[str, Fit]:
        """α and β of each, from the median at each size."""
        return {name: fit(one.nbytes, one.seconds) for name, one in self.sweeps.items()}

    def to_data(self) -> dict[str, Any]:
        """As JSON takes it, with machine, versions and date."""
        return {
            "format": "dpbook.bench",
            "version": 1,
            "world": self.world,
            "backend": "gloo",
            "sweeps": {
                name: {
                    "nbytes": one.nbytes.tolist(),
                    "seconds": one.times.tolist(),
                    "algbw": one.algbw.tolist(),
                    "busbw": one.busbw.tolist(),
                    "alpha": fitted.model.alpha,
                    "beta": fitted.model.beta,
                }
                for (name, one), fitted in zip(self.sweeps.items(), self.fits().values(), strict=True)
            },
            "machine": {"processor": machine.processor(), "cores": os.cpu_count()},
            "versions": {"python": platform.python_version(), "torch": version("torch")},
            "date": str(datetime.date.today()),
        }

    def __repr__(self) -> str:
        fits = self.fits()
        parts = [f"{name}, {self.world} ranks\n{one!r}\n{fits[name]!r}" for name, one in self.sweeps.items()]
        return "\n\n".join(parts)


def run(
    world: int,
    names: Sequence[str] = (OWN, "ring"),
    nbytes: Sequence[int] | None = None,
    repeats: int = 25,
    progress: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Bench:
    """Sweep each of the named algorithms in turn; ``progress`` may wrap the names, as tqdm does.

    Raises `InvalidArgument` for an unknown name, and what `dpbook.ranks.sweeps` raises.
    """
    known = [OWN, *ALGORITHMS]
    for name in names:
        check_one_of("algorithm", name, known)
    if not names:
        raise InvalidArgument("algorithms", names, f"one or more of {', '.join(known)}")
    sizes = {} if nbytes is None else {"nbytes": nbytes}
    sweeps = {}
    for name in progress(list(dict.fromkeys(names))):
        algorithm = None if name == OWN else ALGORITHMS[name](world)
        sweeps[name] = sweep(world, algorithm, repeats=repeats, timeout=600, **sizes)
    return Bench(world, sweeps)


def write(bench: Bench, folder: Path) -> list[Path]:
    """Write ``bench.json`` and ``bench.png`` into ``folder``; files of an earlier run are kept, beside a number."""
    from dpbook import figures

    stems = (f"bench-{number}" if number > 1 else "bench" for number in itertools.count(1))
    data = next(path for stem in stems if not (path := folder / f"{stem}.json").exists())
    picture = data.with_suffix(".png")
    files.write_atomically(data, (json.dumps(bench.to_data(), indent=1) + "\n").encode())
    plot = figures.sweeps(bench.sweeps, f"Bus bandwidth over {bench.world} ranks on this machine")
    files.write_atomically(picture, plot.png)
    return [data, picture]
