"""Checks of launches on the device: our program with its report, the scripts to take home, the GPU of each rank."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from dpbook.app import command_line
from dpbook.book.ch12 import time_lost
from dpbook.collectives import ring, simulate
from dpbook.core import checkout
from dpbook.overlap import read_profile
from dpbook.ranks import join_accelerator, run, sweep_accelerators
from dpbook.runs.report.measured_run import read_run
from dpbook.runs.trainer import metrics
from dpbook.runs.watching import PARTS
from scripts import train_adapters, train_ddp, train_fully_sharded, train_post_local
from tests.gpu.checks import NotRun, check
from tests.gpu.measuring import utilisation_of

IN_RANK = str(Path(__file__).with_name("in_rank.py"))
LIMIT = 240.0
"""Seconds for one launch."""
SMALL = ["--width", "32", "--depth", "1", "--context", "16", "--batch", "2"]


@dataclass(frozen=True)
class Machine:
    """The machine under test: its ``kind`` of device, the number of ``ranks``, and a ``folder`` for what is written."""

    kind: str
    ranks: int
    folder: Path

    @property
    def is_stand_in(self):
        return self.kind == "sim"

    def launch(
        self,
        *program,
        options=(),
        nproc=None,
        stop_after=None,
        on_device=False,
        preflight=False,
        cwd=None,
        **environment,
    ):
        """Run `dpbook launch` of a script, or without one of our program with these ``options``.

        With ``on_device`` the script fails if it has put nothing on the device. Without ``preflight`` no messages are
        sent between GPUs before it: they take seconds, and the process that sends them uses all GPUs.
        """
        in_rank = [IN_RANK, *(["--sim"] if self.is_stand_in else []), *(["--on-device"] if on_device else [])]
        if stop_after:
            in_rank += ["--stop-after", str(stop_after)]
        before = [] if preflight else ["--no-preflight"]
        named = ["launch", "--nproc", str(nproc or self.ranks), *before, *options]
        if program and (self.is_stand_in or stop_after or on_device):
            return self.run("-m", "dpbook", *named, "--", *in_rank, *program, cwd=cwd, **environment)
        if self.is_stand_in:
            return self.run("-m", "tests.gpu.dpbook_on_sim", *named, **environment)
        return self.run("-m", "dpbook", *named, *(["--", *program] if program else []), cwd=cwd, **environment)

    def train(self, *options):
        """Launch our program; with its report at the end, if what that needs is installed."""
        if writes_a_report():
            return self.launch(options=["--no-alone", *options], preflight=True)
        return self.launch("-m", "dpbook.runs.trainer", *options, preflight=True)

    def run(self, *command, cwd=None, **environment):
        """Run Python with ``command`` in ``cwd``, by default the checkout; return the process that has ended.

        A script finds this checkout's `dpbook`, which need not be installed.
        """
        path = os.pathsep.join(filter(None, [str(checkout.root()), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *command], cwd=cwd or checkout.root(), capture_output=True, text=True, timeout=LIMIT,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )  # fmt: skip


def writes_a_report():
    """Return True if the packages are installed that a report needs and a launch of a script does not."""
    return all(importlib.util.find_spec(name) for name in command_line.NEEDED["launch"])


def succeeded(process):
    assert process.returncode == 0, f"status {process.returncode}: {process.stderr[-2000:]}"
    return process


@check(place="host", lasting=True)
def a_launch_trains_measures_and_reports(machine):
    """Our program with the preset for GPUs trains, predicts its step, and writes a trace and a report."""
    size = [*SMALL, "--steps", "12", "--report-every", "2"] if machine.is_stand_in else ["--steps", "40"]
    options = ["--preset", "gpu", *size, "--out", str(machine.folder), "--name", "preset", "--profile", "1"]
    ended = succeeded(machine.train(*options))
    folder = machine.folder / "preset"
    assert not writes_a_report() or ended.stdout.splitlines()[-1] == f"report: {folder / metrics.REPORT}"
    described, predicted = (json.loads((folder / f).read_text()) for f in (metrics.DESCRIPTION, metrics.PREDICTION))
    lines = metrics.read(folder)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert predicted["seconds"] >= predicted["computation"] > 0
    timeline = read_profile(next(folder.glob("trace-rank*")))
    kinds = {span.kind for span in timeline.spans}
    assert "computation" in kinds
    (lost,) = time_lost(timeline).values()
    assert abs(timeline.busy("computation") + sum(lost) - timeline.duration) < 1e-6 * timeline.duration, lost
    seconds = median(line["seconds"] for line in lines if line["step"] > lines[-1]["step"] / 2)  # after the trace
    figures = {
        "device": described["device"], "step, s": seconds, "predicted, s": predicted["seconds"],
        "tokens per second": lines[-1]["tokens_per_second"], "memory, B": lines[-1]["memory"],
        "kinds in the trace": sorted(kinds), "trace, s": timeline.duration,
        "computation, s": timeline.busy("computation"), "lost, s": lost._asdict(),
    }  # fmt: skip
    tokens_per_second = described["tokens_per_step"] / seconds
    figures |= utilisation_of(described["device"], tokens_per_second, described["flops_per_token"], machine.ranks)
    if not machine.is_stand_in:
        assert 0.5 * seconds < timeline.duration < 2 * seconds, figures
        assert 0.6 * seconds < predicted["seconds"] < 1.6 * seconds, figures
    return figures


@check(place="host", lasting=True)
def a_report_of_a_script_has_the_times_of_its_kernels(machine):
    """`dpbook launch --report` of a script: parts add up to the step, and steps take what the script's events say."""
    width, file = 32 if machine.is_stand_in else 4096, machine.folder / "seconds.json"
    script = [str(Path(__file__).with_name("timed_script.py")), str(width), "12", str(file)]
    options = ["--report", "--report-name", "timed"]
    ended = succeeded(machine.launch(*script, options=options, cwd=machine.folder))
    folder, (least, most) = machine.folder / "runs" / "reports" / "timed", json.loads(file.read_text())
    assert ended.stdout.splitlines()[-1] == f"report: {Path('runs', 'reports', 'timed', 'report.html')}", ended.stdout
    run = read_run(folder, machine.ranks)
    parts = run.all_parts
    total = sum(parts[name] for name in PARTS)
    assert np.allclose(total, parts["step"], rtol=1e-9), parts
    assert all((parts[name] >= -1e-9).all() for name in PARTS), parts
    watched = float(parts["step"][:, 0].sum())
    assert 0.999 * least <= watched <= 1.001 * most, (least, watched, most)
    passes = float((parts["computation"] + parts["optimizer"])[:, 0].sum())
    assert machine.is_stand_in or passes >= 0.5 * least, (passes, least)  # the host launches faster than they compute
    assert machine.ranks == 1 or (parts["hidden"] + parts["exposed"]).min() > 0, parts
    data = json.loads((folder / "report.json").read_text())
    figures = {"by the script's events at least, s": least, "at most, s": most, "as they are watched, s": watched}
    figures["step, s"] = data["step"]
    return figures | {part: data["ranks"][0][part] for part in (*PARTS, "hidden")} | {"not": data["not_measured"]}


