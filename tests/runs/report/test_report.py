"""Does a run end in a report that says what its files say?"""

import json
import re
from itertools import pairwise

import pytest

from dpbook.app import main
from dpbook.collectives import AlphaBeta
from dpbook.core import milliseconds
from dpbook.overlap import read_profiles, recorded_traces, split_waits
from dpbook.planning import ACCELERATORS
from dpbook.runs.report import pages, run_summary
from dpbook.runs.report.measured_run import read_run
from dpbook.runs.report.verdicts import largest_loss, sentences
from dpbook.runs.trainer import metrics
from tests.cases import each
from tests.runs.report import journals

ABOUT = {
    "options": {"name": "r", "model": "gpt", "strategy": "bucketed", "precision": "bf16"}, "world": 4,
    "backend": "nccl",
    "device": "NVIDIA H100 80GB HBM3", "parameters": 1000, "trained": 1000, "payload_bytes": 4000,
    "tokens_per_step": 8000, "flops_per_token": 6 * 10**9, "torch": "2.13.0", "python": "3.11", "cores": 2,
    "date": "2026-11-20",
}  # fmt: skip
PREDICTION = {
    "seconds": 0.22, "exposed": 0.01, "communication": 0.02, "computation": 0.2, "calls": 1, "alpha": 1e-4, "beta": 1e-9
}  # fmt: skip


def run(folder, seconds=0.2, world=4, prediction=PREDICTION, parts=None, **about):
    """A run of 30 steps in ``folder``; the first five are slow and must not count. With ``parts`` it has journals."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / metrics.DESCRIPTION).write_text(json.dumps({**ABOUT, "world": world, **about}))
    if prediction:
        (folder / metrics.PREDICTION).write_text(json.dumps(prediction))
    lines = metrics.Metrics(folder, 0)
    for step in range(1, 31):
        lines.append(step=step, loss=5 / step, seconds=9.0 if step <= 5 else seconds, memory=10**9 + step)
    if parts:
        journals.write(folder, journals.of_parts(parts, world, 30, seconds))
    return folder


def table_rows(page):
    """Name and value of every row of its tables."""
    return dict(re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", page.read_text(encoding="utf-8")))


def test_it_says_what_the_metrics_say(tmp_path):
    rows = table_rows(pages.write(run(tmp_path / "r")))
    assert rows["loss"] == "0.1667 after step 30"
    assert rows["step"] == "200 ms, median of 25 (half of the steps 200 ms to 200 ms)"
    assert rows["throughput"] == "40,000 tokens/s over 4 ranks"
    assert rows["peak memory"] == "1 GB on rank 0, by the allocator of torch"
    assert rows["sent by each rank"].startswith("6 kB per step")  # 2 · 3/4 of 4 kB
    used = 6e9 * 40_000 / (4 * ACCELERATORS["H100 SXM"].flops)
    assert (
        rows["model FLOPs utilisation"] == f"{used:.1%} of the bf16 peak (half of the steps {used:.1%} to {used:.1%})"
    )


def test_the_prediction_stands_beside_the_measurement(tmp_path):
    rows = table_rows(pages.write(run(tmp_path / "r")))
    assert rows["simulated step"] == "220 ms, +10% beside the measured one (half of the steps +10% to +10%)"
    assert rows["of it exposed"] == "10 ms of 20 ms of communication"
    assert rows["all-reduce, fitted"] == "100 µs + 1 ns/B · n, in 1 call per step"
    assert "simulated step" not in table_rows(pages.write(run(tmp_path / "s", prediction=None)))


def test_a_run_of_one_process_whose_sums_were_timed_has_no_link_to_forecast(tmp_path):
    """On a GPU NCCL copies where there is no other rank; the trainer's prediction has fitted a line to that."""
    parts = {"computing": [0.15], "summing": [0.001], "updating": [0.01]}
    folder = run(tmp_path / "r", world=1, parts=parts)
    assert read_run(folder, 1, AlphaBeta(1e-5, 2e-16)).price == "one process sends nothing"
    assert "here, 1 rank" not in pages.write(folder).read_text(encoding="utf-8")


