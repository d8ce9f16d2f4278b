"""Does the last word of a failed launch name the rank at fault, what happened to it, and where?

Each fault is injected on rank 1 of a script that knows nothing of us: torch, DDP and gloo.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from dpbook.core import checkout

HEAD = """import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
"""
JOIN = """dist.init_process_group("gloo", timeout=timedelta(seconds=4))
rank = dist.get_rank()
"""
MODEL = """model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
def step():
    loss = model(torch.ones(3, 4)).sum()
    loss.backward()  # LINE BACKWARD
for _ in range(2):  # the second settles DDP's buckets
    step()
"""


@dataclass(frozen=True)
class Fault:
    """``script``, after what it has in common with others, and what the headline begins with, and ``also`` holds.

    "LINE x" in them stands for the number of the line that ends in "# LINE x", OTHERS for the ranks but rank 1.
    """

    script: str
    headline: str
    also: str = ""
    options: tuple[str, ...] = ()
    quick: bool = False


FAULTS = {
    "an error while the others compute": Fault(
        JOIN + 'while rank != 1:\n    torch.ones(64, 64) @ torch.ones(64, 64)\n{}["label"]',
        "rank 1 failed first: KeyError: 'label'",
        quick=True,
    ),
    "an error near a collective": Fault(
        JOIN + 'if rank == 1:\n    raise ValueError("on purpose")\ndist.barrier()',
        "rank 1 failed first: ValueError: on purpose",
    ),
    "an error before the group exists": Fault(
        'if os.environ["RANK"] == "1":\n    raise ValueError("on purpose")\n' + JOIN,
        "rank 1 failed first: ValueError: on purpose",
    ),
    "an error while the others import": Fault(
        'if os.environ["RANK"] == "1":\n    raise ValueError("on purpose")\ntime.sleep(60)\n' + JOIN,
        "rank 1 failed first: ValueError: on purpose",
    ),
    "an error in the reading of a checkpoint": Fault(
        JOIN + 'open("bad.pt", "wb").close() if rank == 1 else time.sleep(60)\ntorch.load("bad.pt")',
        "rank 1 failed first: EOFError: ",
    ),
    "an error whose group is destroyed": Fault(
        JOIN + 'try:\n    {}["label"] if rank == 1 else dist.barrier()\nfinally:\n    dist.destroy_process_group()',
        "rank 1 failed first: KeyError: 'label'",
    ),
    "an error after which one waits for the others": Fault(
        JOIN + 'try:\n    {}["label"] if rank == 1 else dist.all_reduce(torch.ones(3))\nfinally:\n    dist.barrier()',
        "rank 1 failed first: KeyError: 'label'",
    ),
    "an error that others answer with one of their own": Fault(
        JOIN + 'try:\n    {}["label"] if rank == 1 else dist.barrier()\n'
        'except RuntimeError as error:\n    raise ValueError("lost") from error',
        "rank 1 failed first: KeyError: 'label'",
    ),
    "too little memory": Fault(
        JOIN + MODEL + "torch.ones(10**15) if rank == 1 else step()",
        "rank 1 failed first: RuntimeError: [enforce fail at alloc_cpu.cpp",
    ),
    "models that differ": Fault(
        JOIN + "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2 + (rank == 1)))",
        "rank 1 failed first: RuntimeError: [1]: params[0] in this process with sizes [3, 4] appears not to match",
    ),
    "an exit with a status": Fault(
        JOIN + "sys.exit(3) if rank == 1 else dist.barrier()", "rank 1 failed first: SystemExit: 3"
    ),
    "an early end": Fault(
        JOIN + MODEL + "for i in range(4):\n    if i == 2 and rank == 1:\n        sys.exit(0)\n    step()",
        "rank 1 finished (status 0) while OTHERS in backward, line BACKWARD of step",
        quick=True,
    ),
    "a step less": Fault(
        JOIN + MODEL + "for i in range(4 - (rank == 1)):\n    step()",
        "rank 1 finished (status 0) while OTHERS in backward, line BACKWARD of step",
    ),
    "an exit without a word": Fault(
        JOIN + MODEL + "os._exit(0) if rank == 1 else step()",
        "rank 1 died: it left with exit status 0; the others were ended",
    ),
    "a kill": Fault(
        JOIN + MODEL + "os.kill(os.getpid(), 9) if rank == 1 else step()",
        "rank 1 died: killed by SIGKILL (as the system does where memory runs out); the others were ended",
    ),
    "a crash": Fault(
        JOIN + MODEL + "import ctypes\nctypes.string_at(0) if rank == 1 else step()  # LINE CRASH",
        "rank 1 died: killed by SIGSEGV; it was at line CRASH of <module>; the others were ended",
    ),
    "a process that is stopped": Fault(
        JOIN + MODEL + "os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else step()",
        "rank 1 stopped answering: it had to be killed; OTHERS in backward, line BACKWARD of step",
    ),
    "a sleep": Fault(
        JOIN + MODEL + "time.sleep(60) if rank == 1 else step()  # LINE SLEEP",
        "rank 1 never came: it was at line SLEEP of <module>; OTHERS in backward, line BACKWARD of step",
        quick=True,
    ),
    "no group": Fault(
        'if os.environ["RANK"] == "1":\n    time.sleep(60)  # LINE SLEEP\n' + JOIN,
        "rank 1 never came: it was at line SLEEP of <module>; OTHERS in init_process_group, line 7 of <module>",
    ),
    "a call left out before backward": Fault(
        JOIN + MODEL + "dist.all_reduce(torch.ones(3)) if rank != 1 else step()  # LINE CALL\nstep()\ndist.barrier()",
        "the ranks' calls do not match: ",
    ),
    "a call left out": Fault(
        JOIN + "if rank != 1:\n    dist.all_reduce(torch.ones(3))  # LINE CALL\ndist.barrier()  # LINE BARRIER",
        "the ranks waited in different calls: OTHERS in all_reduce, line CALL of <module>; "
        "rank 1 was in barrier, line BARRIER of <module>",
    ),
    "a call left out, with more patience for the check than the group has": Fault(
        JOIN + MODEL + "dist.all_reduce(torch.ones(3)) if rank != 1 else None  # LINE CALL\nstep()",
        "the ranks waited in different calls: OTHERS in all_reduce, line CALL of <module>; "
        "rank 1 was in backward, line BACKWARD of step",
        options=("--check-calls", "60"),
    ),
    "types that differ": Fault(
        JOIN + "dist.all_reduce(torch.ones(5).to(torch.float64 if rank == 1 else torch.float32))  # LINE CALL",
        "the ranks' calls do not match: ",
        also="in all_reduce, line CALL of <module>",
    ),
    "another order": Fault(
        JOIN + "calls = [lambda: dist.broadcast(torch.ones(5), 0), lambda: dist.all_reduce(torch.ones(5))]\n"
        "for call in calls[:: 1 if rank == 1 else -1]:\n    call()",
        "the ranks waited in different calls: OTHERS in all_reduce, line 7 of <lambda>; "
        "rank 1 was in broadcast, line 7 of <lambda>",
    ),
}


CASES = [
    pytest.param(fault, world, id=f"{name}, {world}", marks=() if fault.quick and world == 3 else pytest.mark.proof)
    for name, fault in FAULTS.items()
    for world in ((2, 3, 4) if fault.quick else (2, 3))
]


@pytest.mark.processes
@pytest.mark.parametrize(("fault", "world"), CASES)
def test_the_headline_tells_what_is_wrong(tmp_path, fault, world):
    path = tmp_path / "train.py"
    path.write_text(HEAD + fault.script + "\n")
    command = [sys.executable, "-m", "dpbook", "launch", "--nproc", world, *fault.options, "--", path]
    env = {**os.environ, "PYTHONPATH": str(checkout.root())}
    found = subprocess.run([*map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    headlines = [
        line for line in found.stderr.splitlines() if line.startswith("dpbook launch: ") and "cores" not in line
    ]
    assert found.returncode != 0
    assert len(headlines) == 1
    assert headlines[0].startswith(f"dpbook launch: {expected(fault.headline, fault, world)}"), headlines[0]
    assert expected(fault.also, fault, world) in headlines[0]


def expected(text, fault, world):
    """``text`` for this script in a world of this size."""
    said = text.replace("OTHERS", {2: "rank 0 was", 3: "ranks 0, 2 were", 4: "ranks 0, 2, 3 were"}[world])
    for number, line in enumerate((HEAD + fault.script).splitlines(), 1):
        _, marked, name = line.partition("# LINE ")
        said = said.replace(f"line {name}", f"line {number}") if marked else said
    return said
