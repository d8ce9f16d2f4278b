"""Does the headline of a failed launch name the rank at fault, its fault, and the line?

Each fault is injected on rank 1 of a script that uses torch, DDP and gloo, and nothing of dpbook.
"""

import subprocess
import sys
from dataclasses import dataclass

import pytest

HEAD = """import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
"""
MEET = """open(os.environ["RANK"], "w").close()
while not all(os.path.exists(str(other)) for other in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)
"""
"""A meeting of the ranks without a timeout: on a busy machine one may load torch for longer than the others wait."""
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
    """A fault: its ``script``, the beginning of the ``headline``, and a text that it ``also`` contains.

    In these texts "LINE x" stands for the number of the line that ends in "# LINE x". OTHERS stands for all ranks but
    rank 1 and their verb, "ranks 0, 2 were"; HEALTHY for these ranks alone. ``four``: tried with four ranks as well.
    """

    script: str
    headline: str
    also: str = ""
    options: tuple[str, ...] = ()
    four: bool = False


FAULTS = {
    "an error while the others compute": Fault(
        JOIN + 'while rank != 1:\n    torch.ones(64, 64) @ torch.ones(64, 64)\n{}["label"]',
        "rank 1 failed first: KeyError: 'label'",
        four=True,
    ),
    "an error near a collective": Fault(
        JOIN + 'if rank == 1:\n    raise ValueError("on purpose")\ndist.barrier()',
        "rank 1 failed first: ValueError: on purpose",
    ),
    "an error before the group exists": Fault(
        'if os.environ["RANK"] == "1":\n    raise ValueError("on purpose")\n' + JOIN,
        "rank 1 failed first, before it joined the process group: ValueError: on purpose",
    ),
    "an error while the others import": Fault(
        'if os.environ["RANK"] == "1":\n    raise ValueError("on purpose")\ntime.sleep(600)\n' + JOIN,
        "rank 1 failed first, before it joined the process group: ValueError: on purpose",
    ),
    "an error while a checkpoint is read": Fault(
        JOIN + 'open("bad.pt", "wb").close() if rank == 1 else time.sleep(600)\ntorch.load("bad.pt")',
        "rank 1 failed first: EOFError",
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
        "rank 1 finished (status 0) while OTHERS in backward, train.py:BACKWARD in step: "
        "collective 10 (all_reduce of 10 × float32); rank 1 had joined 9",
    ),
    "a step less": Fault(
        JOIN + MODEL + "for i in range(4 - (rank == 1)):\n    step()",
        "rank 1 finished (status 0) while OTHERS in backward, train.py:BACKWARD in step: "
        "collective 11 (all_reduce of 10 × float32); rank 1 had joined 10",
    ),
    "an exit without a report": Fault(
        JOIN + MODEL + "os._exit(0) if rank == 1 else step()",
        "rank 1 died: it exited with status 0; the other ranks were stopped",
    ),
    "a kill": Fault(
        JOIN + MODEL + "os.kill(os.getpid(), 9) if rank == 1 else step()",
        "rank 1 died: killed by SIGKILL (as the kernel does when memory runs out); the other ranks were stopped",
    ),
    "a crash": Fault(
        JOIN + MODEL + "import ctypes\nctypes.string_at(0) if rank == 1 else step()  # LINE CRASH",
        "rank 1 died: killed by SIGSEGV; it was at train.py:CRASH; the other ranks were stopped",
    ),
    "a process that is stopped": Fault(
        JOIN + MODEL + "os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else step()",
        "rank 1 stopped responding and had to be killed; OTHERS in backward, train.py:BACKWARD in step",
    ),
    "a sleep": Fault(
        JOIN + MODEL + "time.sleep(600) if rank == 1 else step()  # LINE SLEEP",
        "rank 1 never joined collective 8 (all_reduce of 10 × float32): it was at train.py:SLEEP; "
        "OTHERS in backward, train.py:BACKWARD in step",
    ),
    "no group": Fault(
        'if os.environ["RANK"] == "1":\n    time.sleep(600)  # LINE SLEEP\n' + JOIN,
        "rank 1 never joined: it was at train.py:SLEEP; OTHERS in init_process_group, train.py:7",
    ),
    "a call skipped before backward": Fault(
        JOIN + MODEL + "if rank != 1:\n    dist.all_reduce(torch.ones(3))  # LINE CALL\nstep()",
        "the ranks called different collectives: rank 1 skipped collective 8 (all_reduce of 3 × float32, "
        "train.py:CALL) and called all_reduce of 10 × float32 in backward, train.py:BACKWARD in step",
        four=True,
    ),
    "another call on one rank": Fault(
        JOIN + MODEL + "dist.all_reduce(torch.ones(3)) if rank != 1 else step()  # LINE CALL\nstep()\ndist.barrier()",
        "the ranks called different collectives: collective 8 was all_reduce of 3 × float32, train.py:CALL, on "
        "HEALTHY, but all_reduce of 10 × float32 in backward, train.py:BACKWARD in step, on rank 1",
    ),
    "a skipped call": Fault(
        MEET + JOIN + "if rank != 1:\n    dist.all_reduce(torch.ones(3))  # LINE CALL\ndist.barrier()  # LINE BARRIER",
        "the ranks called different collectives: rank 1 skipped collective 1 (all_reduce of 3 × float32, "
        "train.py:CALL) and called barrier, train.py:BARRIER",
    ),
    "a skipped call, with a longer timeout of the check than of the group": Fault(
        JOIN + MODEL + "dist.all_reduce(torch.ones(3)) if rank != 1 else None  # LINE CALL\nstep()",
        "the ranks waited in different collectives: OTHERS in all_reduce, train.py:CALL; "
        "rank 1 was in backward, train.py:BACKWARD in step",
        options=("--check-calls", "60"),
    ),
    "types that differ": Fault(
        JOIN + "dist.all_reduce(torch.ones(5).to(torch.float64 if rank == 1 else torch.float32))  # LINE CALL",
        "the ranks' calls do not match: collective 1 (all_reduce, train.py:CALL) has 5 × float32 on HEALTHY, "
        "but 5 × float64 on rank 1",
    ),
    "shapes that differ": Fault(
        JOIN + "dist.barrier()\ndist.all_reduce(torch.ones(3 if rank == 1 else 5))  # LINE CALL\ndist.barrier()",
        "the ranks' calls do not match: collective 2 (all_reduce, train.py:CALL) has 5 × float32 on HEALTHY, "
        "but 3 × float32 on rank 1",
    ),
    "shapes that differ in the last call": Fault(
        JOIN + "dist.all_reduce(torch.ones(3 if rank == 1 else 5))  # LINE CALL",
        "the ranks' calls do not match: collective 1 (all_reduce, train.py:CALL) has 5 × float32 on HEALTHY, "
        "but 3 × float32 on rank 1",
    ),
    "another order": Fault(
        JOIN + "calls = [lambda: dist.broadcast(torch.ones(5), 0), lambda: dist.all_reduce(torch.ones(5))]\n"
        "for call in calls[:: 1 if rank == 1 else -1]:\n    call()",
        "the ranks called different collectives: collective 1 was all_reduce of 5 × float32, "
        "train.py:7 in <lambda>, on HEALTHY, but broadcast of 5 × float32, train.py:7 in <lambda>, on rank 1",
    ),
    "validation on the other ranks alone": Fault(
        JOIN + MODEL + "def validate():\n    dist.all_reduce(torch.ones(1))  # LINE CALL\n"
        "for epoch in range(2):\n    step()\n    if rank != 1:\n        validate()",
        "the ranks called different collectives: collective 9 was all_reduce of 1 × float32, "
        "train.py:CALL in validate, on HEALTHY, but all_reduce of 10 × float32 in backward, train.py:BACKWARD in step, "
        "on rank 1",
    ),
    "a barrier on one branch alone": Fault(
        JOIN + MODEL + "for i in range(4):\n    step()\n    if i == 1 and rank == 1:\n"
        "        dist.barrier()  # LINE CALL",
        "the ranks called different collectives: collective 10 was all_reduce of 10 × float32 in backward, "
        "train.py:BACKWARD in step, on HEALTHY, but barrier, train.py:CALL, on rank 1",
    ),
    "accumulation that ends a micro-batch later": Fault(
        JOIN + MODEL + "import contextlib\nfor i in range(8):\n"
        "    with contextlib.nullcontext() if i % 2 and not (rank == 1 and i == 5) else model.no_sync():\n"
        "        step()\n    if i % 2:\n        dist.all_reduce(torch.ones(1))  # LINE CALL",
        "the ranks called different collectives: rank 1 skipped collective ",
        also=" in backward, train.py:BACKWARD in step) and called all_reduce of 1 × float32",
    ),
    "a bad batch that is skipped, with several buckets": Fault(
        JOIN + "layers = [torch.nn.Linear(64, 64) for _ in range(4)]\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)\n"
        "for i in range(6):\n    if i == 3 and rank == 1:\n        continue\n"
        "    model(torch.ones(2, 64)).sum().backward()  # LINE BACKWARD",
        "rank 1 finished (status 0) while OTHERS in backward, train.py:BACKWARD: collective ",
        also=" × float32); rank 1 had joined ",
    ),
    "an early stop of one rank": Fault(
        JOIN + MODEL + "for i in range(9):\n    if i == 4 and rank == 1:\n        break\n    step()\n"
        "dist.barrier()  # LINE CALL",
        "the ranks called different collectives: collective 12 was all_reduce of 10 × float32 in backward, "
        "train.py:BACKWARD in step, on HEALTHY, but barrier, train.py:CALL, on rank 1",
    ),
    "a sleep while the others wait for an asynchronous call": Fault(
        JOIN + "time.sleep(600) if rank == 1 else None  # LINE SLEEP\n"
        "work = dist.all_reduce(torch.ones(3), async_op=True)\ntorch.ones(3) + 1\nwork.wait()  # LINE CALL",
        "rank 1 never joined collective 1 (all_reduce of 3 × float32): it was at train.py:SLEEP; "
        "OTHERS at train.py:CALL",
    ),
    "a sleep in a group of some ranks": Fault(
        JOIN
        + "group = dist.new_group([0, 1], timeout=timedelta(seconds=4))\n"
        + "if rank == 1:\n    time.sleep(600)  # LINE SLEEP\nif rank == 0:\n"
        "    dist.all_reduce(torch.ones(3), group=group)  # LINE CALL\ndist.barrier()  # LINE BARRIER",
        "rank 1 never joined collective 1",
        also="(all_reduce of 3 × float32): it was at train.py:SLEEP; rank 0 was in all_reduce, train.py:CALL",
    ),
    "a skipped call in a group of some ranks": Fault(
        'dist.init_process_group("gloo")\ngroup = dist.new_group([0, 1])\nif dist.get_rank() == 0:\n'
        "    dist.all_reduce(torch.ones(3), group=group)  # LINE CALL\ndist.barrier()  # LINE BARRIER",
        "rank 1 never joined collective 1",
        also="(all_reduce of 3 × float32): it was in barrier, train.py:BARRIER",
        options=("--hang-timeout", "3"),
    ),
    "an endless computation": Fault(
        JOIN + "while rank == 1:\n    torch.ones(64, 64) @ torch.ones(64, 64)  # LINE COMPUTE\n"
        "dist.all_gather_object([None] * dist.get_world_size(), {'a': 1})  # LINE CALL",
        "rank 1 never joined collective 1 (all_gather of 1 × int64): it was at train.py:COMPUTE; "
        "OTHERS in all_gather_object, train.py:CALL",
    ),
    "a sleep of a rank that only takes note of SIGTERM": Fault(
        "signal.signal(signal.SIGTERM, lambda number, frame: None)\n"
        + JOIN
        + "time.sleep(120) if rank == 1 else dist.barrier()  # LINE SLEEP",
        "rank 1 never joined collective 1 (barrier): it was at train.py:SLEEP; OTHERS in barrier, train.py:SLEEP",
    ),
    "a hang of ranks that ignore SIGTERM, or end by it at once": Fault(
        'signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ["RANK"] == "0" else signal.SIG_DFL)\n'
        'dist.init_process_group("gloo")\ntime.sleep(600) if dist.get_rank() == 1 else dist.barrier()  # LINE SLEEP',
        "rank 1 never joined collective 1 (barrier): it was at train.py:SLEEP; OTHERS in barrier, train.py:SLEEP",
        options=("--hang-timeout", "3"),
    ),
    "a hang, with torch's own timeouts": Fault(
        'dist.init_process_group("gloo")\ntime.sleep(600) if dist.get_rank() == 1 else dist.barrier()  # LINE SLEEP',
        "rank 1 never joined collective 1 (barrier): it was at train.py:SLEEP; OTHERS in barrier, train.py:SLEEP",
        options=("--hang-timeout", "3"),
        four=True,
    ),
    "another fault after a restart": Fault(
        JOIN + 'first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"\n'
        "if first:\n    dist.all_reduce(torch.ones(5).to(torch.float64 if rank == 1 else torch.float32))\n"
        "time.sleep(600) if rank == 1 else dist.barrier()  # LINE SLEEP",
        "rank 1 never joined collective 1 (barrier): it was at train.py:SLEEP; OTHERS in barrier, train.py:SLEEP",
        options=("--max-restarts", "1"),
    ),
}


