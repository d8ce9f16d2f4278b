"""Does the command forecast a stranger's script, and say what is wrong with its arguments or with the script?"""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from dpbook.app import main
from dpbook.overlap import Layer, Tensor
from dpbook.ranks import Sweep
from dpbook.runs.forecast import MeasuredStep, ScriptStopped
from tests.cases import each

processes = pytest.mark.processes
proof = pytest.mark.proof

HEAD = """
import sys, time, torch
import torch.distributed as dist
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
"""
DDP = 'dist.init_process_group("gloo")\nmodel = torch.nn.parallel.DistributedDataParallel(model)\n'
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(int(sys.argv[1])):
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    {step}
    optimizer.zero_grad()
"""
STEPS = LOOP.format(step="optimizer.step()")


def command(folder, text, *options, argument="1000"):
    (folder / "train.py").write_text(HEAD + text)
    own = [sys.executable, "-m", "dpbook", "forecast", *map(str, options), "--", "train.py", argument]
    return own, {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def forecast(folder, text, *options, argument="1000"):
    own, how = command(folder, text, *options, argument=argument)
    return subprocess.run(own, **how, timeout=500)


@processes
def test_an_unchanged_script_is_forecast(tmp_path):
    path = tmp_path.parent / f"{tmp_path.name}.json"
    options = ("--gpus", "2,64", "--link", "25GbE,10Gb/s+20us", "--stages", "0,3", "--updates", 3, "--json", path)
    done = forecast(tmp_path, STEPS, *options)
    assert done.returncode == 0, done.stderr
    head, columns, *rows = done.stdout.splitlines()
    assert head.startswith("from 3 updates on one process: forward ")
    assert head.endswith("; 4 tensors, 3.266 KiB, ready order recorded")  # 8 · 64 + 64 + 64 · 4 + 4 floats
    assert columns.split() == ["link", "GPUs", "stage", "step", "exposed", "speed-up", "best", "cap"]
    assert [row.split()[:3] for row in rows[:3]] == [["25GbE", "2", "0"], ["25GbE", "2", "3"], ["25GbE", "64", "0"]]
    data = json.loads(path.read_text())
    assert [(row["link"], row["world"], row["stage"]) for row in data["rows"]][-1] == ("10Gb/s+20us", 64, 3)
    assert data["measured"][0]["alone"] < data["rows"][0]["step"]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@proof
@processes
def test_a_forecast_beside_what_was_measured(tmp_path):
    done = forecast(tmp_path, DDP + STEPS, "--check", "2,3", "--link", "100Mb/s+5000us", "--updates", 3)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("100Mb/s")]
    assert [row[1] for row in rows] == ["2", "3"]
    for (_, ranks, forecast_ms, _, measured_ms, *_), least in zip(rows, (10, 20), strict=True):
        assert float(forecast_ms) > least, ranks  # 2 (N − 1) latencies of 5 ms, of one bucket
        assert float(measured_ms) > least, ranks


@proof
@processes
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (LOOP.format(step="pass"), (), "no update of an optimizer was seen"),
        (LOOP.format(step="raise ValueError('oh')"), (), "ValueError: oh"),
        ("sys.exit(3)", (), "SystemExit: 3"),
        (STEPS, ("--check", "2", "--updates", "2"), "the script must make some updates with torch's DDP"),
    ],
    ids=["no update", "raises", "exits", "no wrapper"],
)
def test_a_script_that_cannot_be_forecast_says_why(tmp_path, text, options, message):
    done = forecast(tmp_path, text, *options, argument="20")
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


@proof
@processes
def test_ctrl_c_ends_it(tmp_path):
    own, how = command(tmp_path, LOOP.format(step="open('begun', 'w').close(); time.sleep(60)"))
    child = subprocess.Popen(own, **how)
    while not (tmp_path / "begun").exists() and child.poll() is None:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    output, error = child.communicate(timeout=120)
    assert (child.returncode, output) == (128 + signal.SIGINT, "")
    assert "the script ended before enough updates were measured" in error


@pytest.fixture
def measured_scripts(monkeypatch):
    """List of what the command has measured, ranks and options; no script runs."""
    scripts = []

    def measure(spec, updates, report, **options):
        scripts.append((spec.nproc, options))
        report("measuring")
        return MeasuredStep((Layer("a", 0.01, 0.02, (Tensor("a", 1000),)),), 0, 0, world=spec.nproc, cap=4000,
                            emulated_seconds=0.05)  # fmt: skip

    monkeypatch.setattr("dpbook.runs.forecast.measure_step", measure)
    return scripts


def test_a_check_measures_each_world_over_each_link(measured_scripts, tmp_path, capsys):
    path = tmp_path / "checks.json"
    assert main(["forecast", "--check", "2,3", "--link", "1GbE,25GbE", "--json", str(path), "--", __file__]) == 0
    assert [(world, options["check"], options["link"].bandwidth) for world, options in measured_scripts] == [
        (world, True, bandwidth) for world in (2, 3) for bandwidth in (0.125e9, 3.125e9)
    ]
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines() if "GbE  " in line] == [
        ["1GbE", "2"], ["25GbE", "2"], ["1GbE", "3"], ["25GbE", "3"],
    ]  # fmt: skip
    assert "dpbook forecast: 3 ranks over 25GbE\ndpbook forecast: measuring\n" in printed.err
    assert len(json.loads(path.read_text())["rows"]) == 4


@pytest.mark.parametrize(("on_two", "divided"), [(4, True), (8, False)])
def test_two_ranks_show_whether_micro_batches_are_shared(monkeypatch, capsys, on_two, divided):
    def measure(spec, updates, report):
        layers = (Layer("a", 0.01, 0.02, (Tensor("a", 1000),)),)
        return MeasuredStep(layers, 0, 0, accumulation=8 if spec.nproc == 1 else on_two, world=spec.nproc)

    monkeypatch.setattr("dpbook.runs.forecast.measure_step", measure)
    assert main(["forecast", "--gpus", "4", __file__]) == 0
    printed = capsys.readouterr()
    assert "8 micro-batches in an update: checking whether two ranks share them" in printed.err
    assert ("which the script divides among its ranks" in printed.out) == divided


def test_a_measured_link_is_forecast_beside_none_that_was_not_asked_for(measured_scripts, monkeypatch, capsys):
    times = np.array([[1e-4], [1e-3], [1e-2]])
    monkeypatch.setattr("dpbook.ranks.sweep", lambda ranks: Sweep(ranks, np.array([1e3, 1e6, 1e7]), times))
    assert main(["forecast", "--measure", "2", "--gpus", "4", "--", __file__]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("here, 2 ranks")


def test_a_script_that_was_stopped_gives_its_status(monkeypatch, capsys):
    def stop(spec, updates, report):
        raise ScriptStopped(128 + signal.SIGINT)

    monkeypatch.setattr("dpbook.runs.forecast.measure_step", stop)
    assert main(["forecast", "--", __file__]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "dpbook forecast: the script ended before enough updates were measured\n"


@each(
    ("wrong", "message"),
    [
        (["--link", "warp"], "one of 1GbE, 25GbE"),
        (["--link", ","], "link must be a link"),
        (["--json", "nowhere/told.json"], "a file in a folder that exists"),
        (["--gpus", "1"], "gpus must be an integer of at least 2"),
        (["--gpus", "two"], "comma-separated numbers"),
        (["--stages", "4"], "stages must be an integer from 0 to 3"),
        (["--check", "1"], "check must be"),
        (["--updates", "0"], "updates must be"),
        (["--nproc", "0"], "nproc must be"),
        (["--measure", "1"], "measure must be"),
    ],
)
def test_bad_options_are_reported(tmp_path, capsys, wrong, message):
    (tmp_path / "train.py").write_text("")
    assert main(["forecast", *wrong, "--", str(tmp_path / "train.py")]) == 1
    assert message in capsys.readouterr().err


def test_a_script_is_needed_and_has_to_be_there(capsys):
    assert main(["forecast"]) == 1
    assert "dpbook forecast train.py" in capsys.readouterr().err
    assert main(["forecast", "--", "nowhere.py"]) == 1
    assert "script must be a file that exists, got 'nowhere.py'" in capsys.readouterr().err


def test_before_the_ranks_load_torch_it_needs_numpy_alone():
    code = (
        "import sys; from dpbook.app import main;"
        "import dpbook.runs.forecast.measured_step, dpbook.runs.launch.torchrun;"
        "main(['forecast']); print(*sorted({n.partition('.')[0] for n in sys.modules} - sys.stdlib_module_names))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stdout
    others = {"torch", "cloudpickle", "matplotlib", "tqdm", "filelock", "jinja2", "IPython", "jupyterlab"}
    assert (others & {*loaded.split()}, "numpy" in loaded) == (set(), True)
