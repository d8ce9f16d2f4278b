"""Does `dpbook launch --report` write a new page for any run, and explain bad input? Some runs take seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpbook.app import main
from dpbook.core.errors import InvalidArgument
from dpbook.runs.report.script_report import REPORTS, new_report_folder
from tests.cases import lines_of

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = nn.Embedding(50, 4)
model = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for update in range(int(sys.argv[1])):
    model(torch.arange(12).reshape(3, 4)).square().mean().backward()
    optimizer.step()
    if update == int(sys.argv[2]) and dist.get_rank() == 1:
        raise ValueError("a bad batch")
print("trained") if dist.get_rank() == 0 else None
dist.destroy_process_group()
"""


def launch(folder, *options):
    return subprocess.run(
        [sys.executable, "-m", "dpbook", "launch", "--nproc", "2", "--no-preflight", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_folder_is_new_for_every_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [new_report_folder("train", None) for _ in range(3)] == [
        REPORTS / "train", REPORTS / "train-2", REPORTS / "train-3"
    ]  # fmt: skip
    assert new_report_folder("train", "first") == REPORTS / "first"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("taken", "report-name must be a new name: runs/reports/taken has a report already"),
        ("", "report-name must be the name of a new folder"),
        ("..", "report-name must be the name of a new folder"),
        ("a/b", "report-name must be the name of a new folder"),
    ],
)
def test_a_name_is_that_of_a_new_folder(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    new_report_folder("train", "taken")
    with pytest.raises(InvalidArgument, match=message):
        new_report_folder("train", name)
    assert [path.name for path in REPORTS.iterdir()] == ["taken"]


@pytest.mark.parametrize("at", ["runs", "runs/reports"])
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path, monkeypatch, at):
    monkeypatch.chdir(tmp_path)
    Path(at).parent.mkdir(exist_ok=True)
    Path(at).touch()
    with pytest.raises(InvalidArgument, match=r"report must be a folder"):
        new_report_folder("train", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "--nnodes", "2", "--rdzv-endpoint", "here:1"], "--report works on one machine only"),
        (["--report-name", "x"], "--report-name and --alone need --report"),
        (["--alone"], "--report-name and --alone need --report"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_started(
    tmp_path, monkeypatch, capsys, options, message
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(SystemExit):
        main(["launch", *options, "train.py"])
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


processes = pytest.mark.processes


@processes
@pytest.mark.proof
def test_a_report_beside_one_process(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = launch(tmp_path, "--report", "--alone", "train.py", "8", "-1")
    assert ended.returncode == 0, ended.stderr
    trained, again, headline, *_, path = lines_of(ended.stdout)
    assert (trained, again) == ("trained", "trained")
    assert " tokens/s over 2 ranks; " in headline
    assert headline.endswith(" of 2 times one process")
    assert path == "report: runs/reports/train/report.html"
    data = json.loads((tmp_path / "runs" / "reports" / "train" / "report.json").read_text())
    assert (data["program"], data["updates"], data["unit"], data["failure"]) == ("train.py 8 -1", 8, "tokens", None)
    assert data["rate"] == pytest.approx(2 * 12 / data["mean"])
    simulated, what_is_missing = data["simulated"], data["not_measured"]["other buckets and more ranks"]
    assert simulated["step"] > simulated["exposed"] > 0  # of one message, whose time is known at its size alone
    assert simulated["rows"] == []
    assert what_is_missing == "all sums of gradients have 800 bytes, so latency and bandwidth cannot be told apart"
    alone = data["alone"]
    assert alone["efficiency"] == pytest.approx(alone["step"] / data["step"])  # as many examples on each rank
    page = tmp_path / "runs" / "reports" / "train" / "report.html"
    assert main(["report", str(page.parent)]) == 0
    assert "scaling efficiency" in page.read_text(encoding="utf-8")


@pytest.mark.proof
@processes
def test_a_run_that_fails_is_diagnosed_as_ever_and_reported_until_then(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = launch(tmp_path, "--report", "--report-name", "bad", "train.py", "30", "8")
    assert ended.returncode == 1
    assert "dpbook launch: rank 1 failed first: ValueError: a bad batch" in ended.stderr
    page = (tmp_path / "runs" / "reports" / "bad" / "report.html").read_text(encoding="utf-8")
    assert "The run failed: rank 1 failed first: ValueError: a bad batch." in page
    assert "It ended after 9 updates." in page


@processes
@pytest.mark.proof
def test_a_script_without_updates_ends_with_its_status_and_the_reason(tmp_path):
    together = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
    (tmp_path / "plain.py").write_text(together + "print('no training', flush=True)\nraise SystemExit(3)")
    ended = launch(tmp_path, "--report", "plain.py")
    assert ended.returncode != 0
    assert "not measured: no update was seen: the script steps no optimizer of torch.optim" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "report: runs/reports/plain/report.html"
