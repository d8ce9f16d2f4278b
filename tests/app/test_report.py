"""Does a run end in a report that says what its files say?"""

import json
import re

import pytest

from dpbook.app import main, report
from dpbook.core.errors import DpbookError
from dpbook.overlap import recorded_traces
from dpbook.planning import ACCELERATORS
from dpbook.program import metrics
from tests.cases import each

ABOUT = {
    "options": {"name": "r", "model": "gpt", "strategy": "bucketed", "precision": "bf16"}, "world": 4,
    "backend": "nccl",
    "device": "NVIDIA H100 80GB HBM3", "parameters": 1000, "trained": 1000, "payload_bytes": 4000,
    "tokens_per_step": 8000, "flops_per_token": 6 * 10**9, "torch": "2.13.0", "python": "3.11", "cores": 2,
    "date": "2026-11-20",
}  # fmt: skip
PREDICTION = {
    "seconds": 0.22, "exposed": 0.01, "communication": 0.02, "computation": 0.2, "calls": 3, "alpha": 1e-4, "beta": 1e-9
}  # fmt: skip


def run(folder, seconds=0.2, world=4, prediction=PREDICTION, **about):
    """A run of 30 steps in ``folder``; the first five are slow and must not count."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / metrics.DESCRIPTION).write_text(json.dumps({**ABOUT, "world": world, **about}))
    if prediction:
        (folder / metrics.PREDICTION).write_text(json.dumps(prediction))
    lines = metrics.Metrics(folder, 0)
    for step in range(1, 31):
        lines.append(step=step, loss=5 / step, seconds=9.0 if step <= 5 else seconds, memory=10**9 + step)
    return folder


def told(page):
    """Name and value of every row of its tables."""
    return dict(re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", page.read_text(encoding="utf-8")))


def test_it_tells_what_the_metrics_say(tmp_path):
    rows = told(report.write(run(tmp_path / "r")))
    assert rows["loss"] == "0.1667 after step 30"
    assert rows["step"] == "200 ms (median of 25)"
    assert rows["throughput"] == "40,000 tokens/s over 4 ranks"
    assert rows["peak memory"] == "1 GB on rank 0"
    assert rows["sent by each rank"].startswith("6 kB per step")  # 2 · 3/4 of 4 kB
    used = 6e9 * 40_000 / (4 * ACCELERATORS["H100 SXM"].flops)
    assert rows["model FLOPs utilisation"] == f"{used:.1%} of the bf16 peak"


def test_the_prediction_stands_beside_the_measurement(tmp_path):
    rows = told(report.write(run(tmp_path / "r")))
    assert rows["simulated step"] == "220 ms, +10% beside the measured one"
    assert rows["of it exposed"] == "10 of 20 ms of communication"
    assert "simulated step" not in told(report.write(run(tmp_path / "s", prediction=None)))


def test_efficiency_is_that_against_one_process(tmp_path):
    alone = run(tmp_path / "alone", seconds=0.15, world=1, tokens_per_step=2000)
    rows = told(report.write(run(tmp_path / "r"), alone))
    assert rows["one process alone"] == "13,333 tokens/s, 150 ms per step"
    assert rows["scaling efficiency"] == "75% of 4 times one process"


def test_the_process_that_a_launch_kept_is_compared_with_by_default(tmp_path):
    folder = run(tmp_path / "r")
    assert "scaling efficiency" not in told(report.write(folder))
    run(folder / "alone", seconds=0.1, world=1, tokens_per_step=2000)
    assert told(report.write(folder))["scaling efficiency"] == "50% of 4 times one process"


@pytest.mark.parametrize(("changed", "compared"), [({"name": "alone"}, True), ({"strategy": "torch"}, False)])
def test_a_process_that_did_other_work_is_not_compared_with(tmp_path, changed, compared):
    folder = run(tmp_path / "r")
    run(folder / "alone", world=1, tokens_per_step=2000, options={**ABOUT["options"], **changed})
    assert ("scaling efficiency" in told(report.write(folder))) == compared


def test_a_run_in_fp32_has_no_share_of_the_bf16_peak(tmp_path):
    rows = told(report.write(run(tmp_path / "r", options={**ABOUT["options"], "precision": "fp32"})))
    assert rows["model FLOPs utilisation"] == "no peak known for this device and precision"


def test_an_unknown_device_has_no_utilisation(tmp_path):
    rows = told(report.write(run(tmp_path / "r", device="x86_64")))
    assert rows["model FLOPs utilisation"] == "no peak known for this device and precision"


@each(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA RTX 4000 Ada Generation", None),
        ("AMD EPYC", None),
    ],
)
def test_peaks_by_the_names_of_drivers(device, name):
    assert report.peak_flops(device) == (ACCELERATORS[name].flops if name else None)


def test_traces_are_drawn_and_a_damaged_one_is_said(tmp_path):
    folder = run(tmp_path / "r")
    for rank, path in enumerate(recorded_traces()):
        (folder / f"trace-rank{rank}.json.gz").write_bytes(path.read_bytes())
    assert "of communication are exposed" in report.write(folder).read_text(encoding="utf-8")
    (folder / "trace-rank0.json.gz").write_bytes(b"nothing")
    assert "The traces cannot be read" in report.write(folder).read_text(encoding="utf-8")


def test_nothing_in_it_comes_from_elsewhere_and_names_are_escaped(tmp_path):
    page = report.write(run(tmp_path / "r", options={**ABOUT["options"], "strategy": "<b>"})).read_text(
        encoding="utf-8"
    )
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "&lt;b&gt;" in page


def test_the_command_writes_it_again(tmp_path, capsys):
    folder = run(tmp_path / "r")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")


def test_what_is_no_run_is_said(tmp_path, capsys):
    with pytest.raises(DpbookError, match="holds no run that can be read"):
        report.write(tmp_path)
    run(tmp_path / "r")
    (tmp_path / "r" / metrics.FILE).write_text("")
    with pytest.raises(DpbookError, match="holds no step yet"):
        report.write(tmp_path / "r")
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "nowhere holds no run" in capsys.readouterr().err


def test_it_is_one_page_with_its_pictures_drawn_and_not_escaped(tmp_path):
    folder = run(tmp_path / "r")
    for rank, path in enumerate(recorded_traces()):
        (folder / f"trace-rank{rank}.json.gz").write_bytes(path.read_bytes())
    page = report.write(folder).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert re.findall(r"<h[12]>(.*?)</h", page) == [
        *("Run r", "Loss", "Time of a step", "Where the time goes", "What was run")
    ]
    assert "&lt;img" not in page
    assert "&lt;svg" not in page
    assert page.count("<img ") == 3