@check(place="host", lasting=True)
def a_report_in_every_step_costs_time(machine):
    """With --report-every 1 a step takes as long as, or longer than, with --report-every 10; both are recorded."""
    found = {}
    for every in (1, 10):
        name = f"every-{every}"
        size = [*SMALL, "--steps", "20"] if machine.is_stand_in else ["--steps", "40"]
        options = ["--preset", "gpu", *size, "--out", str(machine.folder), "--name", name]
        succeeded(machine.train(*options, "--no-predict", "--report-every", str(every)))
        lines = metrics.read(machine.folder / name)
        found[every] = median(line["seconds"] for line in lines if line["step"] > 10)
    assert machine.is_stand_in or found[10] <= 1.05 * found[1], found
    return {f"every {every}, s": seconds for every, seconds in found.items()}


SCRIPTS = {
    train_ddp: ["--epochs", "1", "--examples", "48", "--batch", "4"],
    train_adapters: ["--steps", "2"],
    train_fully_sharded: ["--steps", "4", "--examples", "48", "--batch", "12"],
    train_post_local: ["--steps", "20", "--begin", "10", "--every", "4"],
}


@check(place="host", lasting=True)
def scripts_to_take_home_find_the_device(machine):
    """The scripts of chapters 11, 14 and 16 train on the device of each rank, and resume when they are started anew."""
    for script, size in SCRIPTS.items():
        name = script.__name__.rpartition(".")[2]
        run = [script.__file__, *size, "--out", str(machine.folder / name)]
        for _ in range(2):
            ended = succeeded(machine.launch(*run, on_device=True))
        assert script is train_post_local or "resumed from" in ended.stdout, ended.stdout


