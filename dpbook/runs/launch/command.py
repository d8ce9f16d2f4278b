"""The command that a launch starts, and its environment: torchrun with a guard around the program. Loads no torch."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpbook.core import PACKAGE, PARENT, InvalidArgument, check_float, check_int, machine
from dpbook.ranks import failure_files
from dpbook.runs.launch.watches import HangWatch
from dpbook.runs.postmortem import flight_recorder

START_TIMEOUT_VARIABLE = "DPBOOK_START_TIMEOUT"
"""Environment variable: the seconds that a rank waits for the others in `init_process_group`."""
CHECK_CALLS_VARIABLE = "DPBOOK_CHECK_CALLS"
"""Environment variable: the seconds that a rank waits for the others before a collective, to compare its arguments."""
WATCHER_VARIABLE = "DPBOOK_WATCHER"
"""Environment variable: the name of a module whose ``install()`` a rank calls when it begins."""
RECORDED_VARIABLE = "DPBOOK_RECORDED"
"""Environment variable: the path of the file that a watcher creates when a rank's recording is complete, with "{}" for
the rank."""
SPAWNS_VARIABLE = "DPBOOK_SPAWNS"
"""Environment variable: the number of ranks, if the script starts them itself."""
REPORT_VARIABLE = "DPBOOK_TORCHRUN_REPORT"
"""Environment variable: the path of the file for torchrun's report of a failure."""
START_TIMEOUT = 300.0
"""Seconds; torch itself waits for ten minutes with NCCL and for thirty with gloo."""
HANG_TIMEOUT = 540.0
"""Seconds without progress of any rank after which a run on one machine is stopped by default. They are a minute less
than NCCL's timeout, whose watchdog would abort the ranks that wait before the launch can say which rank is missing."""


@dataclass(frozen=True)
class Launch:
    """Launch of ``program`` on ``nproc`` ranks of this machine and of ``nnodes`` machines.

    Attributes:
        program: a script and its arguments, or "-m", a module and its arguments.
        endpoint: the place "host:port" where several nodes meet.
        max_restarts: how often a failed run is started again.
        start_timeout: seconds for which ranks and nodes wait for each other at the start.
        check_calls: if positive, the ranks compare their collectives before they call them, and wait so many seconds
            for a rank that does not join.
        threads: threads of each rank for computation; by default its share of the cores.
        torchrun_report: whether torchrun's own report of a failure is shown.
        hang_timeout: seconds after which a run that hangs (`HangWatch`) is stopped; 0: never. None: `HANG_TIMEOUT`, but
            never with several nodes, since each sees its own ranks alone.
        logs: the parent of a new folder with the output of all ranks except rank 0. None: a folder below `LOG_FOLDER`,
            if the launch fails.
        spawns: whether the script starts these ranks itself, such as with `torch.multiprocessing.spawn`. It is then
            started once, by Python itself.
        variables: further environment variables of the ranks.

    Raises `InvalidArgument`.
    """

    program: tuple[str, ...]
    nproc: int
    nnodes: int = 1
    endpoint: str | None = None
    max_restarts: int = 0
    start_timeout: float = START_TIMEOUT
    check_calls: float = 0.0
    threads: int | None = None
    torchrun_report: bool = False
    hang_timeout: float | None = None
    logs: Path | None = None
    spawns: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.program or self.program == ("-m",):
            raise InvalidArgument("program", self.program, "a script, or -m and a module")
        if self.program[0] != "-m" and not Path(self.program[0]).is_file():
            raise InvalidArgument("script", self.program[0], "a file that exists")
        check_int("nproc", self.nproc, 1)
        check_int("nnodes", self.nnodes, 1)
        check_int("max_restarts", self.max_restarts, 0)
        if self.spawns and self.max_restarts:
            raise InvalidArgument("max_restarts", self.max_restarts, "0 for a script that starts its ranks itself")
        check_float("start_timeout", self.start_timeout, minimum=1)
        check_float("check_calls", self.check_calls, minimum=0)
        check_float("hang_timeout", self.hang_timeout or 0.0, minimum=0)

    @property
    def name(self) -> str:
        """Return the name of the script without its suffix, or of the module."""
        return Path(self.program[0]).stem if self.program[0] != "-m" else self.program[1]

    @property
    def ranks(self) -> range:
        return range(self.nproc * self.nnodes)

    def hang_watch(self, folder: Path) -> HangWatch | None:
        """Return the watch for a hang; None if a hanging run is not stopped."""
        default = HANG_TIMEOUT if self.nnodes == 1 else 0.0
        timeout = default if self.hang_timeout is None else self.hang_timeout
        return HangWatch(folder, self.ranks, timeout, strict=self.hang_timeout is not None) if timeout else None

    def command(self, folder: Path, logs: Path) -> list[str]:
        """Return the command: torchrun with the guard around the program. The ranks' output goes to ``logs``.

        A program that starts its ranks itself needs only the guard, and prints what it likes.
        """
        guarded = ["dpbook.runs.launch.guard", str(folder), *self.program]
        if self.spawns:
            return [sys.executable, "-u", "-m", *guarded]
        rendezvous = ["--standalone"]
        if self.nnodes > 1:
            rendezvous = [f"--nnodes={self.nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}"]
            seconds = math.ceil(self.start_timeout)
            rendezvous += [f"--rdzv-conf=join_timeout={seconds},read_timeout={seconds}"]
        options = [f"--nproc-per-node={self.nproc}", f"--max-restarts={self.max_restarts}", f"--log-dir={logs}"]
        if self.nproc > 1:  # rank 0 alone prints to the terminal
            options.append("--redirects=" + ",".join(f"{local}:3" for local in range(1, self.nproc)))
        return [sys.executable, "-m", "dpbook.runs.launch.torchrun", *rendezvous, *options, "-m", "--", *guarded]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment of the ranks: this process's own, with defaults for variables that it does not set."""
        return {
            "OMP_NUM_THREADS": str(self.threads or max(1, machine.cores() // self.nproc)),
            # Without this a restart may meet the store of the attempt before it, and hang.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # Without this init_process_group may return before all ranks have joined, and a hang there goes unseen.
            "TORCH_DIST_INIT_BARRIER": "1",
            **flight_recorder.VARIABLES,
            **(machine.MALLOC_SETTINGS if self.spawns else {}),
            **os.environ,
            PARENT: str(os.getpid()),
            START_TIMEOUT_VARIABLE: str(self.start_timeout),
            CHECK_CALLS_VARIABLE: str(self.check_calls),
            REPORT_VARIABLE: str(folder / failure_files.TORCHRUN_REPORT_FILE),
            failure_files.PREEMPTION_VARIABLE: str(folder / failure_files.PREEMPTION_FILE),
            **({SPAWNS_VARIABLE: str(len(self.ranks))} if self.spawns else {}),
            **self.variables,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")])),
        }


def default_processes(gpus: Sequence[machine.Gpu]) -> int:
    """Return one process per GPU. Without a GPU, return two if there are two cores: the fewest that are distributed."""
    return len(gpus) or min(2, machine.cores())
