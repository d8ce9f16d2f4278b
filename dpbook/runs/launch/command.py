"""What a launch starts: the command, torchrun with our guard around the program, and its variables. Loads no torch."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpbook.core import PACKAGE, PARENT, InvalidArgument, check_float, check_int, machine
from dpbook.ranks import failure_files
from dpbook.runs.launch.hang_detector import HangWatch
from dpbook.runs.postmortem import flight_recorder

WATCH_START, CHECK_CALLS = "DPBOOK_START_TIMEOUT", "DPBOOK_CHECK_CALLS"
"""Variables, both in seconds, in which a rank is told what is to be watched."""
WATCHER = "DPBOOK_WATCHER"
"""The variable with the name of a module that is to watch the script."""
REPORT = "DPBOOK_TORCHRUN_REPORT"
"""The variable with the name of the file for torchrun's report of a failure."""
START_TIMEOUT = 300.0
"""Seconds; torch itself waits for ten minutes with NCCL, for thirty with gloo."""
HANG_TIMEOUT = 600.0
"""Seconds without a step of any rank after which a run on one machine is ended, if it was not said."""


@dataclass(frozen=True)
class Launch:
    """``program`` on ``nproc`` ranks of this machine, of ``nnodes`` machines that meet at ``endpoint`` (host:port).

    ``program`` is a script and its arguments, or "-m", a module and its arguments. A failed run is started again
    up to ``max_restarts`` times. Ranks and nodes wait for each other for ``start_timeout`` seconds. With
    ``check_calls`` they compare their collectives before they call them, and wait for so many seconds for one that
    does not come (0: no check). A run that hangs (`hang.HangWatch`) is ended after ``hang_timeout`` seconds (0: never;
    None: `HANG_TIMEOUT`, but with several nodes never, since each sees its own ranks alone). What the ranks but rank 0
    print goes to a new folder in ``logs``; without it to one in `logs.LOGS` if the launch fails. Each rank gets
    ``threads`` for computation, by default its share of the cores. With ``torchrun_report`` torchrun's own report of
    a failure is shown. ``watcher`` is a module whose ``install()`` every rank calls before the program begins, and
    ``told`` variables that it reads. Raises `InvalidArgument`.
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
    watcher: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.program or self.program == ("-m",):
            raise InvalidArgument("program", self.program, "a script, or -m and a module")
        if self.program[0] != "-m" and not Path(self.program[0]).is_file():
            raise InvalidArgument("script", self.program[0], "a file that exists")
        check_int("nproc", self.nproc, 1)
        check_int("nnodes", self.nnodes, 1)
        check_int("max_restarts", self.max_restarts, 0)
        check_float("start_timeout", self.start_timeout, minimum=1)
        check_float("check_calls", self.check_calls, minimum=0)
        check_float("hang_timeout", self.hang_timeout or 0.0, minimum=0)

    @property
    def name(self) -> str:
        """Of the script, or of the module."""
        return Path(self.program[0]).stem if self.program[0] != "-m" else self.program[1]

    @property
    def patience(self) -> float:
        """Seconds for which a run may hang; 0: for ever."""
        if self.hang_timeout is None:
            return HANG_TIMEOUT if self.nnodes == 1 else 0.0
        return self.hang_timeout

    def hang_watch(self, folder: Path) -> HangWatch | None:
        """Who looks for a hang, if anybody."""
        ranks = range(self.nproc * self.nnodes)
        return HangWatch(folder, ranks, self.patience, strict=self.hang_timeout is not None) if self.patience else None

    def command(self, folder: Path, logs: Path) -> list[str]:
        """What is started: torchrun, and under it our guard around the program; the ranks' output goes to ``logs``."""
        if self.nnodes == 1:
            meeting = ["--standalone"]
        else:
            meeting = [f"--nnodes={self.nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={self.endpoint}"]
            seconds = math.ceil(self.start_timeout)
            meeting += [f"--rdzv-conf=join_timeout={seconds},read_timeout={seconds}"]
        own = [f"--nproc-per-node={self.nproc}", f"--max-restarts={self.max_restarts}"]
        quiet = ",".join(f"{local}:3" for local in range(1, self.nproc))  # rank 0 speaks for all
        output = [f"--log-dir={logs}", *([f"--redirects={quiet}"] if quiet else [])]
        guarded = ["-m", "dpbook.runs.launch.guard", str(folder), *self.program]
        return [sys.executable, "-m", "dpbook.runs.launch.torchrun", *meeting, *own, *output, *guarded]

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables that the ranks get, besides this process's own; what the user has set stays."""
        threads = self.threads or max(1, machine.cores() // self.nproc)
        root = str(PACKAGE.parent)
        return {
            "OMP_NUM_THREADS": str(threads),
            # Without this a restart may meet the store of the attempt before it, and hang.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # Else init_process_group may return before the others have come, and nobody sees where the start hangs.
            "TORCH_DIST_INIT_BARRIER": "1",
            **flight_recorder.VARIABLES,
            **os.environ,
            PARENT: str(os.getpid()),
            WATCH_START: str(self.start_timeout),
            CHECK_CALLS: str(self.check_calls),
            REPORT: str(folder / failure_files.TORCHRUN_REPORT),
            failure_files.ASKED_FILE: str(folder / failure_files.ASKED),
            **({WATCHER: self.watcher} if self.watcher else {}),
            **self.told,
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        }


def default_processes(gpus: Sequence[machine.Gpu]) -> int:
    """One rank per GPU; without any, two where there are two cores: enough to be distributed, and quick."""
    return len(gpus) or min(2, machine.cores())
