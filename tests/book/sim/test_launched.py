"""Does a launch on accelerators train, go on, predict and report, and say who failed while the others' streams wait?"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpbook.app import main
from dpbook.book.ch11 import train_adapters, train_ddp
from dpbook.book.ch14 import train_fully_sharded
from dpbook.book.ch16 import train_post_local
from dpbook.core import checkout
from dpbook.runs.launch import Launch, launch
from dpbook.runs.trainer import metrics
from tests.book.sim.sim import needs_sim
from tests.cases import each

pytestmark = [*needs_sim, pytest.mark.proof]
ON_SIM = str(Path(__file__).with_name("on_sim.py"))
FAULT = """import torch
import torch.distributed as dist
dist.init_process_group("cpu:gloo,sim:simccl", device_id=torch.device("sim", 0))
x = torch.ones(3, device="sim")
dist.all_reduce(x)
if dist.get_rank() == 1:
    raise KeyError("label")
dist.all_reduce(x)
x.sum().item()
"""
SMALL = ["--width", "32", "--depth", "1", "--context", "16", "--batch", "2"]


@pytest.fixture
def on_sim(monkeypatch):
    """Whatever is launched finds a stand-in accelerator for each of its ranks."""
    command = Launch.command
    monkeypatch.setattr(
        Launch, "command", lambda self, *folders: command(replace(self, program=(ON_SIM, *self.program)), *folders)
    )


def test_a_launch_looks_before_trains_goes_on_predicts_and_reports(on_sim, tmp_path, capfd):
    small = ["launch", "--nproc", "2", "--preset", "gpu", *SMALL, "--out", str(tmp_path), "--report-every", "2"]
    assert main([*small, "--width", str(32 * 10**4)]) == 1
    assert "the model needs" in capfd.readouterr().err
    assert main([*small, "--steps", "4", "--no-predict", "--no-alone"]) == 0
    assert main([*small, "--steps", "8"]) == 0
    said, folder = capfd.readouterr(), tmp_path / "run"
    assert "resumed after step 4 of 8" in said.err
    assert said.out.splitlines()[-1] == f"report: {folder / 'report.html'}"
    lines = [json.loads(line) for line in (folder / metrics.FILE).read_text().splitlines()]
    assert [(line["step"], line["steps"]) for line in lines] == [(2, 2), (4, 2), (6, 2), (8, 2)]
    described, predicted = (
        json.loads((folder / name).read_text()) for name in (metrics.DESCRIPTION, metrics.PREDICTION)
    )
    assert (described["backend"], described["device"]) == ("simccl", "stand-in accelerator")
    assert predicted["seconds"] >= predicted["computation"] > 0
    alone = json.loads((folder / "alone" / metrics.DESCRIPTION).read_text())
    assert (alone["world"], alone["device"]) == (1, "stand-in accelerator")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "over simccl" in page
    assert "simulated step" in page


SIZES = [
    (train_ddp, ["--epochs", "1", "--examples", "48"]),
    (train_adapters, ["--steps", "2"]),
    (train_fully_sharded, ["--steps", "2", "--examples", "48"]),
]


@each(("script", "size"), SIZES)
def test_the_scripts_to_take_home_find_the_accelerator(script, size, tmp_path, capfd):
    out = ["--out", str(tmp_path / script.__name__)]
    for _ in range(2):
        assert launch(Launch((ON_SIM, script.__file__, *size, *out), 2)).status == 0
    said = capfd.readouterr().out
    assert "resumed from" in said
    assert script is not train_adapters or "GB of the device in use" in said


def test_the_script_for_post_local_sgd_finds_the_accelerator(tmp_path, capfd):
    size = ("--steps", "20", "--begin", "10", "--every", "4", "--out", str(tmp_path / "weights.pt"))
    assert launch(Launch((ON_SIM, train_post_local.__file__, *size), 2)).status == 0
    step, last = capfd.readouterr().out.splitlines()
    assert step.startswith("step 20: loss")
    assert last.startswith("averaged once more: drift 0, accuracy")
    assert (tmp_path / "weights.pt").exists()


def test_the_rank_that_raised_is_named_and_not_the_one_whose_stream_waited(tmp_path):
    script, said = tmp_path / "fault.py", []
    script.write_text(FAULT)
    assert launch(Launch((ON_SIM, str(script)), 2), said.append).status == 1
    assert said[-1].startswith("rank 1 failed first: KeyError: 'label'")


@each(
    ("chapter", "cell", "printed"),
    [("09", "script-text", "2 ranks agree on 11"), ("11", "script", "world 2: gradient 5.5")],
)
def test_a_script_of_the_book_runs_with_its_device_swapped(chapter, cell, printed, tmp_path, capfd):
    """Word by word: what it asks of `torch.cuda` and NCCL it asks of the stand-in."""
    (path,) = (checkout.root() / "chapters").glob(f"{chapter}_*.ipynb")
    cells = {one["id"]: "".join(one["source"]) for one in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    named = {}
    exec(cells[cell], named)
    text = re.sub("nccl", "simccl", named["script"].replace("cuda", "sim"))
    script = tmp_path / "script.py"
    script.write_text(text + '\nassert device is not None and device.type == "sim"\n')
    assert launch(Launch((ON_SIM, str(script)), 2)).status == 0
    assert printed in capfd.readouterr().out