CASES = [
    pytest.param(fault, world, id=f"{name}, {world}")
    for name, fault in FAULTS.items()
    for world in ((2, 3, 4) if fault.four or "collective " in fault.headline else (2, 3))
]


@pytest.mark.proof  # chapters 11 and 15 show two of them in every run
@pytest.mark.processes
@pytest.mark.parametrize(("fault", "world"), CASES)
def test_the_headline_names_the_fault(tmp_path, fault, world):
    path = tmp_path / "train.py"
    path.write_text(HEAD + fault.script + "\n")
    command = [sys.executable, "-m", "dpbook", "launch", "--nproc", world, *fault.options, "--", path]
    ended = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    headlines = [
        line for line in ended.stderr.splitlines() if line.startswith("dpbook launch: ") and "cores" not in line
    ]
    assert ended.returncode != 0
    assert len(headlines) == 1
    assert headlines[0].startswith(f"dpbook launch: {expected(fault.headline, fault, world)}"), headlines[0]
    assert expected(fault.also, fault, world) in headlines[0]


def expected(text, fault, world):
    """Return ``text`` for this script in a world of this size."""
    healthy = {2: "rank 0", 3: "ranks 0, 2", 4: "ranks 0, 2, 3"}[world]
    filled = text.replace("OTHERS", f"{healthy} {'was' if world == 2 else 'were'}").replace("HEALTHY", healthy)
    for number, line in enumerate((HEAD + fault.script).splitlines(), 1):
        _, marked, name = line.partition("# LINE ")
        filled = filled.replace(f".py:{name}", f".py:{number}") if marked else filled
    return filled