def test_efficiency_is_that_against_one_process(tmp_path):
    alone = run(tmp_path / "alone", seconds=0.15, world=1, tokens_per_step=2000)
    rows = table_rows(pages.write(run(tmp_path / "r"), alone))
    assert rows["one process alone"] == "13,333 tokens/s, 150 ms per step"
    assert rows["scaling efficiency"] == "75% of 4 times one process (half of the steps 75% to 75%)"


def test_the_process_that_a_launch_kept_is_compared_with_by_default(tmp_path):
    folder = run(tmp_path / "r")
    assert "scaling efficiency" not in table_rows(pages.write(folder))
    run(folder / "alone", seconds=0.1, world=1, tokens_per_step=2000)
    assert table_rows(pages.write(folder))["scaling efficiency"].startswith("50% of 4 times one process")


@pytest.mark.parametrize(("changed", "compared"), [({"name": "alone"}, True), ({"strategy": "torch"}, False)])
def test_a_process_that_did_other_work_is_not_compared_with(tmp_path, changed, compared):
    folder = run(tmp_path / "r")
    run(folder / "alone", world=1, tokens_per_step=2000, options={**ABOUT["options"], **changed})
    assert ("scaling efficiency" in table_rows(pages.write(folder))) == compared


def test_beside_a_ratio_stands_where_half_of_the_steps_lie(tmp_path):
    folder = run(tmp_path / "r")
    lines = metrics.read(folder)
    for line in lines[5:]:  # 21 … 45 hundredths of a second: a quarter of them is below 0.27, a quarter above 0.39
        line["seconds"] = (15 + line["step"]) / 100
    (folder / metrics.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    run(folder / "alone", seconds=0.27, world=1, tokens_per_step=2000)
    rows = table_rows(pages.write(folder))
    assert rows["step"] == "330 ms, median of 25 (half of the steps 270 ms to 390 ms)"
    assert rows["scaling efficiency"] == "82% of 4 times one process (half of the steps 69% to 100%)"
    assert rows["simulated step"].endswith("(half of the steps -44% to -19%)")


@each(
    ("every", "last", "counted"),
    [(1, 30, range(6, 31)), (10, 30, [20, 30]), (10, 12, [12]), (4, 12, [12]), (4, 9, [4, 8, 9]), (40, 30, [30])],
)
def test_a_line_of_several_steps_counts_if_none_of_them_is_among_the_first(every, last, counted):
    """All steps count in a run that is too short to leave some out."""
    steps = sorted({*range(every, last, every), last})
    lines = [{"step": b, "steps": b - a, "seconds": 0.1} for a, b in pairwise([0, *steps])]
    summary = run_summary.Summary({**ABOUT, "resumed_at": 0}, lines, None)
    assert [line["step"] for line in summary.counted] == list(counted)


EVEN = {"computing": [0.15, 0.15, 0.15], "summing": [0.004, 0.004, 0.004], "updating": [0.02, 0.02, 0.02]}
SLOW = {"computing": [0.09, 0.1, 0.15], "summing": [0.08, 0.07, 0.02], "updating": [0.02, 0.02, 0.02]}
"""Of three ranks in a step of 200 ms: nothing is lost, rank 2 is slow."""


@each(
    ("parts", "message"),
    [
        (
            EVEN,
            [
                "Communication costs little: exposed communication takes 2% of a step, 4 ms of 200 ms.",
                "No rank is slow",
            ],
        ),
        (
            SLOW,
            [
                "Communication is not hidden: 10% of a step, 20 ms of 200 ms",
                "Rank 2 is slower: it works for 180 ms of a step, the others for 125 ms; of that it spends 150 ms in "
                "forward and backward, the others 95 ms. Waiting takes 18% of a step (36.7 ms, the mean over ranks).",
            ],
        ),
    ],
)
def test_the_verdict_says_what_is_hidden_and_who_is_waited_for(tmp_path, parts, message):
    found = list(sentences(read_run(run(tmp_path / "r", world=3, parts=parts), 3), None))
    assert len(found) == len(message)
    assert [sentence[: len(start)] for sentence, start in zip(found, message, strict=True)] == message


def test_the_verdict_says_what_is_lost_against_one_process(tmp_path):
    alone = {"computing": [0.1], "summing": [0.0], "updating": [0.02]}
    folder = run(tmp_path / "r", world=3, parts=SLOW, tokens_per_step=6000)
    run(folder / "alone", world=1, seconds=0.126, tokens_per_step=2000, parts=alone)
    *_, last = sentences(read_run(folder, 3), read_run(folder / "alone", 1))
    assert last == (
        "Efficiency is 63%: a step takes 200 ms, with one process alone 126 ms; the difference is waiting for the "
        "slowest rank (36.7 ms), exposed communication (20 ms), slower computing (13.3 ms)."
    )


def test_a_rank_is_slow_also_where_it_does_not_compute(tmp_path):
    """Rank 0 writes a log that takes 40 ms, and the others wait for it."""
    parts = {"computing": [0.1, 0.1, 0.1], "summing": [0.01, 0.05, 0.05], "updating": [0.02, 0.02, 0.02]}
    *_, last = sentences(read_run(run(tmp_path / "r", world=3, parts=parts), 3), None)
    assert last.startswith(
        "Rank 0 is slower: it works for 190 ms of a step, the others for 150 ms; of that it spends 70 ms outside"
    )


def test_ranks_that_wait_in_turn_are_seen_to_wait(tmp_path):
    """Rank 0 in steps with an even number, rank 1 in the others, and few steps are far from the usual."""

    def one(rank, number):
        late, far = (rank + number) % 2 == 0, 9.0 if number % 10 == 9 else 0.0
        times = {"computing": 0.1 + 0.04 * late + far, "summing": 0.05 - 0.04 * late, "updating": 0.02}
        return journals.update(number, **times, rest=0.03 + number % 2 / 1000)

    journals.write(tmp_path, [[one(rank, number) for number in range(40)] for rank in range(2)])
    measured = read_run(tmp_path, 2)
    assert measured.mean("waiting") == pytest.approx(0.02, rel=0.01)
    assert measured.mean("computation") == pytest.approx(0.12, rel=0.01)
    assert measured.slow is None
    _, waiting, _ = sentences(measured, None)
    assert waiting.startswith("Waiting for each other takes 10% of a step (20.1 ms")
    assert waiting.endswith("though no single rank is slow.")


def test_a_rank_that_is_late_in_some_steps_is_not_called_slow(tmp_path):
    def one(rank, number):
        late = 0.05 if number % 2 and rank == 0 else 0.0
        wait = 0.05 if number % 2 and rank == 1 else 0.0
        return journals.update(number, computing=0.1 + late + rank / 1000, summing=0.01 + wait, updating=0.02)

    journals.write(tmp_path, [[one(rank, number) for number in range(30)] for rank in range(2)])
    measured = read_run(tmp_path, 2)
    assert measured.mean("waiting") > 0.05 * measured.step
    assert measured.slow is None


def test_updates_with_a_checkpoint_count_in_the_throughput(tmp_path):
    """Rank 0 writes for 600 ms in every fourth update of 200 ms, while the other rank waits: 350 ms on average."""

    def one(rank, number):
        writing = 0.6 if number % 4 == 3 else 0.0
        times = {"computing": 0.16, "summing": 0.02 + writing * (rank == 1), "updating": 0.02}
        return journals.update(number, **times, rest=writing * (rank == 0))

    journals.write(tmp_path, [[one(rank, number) for number in range(3, 43)] for rank in range(2)])
    measured = read_run(tmp_path, 2)
    assert (measured.step, measured.long.sum()) == (pytest.approx(0.2), 10)
    assert measured.rate == pytest.approx(2 * 8 / 0.35)
    assert measured.long_seconds == pytest.approx(0.15)
    *_, sentence = sentences(measured, None)
    assert sentence == (
        "10 of 40 updates take more than 1.5 times the median, 800 ms on average, in which rank 0 spends longer "
        "outside of forward, backward, loader and optimizer. This makes the mean update 150 ms longer."
    )
    assert largest_loss(measured) == (
        "updates that take more than 1.5 times the median, added to the mean update", pytest.approx(0.15)
    )  # fmt: skip


def test_the_loss_of_time_by_a_slow_rank_is_what_the_others_wait_for_it(tmp_path):
    for slow, order in ((2, slice(None)), (0, slice(None, None, -1))):
        parts = {name: values[order] for name, values in SLOW.items()}
        journals.write(tmp_path / str(slow), journals.of_parts(parts, 3, 30, 0.2))
        words = f"waiting for rank {slow}, which is slower"
        assert largest_loss(read_run(tmp_path / str(slow), 3)) == (words, pytest.approx(0.055))


def test_of_a_run_that_another_world_has_resumed_only_its_own_steps_count(tmp_path):
    folder = run(tmp_path / "r", world=3, seconds=9.0, parts=SLOW)
    lines = metrics.Metrics(folder, 15)
    (folder / metrics.DESCRIPTION).write_text(json.dumps({**ABOUT, "world": 2, "resumed_at": 15}))
    for step in range(16, 31):
        lines.append(step=step, loss=5 / step, seconds=9.0 if step <= 20 else 0.2, memory=10**9)
    journals.write(folder, journals.of_parts({name: values[:2] for name, values in EVEN.items()}, 2, 15, 0.2))
    page = pages.write(folder)
    assert table_rows(page)["step"].startswith("200 ms, median of 10 ")
    assert [name for _, name, _ in rank_rows(page)] == ["rank 0", "rank 1"]


def test_a_short_run_has_no_verdict_and_no_efficiency(tmp_path):
    folder = run(tmp_path / "r", world=3, parts=SLOW)
    run(folder / "alone", world=1, parts=EVEN)
    path = folder / metrics.FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:10]))
    assert "Too short for a verdict: the first 5 steps" in pages.write(folder).read_text(encoding="utf-8")
    assert "one process" not in pages.headline(folder)


