"""How fast are simulation, verification and counting? Prints ratios that were measured side by side in one run.

    python tests/benchmarks/bench_collectives.py [--repeats 7]

Seconds depend on the machine and on what else it does; ratios of two things measured in turn hardly do.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from dpbook.collectives import count, ring, simulate  # noqa: E402
from tests.benchmarks.rows import Row, begin, seconds, show  # noqa: E402


def message_by_message(schedule, buffers):
    """The plain loop: every message of a round is read before any is written."""
    offsets = schedule.bounds(buffers.shape[1], buffers.itemsize).tolist()
    chunks = [[row[a:b] for a, b in pairwise(offsets)] for row in buffers.copy()]
    for round_ in schedule.rounds:
        snapshot = [(m, chunks[m.source][m.chunk].copy()) for m in round_]
        for m, arriving in snapshot:
            mine = chunks[m.dest][m.chunk]
            if m.reduce:
                np.add(mine, arriving, out=mine)
            else:
                mine[:] = arriving
    return np.stack([np.concatenate(row) for row in chunks])


def against_a_plain_loop(size: int, goal: float, repeats: int) -> list[Row]:
    """1,024 ranks; the first simulation of a schedule also checks its rounds, later ones do not."""
    buffers = np.random.default_rng(size).standard_normal((1024, size)).astype(np.float32)
    schedule = ring(1024)
    if simulate(schedule, buffers).buffers.tobytes() != message_by_message(schedule, buffers).tobytes():
        raise SystemExit("the simulation and the plain loop differ in bits")
    again, first = [], []
    for _ in range(repeats):
        loop = seconds(lambda: message_by_message(schedule, buffers))
        again.append(loop / seconds(lambda: simulate(schedule, buffers)))
        first.append(loop / seconds(lambda: simulate(ring(1024), buffers)))
    name = f"ring of 1,024 × {size:,} float32: plain loop / simulate"
    return [
        Row(name, again, "×", at_least=goal),
        Row("    the same, schedule built and checked anew", first, "×"),
    ]


def against_the_memory(repeats: int) -> Row:
    """8 ranks × 12.5 MiB: 7 buffers' worth of additions and 7 of copies per rank, and nothing else."""
    size = int(12.5 * 2**20) // 4
    buffers, schedule = np.ones((8, size), np.float32), ring(8)

    def additions():
        for mine, other in pairwise(buffers):
            np.add(mine, other, out=mine)

    def copies():
        for mine, other in pairwise(buffers):
            np.copyto(mine, other)

    for call in (additions, copies, lambda: simulate(schedule, buffers, in_place=True)):
        call()
    shares = []
    for _ in range(repeats):
        floor = seconds(additions) + seconds(copies)  # 7 buffers each, as many as all ranks of the ring handle
        buffers[:] = 1
        shares.append(floor / seconds(lambda: simulate(schedule, buffers, in_place=True)))
        if not (buffers == 8).all():
            raise SystemExit("the ring of 8 does not give the sum")
    return Row("ring of 8 × 12.5 MiB in place: share of what np.add + np.copyto allow", shares, "×", at_least=0.7)


VERIFY = """
import resource, sys, time
from dpbook.collectives import ring, verify
schedule = ring(1024)
begin = time.perf_counter()
verify(schedule)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(seconds, peak)
"""


def in_a_fresh_process(repeats: int) -> list[Row]:
    def measure() -> list[float]:
        command = [sys.executable, "-c", VERIFY]
        return [float(x) for x in subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.split()]

    times, peaks = zip(*(measure() for _ in range(repeats)), strict=True)
    return [
        Row("verify the ring of 1,024", list(times), "s", at_most=0.5),
        Row("    peak memory of its process", [peak / 2**20 for peak in peaks], "MiB", at_most=250),
    ]


def main() -> None:
    repeats = begin(__doc__, repeats=7)
    # First, while this process is small: Linux counts the peak of a process from the size of the one that forked it.
    for row in in_a_fresh_process(repeats):
        show(row)
    for row in against_a_plain_loop(4096, 50, repeats) + against_a_plain_loop(4099, 25, repeats):
        show(row)
    show(against_the_memory(repeats))
    show(Row("count the ring of 8,192", [seconds(lambda: count(ring(8192), 10**6)) for _ in range(repeats)], "s"))


if __name__ == "__main__":
    main()
