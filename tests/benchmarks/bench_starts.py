"""What does it cost to start ranks once a server has loaded torch, beside the first start and beside torchrun?

    python tests/benchmarks/bench_starts.py [--repeats 10]

Each start meets in a process group, all-reduces once, and ends. Cold and warm starts and torchrun take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dpbook.ranks import start, starting  # noqa: E402
from tests.benchmarks.rows import Row, begin, seconds, show  # noqa: E402

WORLDS = 2, 3, 4
PROGRAM = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
"""


def reduce() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3))


def ranks(world: int) -> None:
    start(reduce, [()] * world)


def torchrun(world: int, script: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", str(script)]
    environment = starting._environment(os.environ)
    subprocess.run(command, env=environment, check=True, capture_output=True)


def main() -> None:
    repeats = begin(__doc__, repeats=10)
    cold, warm, bare = ({world: [] for world in WORLDS} for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "reduce.py"
        script.write_text(PROGRAM)
        for _ in range(repeats):
            for world in WORLDS:
                starting._RANKS.stop()
                cold[world].append(seconds(partial(ranks, world)))
                warm[world].append(median(seconds(partial(ranks, world)) for _ in range(3)))
                bare[world].append(seconds(partial(torchrun, world, script)))
    for world in WORLDS:
        show(Row(f"{world} ranks: the first start", cold[world], "s"))
        show(Row(f"{world} ranks: every later start", warm[world], "s"))
        show(Row(f"{world} ranks: torchrun", bare[world], "s"))
        for name, others in ("the first one", cold), ("torchrun", bare):
            ratios = [one / other for one, other in zip(warm[world], others[world], strict=True)]
            show(
                Row(
                    f"{world} ranks: every later start / {name}",
                    ratios,
                    "×",
                    at_most=0.1,
                    headline=(world, name) == (4, "torchrun"),
                )
            )


if __name__ == "__main__":
    main()