def rank_rows(page):
    """Whether a rank is slow, its name, and the rest of its row and its bar."""
    html = page.read_text(encoding="utf-8")
    return re.findall(r'<tr( class="slow")?><th scope="row">(.*?)</th>(.*?</tr>\n<tr class="bar">.*?)</tr>', html, re.S)


def test_every_rank_has_its_row_and_a_slow_one_is_marked(tmp_path):
    rows = rank_rows(pages.write(run(tmp_path / "r", world=3, parts=SLOW)))
    assert [(bool(slow), name) for slow, name, _ in rows] == [
        (False, "rank 0"), (False, "rank 1"), (True, "rank 2, slower")
    ]  # fmt: skip
    times = [re.findall(r"<td>([^<]+)</td>", cells) for *_, cells in rows]
    assert times[0] == ["90 ms", "20 ms", "60 ms", "0 ms", "20 ms", "10 ms", "200 ms", "1 GB"]
    assert times[2] == ["150 ms", "20 ms", "0 ms", "0 ms", "20 ms", "10 ms", "200 ms", "1 GB"]
    widths = [[float(width) for width in re.findall(r"width: ([\d.]+)%", cells)] for *_, cells in rows]
    assert widths[0] == pytest.approx([45, 10, 30, 0, 10, 5])


