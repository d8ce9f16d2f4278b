"""Are the parts of a launched script those that it has planted, by its own clocks? Each run takes seconds.

What a script measures itself bounds what the report may say, whatever else runs on the machine: a sleep is no shorter
than it was asked for, a sum does not arrive before the last rank has begun it, and a step ends inside its call.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from dpbook.collectives import Link, closed_forms
from dpbook.runs.launch import Launch
from dpbook.runs.report import pages
from dpbook.runs.report.measured_run import WARMUP_UPDATES
from dpbook.runs.report.script_report import launch_with_report
from dpbook.runs.watching import PARTS

UPDATES, LOAD, COMPUTE, LOG, STEP, LINK = 8, 0.012, 0.010, 0.008, 0.006, Link(2e-3, 40e6)
SCRIPT = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from dpbook.collectives import Link
from dpbook.ddp import SlowLink

updates, load, compute, log, step, latency, bandwidth = json.loads(sys.argv[1])
link = Link(latency, bandwidth)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)

class Data(Dataset):
    def __len__(self):
        return 2 * updates
    def __getitem__(self, index):
        time.sleep(load / 2)
        return torch.ones(16)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
    def forward(self, x):
        time.sleep(compute * (1 + 2 * (rank == 1)))
        return self.layers(x)

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(step)
        return super().step(closure)

model = Net()
if world > 1:
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, SlowLink(link).hook)
optimizer = Slow(model.parameters(), 0.01)
ready = []
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(lambda _: ready.append(time.perf_counter()))
clocks = []
for batch in DataLoader(Data(), batch_size=2):
    ready.clear()
    loss = model(batch).square().mean()
    loss.backward()
    time.sleep(log)
    begun = time.perf_counter()
    optimizer.step()
    clocks.append((ready[-1], begun, time.perf_counter()))
print("the script's own words", rank)
json.dump(clocks, open(f"clocks-{rank}.json", "w"))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, *(pytest.param(n, marks=pytest.mark.proof) for n in (1, 3, 4))])
def launched(request, tmp_path_factory):
    """The report of the script on so many ranks, and its own clocks: rank, update, (last gradient, step)."""
    folder, before = tmp_path_factory.mktemp(f"world-{request.param}"), Path.cwd()
    (folder / "planted.py").write_text(SCRIPT)
    os.chdir(folder)
    try:
        times = json.dumps([UPDATES, LOAD, COMPUTE, LOG, STEP, LINK.latency, LINK.bandwidth])
        spec, into = Launch(("planted.py", times), request.param), folder / "report"
        into.mkdir()
        status, report = launch_with_report(spec, into, [], print, alone=False)
        assert (status, report.failure) == (0, None)
        clocks = [json.loads(Path(f"clocks-{rank}.json").read_text()) for rank in range(request.param)]
        return report, np.array(clocks), pages.write_script(report, into)
    finally:
        os.chdir(before)


pytestmark = pytest.mark.processes


def test_the_parts_add_up_to_the_step(launched):
    run = launched[0].run
    parts = run.all_parts
    total = sum(parts[name] for name in PARTS)
    np.testing.assert_allclose(total, parts["step"], rtol=1e-12)
    assert all((parts[name] >= -1e-12).all() for name in PARTS)
    assert sum(run.mean(name) for name in PARTS) == pytest.approx(run.step)


def test_updates_end_inside_the_scripts_calls_of_the_optimizer(launched):
    report, clocks, _ = launched
    assert (report.run.total, len(report.run.updates)) == (UPDATES, UPDATES - WARMUP_UPDATES)
    spans = report.run.all_parts["step"].sum(axis=0)
    _, begun, ended = np.moveaxis(clocks, -1, 0)
    before = WARMUP_UPDATES - 1
    assert (spans >= begun[:, -1] - ended[:, before]).all()
    assert (spans <= ended[:, -1] - begun[:, before]).all()


def test_planted_times_are_in_their_parts(launched):
    parts = launched[0].run.all_parts
    assert parts["loader"].min() >= LOAD
    assert parts["optimizer"].min() >= STEP
    assert parts["rest"].min() >= LOG
    slower = np.where(np.arange(parts["step"].shape[1]) == 1, 3, 1)
    assert (parts["computation"] >= COMPUTE * slower).all()


def test_a_rank_is_blocked_until_the_last_one_is_there_and_the_link_has_carried_the_sum(launched):
    report, clocks, _ = launched
    parts, world = report.run.all_parts, report.world
    blocked = parts["exposed"] + parts["waiting"]
    if world == 1:
        assert not blocked.any()
        return
    ready = clocks[:, WARMUP_UPDATES:, 0].T
    assert (blocked >= ready.max(axis=1, keepdims=True) - ready).all()
    assert parts["exposed"].min() >= closed_forms.ring(world, LINK)(3 * (16 * 16 + 16) * 4)
    assert (parts["waiting"].min(axis=1) < 1e-9).all()  # who comes last waits for nobody


def test_the_page_has_every_row_or_says_why_not(launched):
    report, _, page = launched
    text = page.read_text(encoding="utf-8")
    data = json.loads((page.parent / "report.json").read_text())
    assert len(data["ranks"]) == report.world
    for rank in data["ranks"]:
        assert sum(rank[part] for part in PARTS) == pytest.approx(rank["step"])
    assert re.findall(r"<h[12]>(.*?)</h", text)[1:4] == [
        "What would make a step shorter", "Where each rank's step goes", "The step as a timeline",
    ]  # fmt: skip
    assert data["unit"] == "examples"
    assert data["rate"] == pytest.approx(2 * report.world / data["mean"])
    assert (data["not_measured"] == {}) == (report.world == 1) or "simulated step" in data["not_measured"]
