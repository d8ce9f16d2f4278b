"""What does `dpbook launch` cost beside bare torchrun, and does a run whose rank is killed end with the same bits?

    python tests/benchmarks/bench_launch.py [--repeats 20]

Processes on this machine: two for the empty program, and three for the runs, since a sum of two has no order. Linux,
where the killed rank is found in /proc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.rows import Row, begin, seconds, show  # noqa: E402
from tests.runs.launch import restarts  # noqa: E402

PROGRAM = 'import torch.distributed as dist\ndist.init_process_group("gloo")\ndist.destroy_process_group()\n'
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
LAUNCH = ["dpbook", "launch", "--nproc", "2", "--"]


def start(module: list[str], script: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", *module, str(script)], env=env, check=True, capture_output=True)


def launch_times(repeats: int) -> list[float]:
    """`dpbook launch` over torchrun, neighbours in time."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text(PROGRAM)
        return [
            seconds(lambda: start(LAUNCH, script)) / seconds(lambda: start(TORCHRUN, script)) for _ in range(repeats)
        ]


def resumed(trials: int) -> tuple[int, list[float]]:
    """Number of killed runs that ended with the weights of a run that was not killed, and the seconds of all."""
    alike, times = 0, []
    with tempfile.TemporaryDirectory() as name:
        quiet = Path(name) / "quiet"
        quiet.mkdir()
        restarts.begin(quiet, "--no-alone", "--no-predict").communicate()
        wanted = restarts.weights(quiet)
        for trial in range(trials):
            folder = Path(name) / str(trial)
            folder.mkdir()

            def killed(folder: Path = folder) -> None:
                launch = restarts.begin(folder, "--no-alone", "--no-predict", "--max-restarts", "1")
                restarts.kill_rank_1(folder, launch)
                output, _ = launch.communicate()
                assert "resumed after step" in output, output

            times.append(seconds(killed))
            alike += restarts.same_bits(wanted, restarts.weights(folder))
    return alike, times


def main() -> None:
    repeats = begin(__doc__, repeats=20)
    show(
        Row("an empty program: `dpbook launch` / bare torchrun", launch_times(repeats), "×", at_most=1.1, headline=True)
    )
    alike, times = resumed(repeats)
    show(Row("a run whose rank 1 is killed once", times, "s"))
    print(f"of {repeats} killed runs {alike} ended with the weights of an uninterrupted one, bit for bit")


if __name__ == "__main__":
    main()