def test_a_run_without_journals_says_so_and_has_no_rows(tmp_path):
    page = pages.write(run(tmp_path / "r"))
    assert "was not measured: rank 0 wrote no journal" in page.read_text(encoding="utf-8")
    assert not rank_rows(page)


def test_times_are_written_as_people_write_them(tmp_path):
    page = pages.write(run(tmp_path / "r", seconds=1.2096)).read_text(encoding="utf-8")
    assert "1,210 ms, median of 25" in page
    assert not re.findall(r"\de[+-]\d|\b1 (?:calls|ranks|cores)\b", re.sub(r"data:[^\"]*", "", page))


def test_the_line_for_the_terminal(tmp_path):
    folder = run(tmp_path / "r")
    assert pages.headline(folder) == "loss 0.1667 after step 30; 40,000 tokens/s over 4 ranks"
    run(folder / "alone", seconds=0.1, world=1, tokens_per_step=2000)
    assert pages.headline(folder).endswith("over 4 ranks; 50% of 4 times one process")


@each("change", [{"options": {**ABOUT["options"], "precision": "fp32"}}, {"device": "x86_64"}])
def test_without_a_peak_there_is_no_utilisation(tmp_path_factory, change):
    rows = table_rows(pages.write(run(tmp_path_factory.mktemp("runs") / "r", **change)))
    assert rows["model FLOPs utilisation"] == "no peak known for this device and precision"


