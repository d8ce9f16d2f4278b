"""Does the headline of a failed launch name the rank at fault, whatever the fault, its rank, its moment and the world?

Faults are drawn anew in every run of the proofs. The number in the message of a failure draws the same one again:
DPBOOK_FAULT=number pytest -m proof tests/runs/postmortem/test_drawn_faults.py -k 0
"""

import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

SCRIPT = """import os, signal, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

dist.init_process_group("gloo", timeout=timedelta(seconds={timeout}))
rank, world = dist.get_rank(), dist.get_world_size()
STEP, AT_FAULT = {step}, {rank}

def planted(moment, step):
    if rank == AT_FAULT and (moment, step) == ("{moment}", STEP):
        {fault}  # PLANTED

class Examples(Dataset):
    def __len__(self):
        return 16 * world
    def __getitem__(self, i):
        return torch.full((4,), float(i))

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb={cap})
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Examples(), batch_size=2, sampler=DistributedSampler(Examples()))

def evaluate(step):
    planted("evaluation", step)
    total = torch.ones(3)
    dist.all_reduce(total)

def train():
    for step, x in enumerate(loader):
        planted("data", step)
        loss = model(x).square().mean()
        planted("backward", step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        planted("step", step)
        if step % 2:
            evaluate(step)

train()
dist.barrier()
"""


@dataclass(frozen=True)
class Kind:
    """A fault: its statement, and what the headline says; RANK, LINE and N are filled in.

    ``moments`` are those in which it is a fault.
    """

    statement: str
    headline: str
    moments: tuple[str, ...] = ("data", "backward", "step", "evaluation")


ENDLESS = "for _ in iter(int, 1): pass"
NEVER_JOINED = r"rank RANK never joined .*: it was at train.py:LINE in planted"
KINDS = {
    "raise": Kind("raise ValueError('planted N')", "rank RANK failed first: ValueError: planted N"),
    "key": Kind("{}['planted N']", "rank RANK failed first: KeyError: 'planted N'"),
    "memory": Kind("torch.ones(10**15)", r"rank RANK failed first: RuntimeError: \[enforce fail"),
    "exit": Kind("sys.exit(N)", "rank RANK failed first: SystemExit: N"),
    "exit in words": Kind("sys.exit('planted N')", "rank RANK failed first: SystemExit: planted N"),
    "no report": Kind("os._exit(N)", "rank RANK died: it exited with status N"),
    "SIGKILL": Kind("os.kill(os.getpid(), 9)", "rank RANK died: killed by SIGKILL"),
    "SIGSEGV": Kind("os.kill(os.getpid(), 11)", "rank RANK died: killed by SIGSEGV.* train.py:LINE in planted"),
    "SIGBUS": Kind("os.kill(os.getpid(), signal.SIGBUS)", "rank RANK died: killed by SIGBUS"),
    "SIGABRT": Kind("os.abort()", "rank RANK died: killed by SIGABRT"),
    "SIGSTOP": Kind("os.kill(os.getpid(), signal.SIGSTOP)", "rank RANK stopped responding"),
    "sleep": Kind("time.sleep(600)", NEVER_JOINED),
    "lock": Kind("lock = threading.Lock(); lock.acquire(); lock.acquire()", NEVER_JOINED),
    "loop": Kind(ENDLESS, NEVER_JOINED),
    "barrier": Kind("dist.barrier()", "the ranks called different collectives: .*RANKS"),
    "shape": Kind("dist.all_reduce(torch.ones(N))", "the ranks.*(called different|do not match).*RANKS"),
    "end": Kind("sys.exit(0)", r"ranks? [\d, ]*finished \(status 0\) while|rank RANK finished"),
}  # fmt: skip


def draw(seed):
    """Return the number of ranks, the script and the pattern of the headline."""
    rng = random.Random(seed)
    world = rng.choice([2, 3, 4])
    rank, kind = rng.randrange(world), KINDS[rng.choice(sorted(KINDS))]
    moment, number = rng.choice(kind.moments), rng.randrange(20, 90)
    step = rng.choice([1, 3, 5]) if moment == "evaluation" else rng.randrange(6)
    fault = re.sub(r"\bN\b", str(number), kind.statement)
    cap = rng.choice([25, 0.0001])
    script = SCRIPT.format(timeout=4, step=step, rank=rank, moment=moment, fault=fault, cap=cap)
    line = next(n for n, text in enumerate(script.splitlines(), 1) if text.endswith("# PLANTED"))
    # Of two ranks that call different things neither is the odd one: then both have to be there.
    ranks = rf"rank {rank}\b" if world > 2 else ""
    headline = kind.headline.replace("RANKS", ranks).replace("RANK", str(rank)).replace("LINE", str(line))
    return world, script, re.sub(r"\bN\b", str(number), headline)


@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.parametrize("number", range(100))
def test_the_rank_of_a_drawn_fault_is_named(tmp_path, number):
    seed = int(os.environ.get("DPBOOK_FAULT", random.SystemRandom().randrange(10**9)))
    world, script, headline = draw(seed)
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "dpbook", "launch", "--nproc", str(world), "train.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("dpbook launch: ") and "cores" not in line]
    assert ended.returncode != 0, f"DPBOOK_FAULT={seed}"
    assert len(lines) == 1, f"DPBOOK_FAULT={seed}: {lines}"
    assert re.match(headline, lines[0].removeprefix("dpbook launch: ")), f"DPBOOK_FAULT={seed}: {lines[0]}"