@check(place="host", ranks=2, lasting=True)
def a_sharded_checkpoint_goes_on_with_fewer_ranks(machine):
    """A fully sharded run that SIGTERM has ended on all ranks goes on with half of them."""
    run = [train_fully_sharded.__file__, *SCRIPTS[train_fully_sharded], "--out", str(machine.folder / "fewer")]
    succeeded(machine.launch(*run, stop_after=2))
    again = succeeded(machine.launch(*run, nproc=machine.ranks // 2))
    assert "resumed from" in again.stdout
    assert "holds step 4" in again.stdout, again.stdout


def _prove_again(machine, check_name, name, **environment):
    """Make one check again, in ranks with other variables of NCCL."""
    only = ["--only", check_name, "--out", str(machine.folder / f"{name}.json")]
    command = ["-m", "tests.gpu", "--device", machine.kind, "--ranks", str(machine.ranks), *only]
    succeeded(machine.run(*command, **environment))


@check(place="host", ranks=2, lasting=True)
def equal_buckets_have_equal_bits_with_each_algorithm(machine):
    """Our buckets have the bits of torch's DDP with NCCL's ring, its tree, its protocol LL, and without NVLS."""
    choices = ("ALGO=Ring", "ALGO=AllReduce:Tree", "PROTO=LL", "NVLS_ENABLE=0")  # "Tree" alone has no broadcast
    for choice in choices[:1] if machine.is_stand_in else choices:
        name, _, value = choice.partition("=")
        _prove_again(machine, "equal_buckets_have_equal_bits", choice.replace(":", "-"), **{f"NCCL_{name}": value})


LOG = {
    "its version": r"NCCL version \S+", "a rank is ready": r"ncclCommInitRank.*Init COMPLETE",
    "its structures": r"Connected all rings.*", "its way to a neighbour": r"Channel \S+ : .* via \S+",
    "its channels": r"\d+ coll channels.*", "NVLS": r"NVLS multicast support is .*",
    "a call": r"AllReduce: .* Bytes -> Algo .*",
}  # fmt: skip
"""Lines of NCCL's log that docs/nccl_log.md explains."""


@check(place="host", ranks=2, gpu_only="NCCL's log")
def nccls_log_has_the_lines_that_the_page_explains(machine):
    """NCCL's log has the lines on its start, its ways and its calls that docs/nccl_log.md explains; all recorded."""
    variables = {
        "DEBUG": "INFO",
        "DEBUG_SUBSYS": "INIT,ENV,GRAPH,NET,TUNING",
        "DEBUG_FILE": f"{machine.folder}/nccl.%p",
    }
    variables = {f"NCCL_{name}": value for name, value in variables.items()}
    _prove_again(machine, "the_backends_all_reduce_beside_schedules", "log", **variables)
    text = "\n".join(path.read_text(errors="replace") for path in machine.folder.glob("nccl.*"))
    matches = {name: re.search(pattern, text) for name, pattern in LOG.items()}
    figures = {name: match[0] if match else "no line" for name, match in matches.items()}
    assert all(matches[name] for name in ("its version", "a rank is ready", "its way to a neighbour")), figures
    return figures


@check(place="host", ranks=2, gpu_only="NCCL")
def nccl_tests_and_our_sweep_agree(machine):
    """The busbw of a large all-reduce that `all_reduce_perf` of nccl-tests finds is ours within a fifth."""
    program, size = "all_reduce_perf", 2**28
    if shutil.which(program) is None or importlib.util.find_spec("cloudpickle") is None:
        raise NotRun(f"{program} or cloudpickle is not installed")
    command = [program, "-b", str(size), "-e", str(size), "-g", str(machine.ranks)]
    report = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT).stdout
    theirs = float(re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", report)[1])
    ours = float(sweep_accelerators(machine.ranks, [size]).busbw[0] / 1e9)
    figures = {"nccl-tests, GB/s": theirs, "ours, GB/s": ours}
    assert 0.8 * theirs < ours < 1.25 * theirs, figures
    return figures


@check(place="host", gpu_only="several devices in a process")
def a_rank_finds_the_gpus_that_it_sees(machine):
    """A rank that sees one GPU, given by number or UUID, takes it, whatever its local rank."""
    last = torch.cuda.device_count() - 1
    uuid = f"GPU-{torch.cuda.get_device_properties(last).uuid}"
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        last = visible.split(",")[last]
    show = "from dpbook.ranks import own_device; print(own_device()[0])"
    figures = {}
    for visible, local, ranks, expected in (
        (str(last), "0", "1", "cuda:0"), (uuid, "0", "1", "cuda:0"), (str(last), "3", "8", "cuda:0"),
        (str(last), "1", "1", "cuda:0"),
    ):  # fmt: skip
        variables = {"CUDA_VISIBLE_DEVICES": visible, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": ranks}
        found = succeeded(machine.run("-c", show, **variables)).stdout.strip()
        figures[f"visible {visible}, local rank {local} of {ranks}"] = found
        assert found == expected, figures
    return figures


@check(place="host", gpu_only="`nvidia-smi`")
def more_ranks_than_gpus_are_refused(machine):
    """`dpbook launch` refuses more ranks than there are GPUs before it starts any, and says so."""
    ended = machine.launch(options=["--preset", "gpu"], nproc=1 + torch.cuda.device_count(), preflight=True)
    assert ended.returncode != 0
    assert "NCCL refuses two ranks on one" in ended.stdout + ended.stderr, ended.stderr[-500:]


@check(place="host", gpu_only="a start from a notebook, which `tests/book/sim` tries")
def ranks_of_a_notebook_carry_a_schedule(machine):
    """`ranks.run(schedule, …, join=join_accelerator)` has the bits of the schedule's simulation."""
    if importlib.util.find_spec("cloudpickle") is None:
        raise NotRun("cloudpickle is not installed")
    schedule = ring(machine.ranks)
    buffers = np.random.default_rng(0).normal(size=(machine.ranks, 1003)).astype(np.float32)
    sums = run(schedule, buffers, join=join_accelerator)
    assert np.stack(sums).tobytes() == simulate(schedule, buffers).buffers.tobytes()


@check(place="host", lasting=True)
def the_doctor_and_a_sweep_run(machine):
    """`dpbook doctor` finds the GPUs and NCCL, and a sweep of `dpbook bench` between accelerators ends well."""
    output = machine.run("-m", "dpbook", "doctor", "--json")
    found = json.loads(output.stdout)["torch"]  # packages of the extra `book` may be missing, which is its exit status
    assert not found["gloo"], found
    if machine.is_stand_in:
        return {"doctor": found}
    assert len(found["gpus"]) == torch.cuda.device_count(), found
    assert found["nccl"], found
    if missing := [name for name in ("cloudpickle", "tqdm") if importlib.util.find_spec(name) is None]:
        return {"doctor": found, "no sweep without": missing}
    sweep = ["bench", "--nproc", str(machine.ranks), "--algorithms", "accelerators", "--repeats", "5"]
    return {"doctor": found, "sweep": succeeded(machine.run("-m", "dpbook", *sweep)).stdout.splitlines()}
