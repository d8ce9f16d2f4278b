"""Does ``dpbook bench`` measure, tell and keep what it measured?"""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpbook import figures
from dpbook.app import main
from dpbook.collectives import fit
from dpbook.core import machine
from dpbook.core.errors import InvalidArgument
from dpbook.ranks import Sweep
from dpbook.runs.report import benchmark
from tests.cases import each

SIZES = np.array([1024, 4096, 65536], np.int64)


def made_up(alpha, beta, world=2):
    times = np.tile((alpha + beta * SIZES)[:, None], (1, 3))
    return Sweep(world, SIZES, times)


@pytest.fixture
def bench():
    return benchmark.Bench(2, {"dist.all_reduce": made_up(1e-4, 1e-9), "ring": made_up(5e-4, 2e-9)})


def test_it_fits_each_sweep(bench):
    for (alpha, beta), one in zip([(1e-4, 1e-9), (5e-4, 2e-9)], bench.to_data()["sweeps"].values(), strict=True):
        assert (one["alpha"], one["beta"]) == pytest.approx((alpha, beta))


def test_what_is_written_can_be_read_back_and_earlier_files_are_kept(bench, tmp_path):
    first, second = benchmark.write(bench, tmp_path), benchmark.write(bench, tmp_path)
    assert [path.name for path in (*first, *second)] == [
        "bench.json",
        "bench.svg",
        "bench-2.json",
        "bench-2.svg",
    ]
    data = json.loads(first[0].read_text())
    again = data["sweeps"]["ring"]
    assert np.median(again["seconds"], axis=1) == pytest.approx(bench.sweeps["ring"].seconds)
    assert again["busbw"] == pytest.approx(SIZES / (5e-4 + 2e-9 * SIZES))  # the factor of two ranks is 1
    assert fit(again["nbytes"], np.median(again["seconds"], axis=1)).model.beta == pytest.approx(again["beta"])
    assert {"machine", "versions", "date", "world"} <= set(data)
    assert first[1].read_text().startswith("<svg")


def test_the_figure_says_the_largest_bandwidth(bench):
    assert "ring: at most 104 MB/s" in figures.sweeps(bench.sweeps, "Title").alt
    with pytest.raises(InvalidArgument, match="measured"):
        figures.sweeps({}, "Title")


@each(("gpus", "swept"), [(0, ["dist.all_reduce", "ring"]), (1, ["dist.all_reduce", "ring"]), (2, None)])
def test_accelerators_are_swept_too_where_each_rank_has_one(gpus, swept, capsys):
    """Up to 1 GiB, unless sizes are given."""
    asked = []

    def sweeps_run(world, *_, **options):
        asked.append(options)
        return replace(made_up(1e-5, 1e-11), backend="nccl" if "nbytes" not in options else "gloo")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "gpus", lambda: [machine.Gpu("H100", 80 * 10**9)] * gpus)
        patch.setattr(benchmark, "sweep", lambda *arguments, **options: made_up(1e-4, 1e-9))
        patch.setattr(benchmark, "sweep_accelerators", sweeps_run)
        assert main(["bench", "--nproc", "2"]) == 0
        message = capsys.readouterr().out
        assert ("accelerators, 2 ranks over nccl" in message) is (swept is None)
        assert asked == ([{"repeats": 25, "timeout": 600}] if swept is None else [])


@pytest.mark.processes
def test_where_there_are_no_accelerators_a_sweep_of_them_says_so(capsys):
    assert main(["bench", "--algorithms", "accelerators", "--nproc", "1"]) == 1
    assert "does not have an accelerator" in capsys.readouterr().err


@pytest.mark.processes
def test_the_command_measures_prints_and_writes(tmp_path, capsys):
    status = main(
        ["bench", "--algorithms", "dist.all_reduce,tree", "--largest", "12", "--repeats", "2", "--out", str(tmp_path)]
    )
    message = capsys.readouterr().out
    assert status == 0
    assert "dist.all_reduce, 2 ranks over gloo" in message
    assert "tree, 2 ranks over gloo" in message
    assert (tmp_path / "bench.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithms", "rings"], "algorithm must be one of dist.all_reduce, accelerators, parameter_server, "),
        (["--nproc", "0"], "--nproc must be an integer of at least 1"),
        (["--largest", "40"], "--largest must be an integer from 10 to 32"),
        (["--smallest", "12", "--largest", "11"], "--largest must be an integer from 12 to 32"),
        (["--repeats", "0"], "repeats must be"),
    ],
)
def test_bad_arguments_are_named(arguments, message, capsys):
    assert main(["bench", *arguments]) == 1
    assert message in capsys.readouterr().err
