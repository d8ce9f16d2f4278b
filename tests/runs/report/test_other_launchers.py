"""Are ranks that torchrun, or anything else, has started recorded for a report and for an audit?"""

import gc
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dpbook.app import main
from dpbook.core import InvalidArgument, checkout
from dpbook.ranks import start
from dpbook.runs.watching import read_journal, recording

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 5), torch.randn(96, 1))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "train.py"


TORN_DOWN = "terminate called without an active exception"
"""What torch 2.13 says where gloo aborts as its group is destroyed, as under a bare torchrun 4 times of 10."""


def recorded(*arguments, ranks=2):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    for _ in range(10):
        shutil.rmtree("kept", ignore_errors=True)
        ended = subprocess.run([*torchrun, "-m", "dpbook.runs.watching", *arguments], capture_output=True, text=True)
        if TORN_DOWN not in ended.stderr:
            break
    return ended


@pytest.mark.processes
@pytest.mark.proof
def test_a_script_that_torchrun_starts_is_recorded_for_a_report(script, capsys):
    ended = recorded("kept", script)
    assert ended.returncode == 0, ended.stderr
    assert main(["report", "kept"]) == 0
    assert capsys.readouterr().out == "kept/report.html\n"
    data = json.loads(Path("kept/report.json").read_text())
    assert (data["world"], data["updates"], data["failure"]) == (2, 12, None)
    assert main(["report", "kept"]) == 0  # once more, from what it has written


@pytest.mark.processes
@pytest.mark.proof
def test_a_script_that_torchrun_starts_is_recorded_for_an_audit(script, capsys):
    ended = recorded("--audit", "--updates", "3", "kept", script)
    assert ended.returncode == 0, ended.stderr
    assert main(["audit", "--read", "kept"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("PASS  the gradient of update 1 is the big batch's") for line in lines)
    assert re.match(r"0 causes of failure, 0 warnings, \d+ not tested; 3 updates seen", lines[-1])


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "3"},
        {"SLURM_PROCID": "1", "SLURM_NTASKS": "3"},
        {"PMI_RANK": "1", "PMI_SIZE": "3"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"},
    ],
)
def test_a_rank_is_known_by_the_variables_of_its_launcher(tmp_path, monkeypatch, variables):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with recording(tmp_path / "kept", audit=True, updates=0):
        pass
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["journal-1.jsonl"]


def train_after_another(rank, folder):
    """Record a training without a wrapper, after one whose model had one and is garbage now."""
    import torch
    from torch import nn

    gc.disable()
    earlier = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    earlier.require_backward_grad_sync = False
    earlier.itself = [earlier, torch.optim.SGD(earlier.parameters())]
    del earlier
    with recording(folder, audit=True, updates=0):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.processes
def test_a_recording_watches_no_model_of_an_earlier_training(tmp_path):
    start(train_after_another, [(0, tmp_path)], echo=False)
    assert [event["sync"] for event in read_journal(tmp_path, 0) if event["kind"] == "forward"] == [None]


def train_what_exists(rank, folder):
    """Record a training whose wrapped model and optimizer are older than the recording."""
    import torch
    from torch import nn

    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters())
    with recording(folder, audit=True, updates=0):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.processes
def test_a_model_and_an_optimizer_that_exist_already_are_recorded_from_the_first_forward_on(tmp_path):
    start(train_what_exists, [(rank, tmp_path) for rank in range(3)], echo=False)
    for rank in range(3):
        events = read_journal(tmp_path, rank)
        assert [event["sync"] for event in events if event["kind"] == "forward"] == [True]


def test_without_a_launcher_it_says_what_is_missing(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgument, match="RANK and WORLD_SIZE"), recording(tmp_path):
        pass


def test_a_folder_without_journals_is_refused(tmp_path, capsys):
    assert main(["audit", "--read", str(tmp_path)]) == 1
    assert "with the journals of 2 ranks or more; it has 0" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1
    assert "is not the folder of a run" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.proof
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_workers_of_ray_are_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, str(checkout.root() / "scripts/train_with_ray.py"), "--workers", "2"]
    for options in (["--recording", "kept"], ["--audit", "--recording", "audited"]):
        ended = subprocess.run([*command, *options], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert main(["report", "kept"]) == 0
    assert main(["audit", "--read", "audited"]) == 0