@each(
    ("device", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("AMD Instinct MI300X", 1307),
        ("AMD Instinct MI300X VF", 1307),
        ("AMD Instinct MI355X", 2500),
        ("NVIDIA RTX 4000 Ada Generation", None),
        ("AMD EPYC", None),
    ],
)
def test_peaks_by_the_names_of_drivers(device, teraflops):
    assert run_summary.peak_flops(device) == (teraflops and teraflops * 1e12)


def test_traces_are_drawn_with_waiting_apart_and_a_damaged_one_is_said(tmp_path):
    folder = run(tmp_path / "r", world=2)
    for rank, path in enumerate(recorded_traces()):
        (folder / f"trace-rank{rank}.json.gz").write_bytes(path.read_bytes())
    whole = read_profiles(recorded_traces())
    spent = milliseconds(whole.busy("communication"))
    waited = milliseconds(split_waits(whole).busy("wait"))
    assert f"{waited} of {spent} in collectives are waiting; " in pages.write(folder).read_text(encoding="utf-8")
    (folder / "trace-rank0.json.gz").write_bytes(b"nothing")
    assert "The traces cannot be read" in pages.write(folder).read_text(encoding="utf-8")


def test_nothing_in_it_comes_from_elsewhere_and_names_are_escaped(tmp_path):
    page = pages.write(run(tmp_path / "r", options={**ABOUT["options"], "strategy": "<b>"})).read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "&lt;b&gt;" in page


def test_the_command_writes_it_again(tmp_path, capsys):
    folder = run(tmp_path / "r")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")


def test_it_is_one_page_with_its_pictures_drawn_and_not_escaped(tmp_path):
    folder = run(tmp_path / "r")
    for rank, path in enumerate(recorded_traces()):
        (folder / f"trace-rank{rank}.json.gz").write_bytes(path.read_bytes())
    page = pages.write(folder).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert re.findall(r"<h[12]>(.*?)</h", page) == [
        *("Report on the run “r”", "Loss", "Time of a step", "Where the time goes", "What was run")
    ]
    assert "&lt;img" not in page
    assert "&lt;svg" not in page
    assert page.count("<img ") == 3


@each(
    ("file", "content", "message"),
    [
        (metrics.DESCRIPTION, "", "run.json cannot be read"),
        (metrics.DESCRIPTION, '{"world": 4, "opt', "run.json cannot be read"),
        (metrics.DESCRIPTION, "\x00\x80", "run.json cannot be read"),
        (metrics.DESCRIPTION, "[1, 2]", "run.json is not the file of a run: no options, world"),
        (
            metrics.DESCRIPTION,
            '{"name": "a-package", "version": "1.0.0"}',
            "run.json is not the file of a run: no options, world",
        ),
        (
            metrics.DESCRIPTION,
            json.dumps({**ABOUT, "options": {}}),
            "run.json is not the description of a run: no options model",
        ),
        (metrics.DESCRIPTION, json.dumps({**ABOUT, "world": "4"}), "run.json is not the file of a run: no world"),
        (metrics.PREDICTION, "{}", "prediction.json is not the file of a run: no seconds"),
        (metrics.FILE, "", "contains no finished step yet"),
        (metrics.FILE, "[]\n3\n", "contains no finished step yet"),
        (metrics.FILE, '{"step": 1}\n', "metrics.jsonl is damaged"),
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path_factory, capsys, file, content, message):
    folder = run(tmp_path_factory.mktemp("run") / "r")
    (folder / file).write_bytes(content.encode("latin-1"))
    assert main(["report", str(folder)]) == 1
    output = capsys.readouterr().err
    assert output.startswith("dpbook report: ")
    assert message in output


def test_a_file_or_a_folder_of_something_else_is_no_run(tmp_path, capsys):
    (tmp_path / "file").touch()
    for name in ("file", ".", "nowhere"):
        assert main(["report", str(tmp_path / name)]) == 1
        assert f"{tmp_path / name} is not the folder of a run" in capsys.readouterr().err
