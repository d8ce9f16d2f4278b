"""Checks of launches in which a rank fails, and of the GPUs that processes use meanwhile."""

import os
import re
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager

from tests.gpu.checks import NotRun, check
from tests.gpu.launches import succeeded

FAULT = """import os, sys, time
import torch
import torch.distributed as dist
from datetime import timedelta
from dpbook.runs.trainer.__main__ import bind
fault = sys.argv[1]
device = bind()
group = dist.new_group(timeout=timedelta(seconds=20))
x = torch.ones(8, device=device)
dist.all_reduce(x, group=group)
x.sum().item()
if dist.get_rank() == dist.get_world_size() - 1:
    if fault == "raises":
        raise KeyError("label")
    if fault == "is killed":
        os.kill(os.getpid(), 9)
    if fault == "stays away":
        time.sleep(120)
    if fault == "has a kernel that does not end":
        torch.cuda._sleep(10**13)
    if fault == "leaves early":
        sys.exit()
    if fault == "sends another size":
        x = x[:4].clone()
if fault != "skips a call" or dist.get_rank() < dist.get_world_size() - 1:
    dist.all_reduce(x, group=group)
dist.all_reduce(x, group=group)
print(x.sum().item())
dist.destroy_process_group()
"""


def _script(machine):
    path = machine.folder / "fault.py"
    path.write_text(FAULT)
    return path


def _fault(machine, fault, **environment):
    """Return the headline of a launch in which the last rank fails, and the seconds until it was printed."""
    begun = time.monotonic()
    ended = machine.launch(str(_script(machine)), fault, options=["--hang-timeout", "60"], **environment)
    messages = [line for line in ended.stderr.splitlines() if line.startswith("dpbook launch: ")]
    headline = (
        next((line for line in messages if "rank" in line and "warning:" not in line), "nothing")
        if ended.returncode
        else "status 0"
    )
    return headline.removeprefix("dpbook launch: "), time.monotonic() - begun


def _named(machine, faults, **environment):
    figures = {}
    for fault, words in faults.items():
        headline, seconds = _fault(machine, fault, **environment)
        assert f"rank {machine.ranks - 1}" in headline, f"{fault}: {headline}"
        assert re.search(words, headline), f"{fault}: {headline}"
        figures[fault] = [headline, seconds]
    return figures


@check(place="host", ranks=2, lasting=True)
def the_rank_at_fault_is_named(machine):
    """The headline of a launch names a rank that raises or is killed while the streams of others wait."""
    return _named(machine, {"raises": "KeyError: 'label'", "is killed": "SIGKILL"})


@check(place="host", ranks=2, gpu_only="NCCL's watchdog")
def a_rank_that_stays_away_is_named(machine):
    """A launch, and `dpbook diagnose` of torch's dumps, name a rank that is away until NCCL's timeout of 20 s."""
    folder = machine.folder / "dumps"
    folder.mkdir()
    dumps = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "512"}
    dumps |= dict.fromkeys(("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), str(folder / "rank-"))
    figures = _named(machine, {"stays away": ""}, **dumps)
    diagnosis = machine.run("-m", "dpbook", "diagnose", str(folder), "--world", str(machine.ranks))
    figures |= {"files": sorted(path.name for path in folder.iterdir()), "diagnose": diagnosis.stdout.splitlines()[:3]}
    assert f"rank {machine.ranks - 1}" in diagnosis.stdout, figures
    return figures


@check(place="host", ranks=2, lasting=True)
def other_faults_are_recorded(machine):
    """A launch fails where a rank leaves early or skips a call, and ends where one sends another size: all recorded."""
    on_gpus = () if machine.is_stand_in else ("has a kernel that does not end",)
    faults = ("sends another size", "leaves early", "skips a call", *on_gpus)
    figures = {fault: _fault(machine, fault) for fault in faults}
    for fault, (headline, _) in figures.items():
        if machine.is_stand_in:  # gloo compares sizes; NCCL may well add up tensors of different ones
            assert f"rank {machine.ranks - 1}" in headline, figures
        elif fault != "sends another size":
            assert headline != "status 0", figures
    return figures


@check(place="host", gpu_only="a UUID")
def two_ranks_on_one_gpu_are_refused(machine):
    """Two ranks that both see the first GPU alone are refused, with a message that names both and the GPU."""
    script = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(_script(machine)), "none"]
    ended = machine.run(*script, CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
    assert ended.returncode != 0
    assert "have the same accelerator" in ended.stderr, ended.stderr[-2000:]


@check(place="host", gpu_only="contexts on other devices")
def every_process_uses_one_gpu(machine):
    """While our program trains, and while ranks wait for one that stays away, each process is on one GPU only."""
    training = ["--preset", "gpu", "--steps", "100", "--no-predict", "--out", str(machine.folder), "--name", "contexts"]
    with _watched_gpus() as gpus_of:
        succeeded(machine.launch("-m", "dpbook.runs.trainer", *training))
        assert not gpus_of or len(gpus_of) == machine.ranks, f"{len(gpus_of)} processes of {machine.ranks} ranks"
        if machine.ranks > 1:
            _fault(machine, "stays away")
    if not gpus_of:
        raise NotRun("nvidia-smi shows no processes here, as in some containers")
    assert all(len(gpus) == 1 for gpus in gpus_of.values()), gpus_of
    return {"processes": len(gpus_of)}


@contextmanager
def _watched_gpus():
    """Yield a dictionary that comes to hold the GPUs of every process that uses one, as nvidia-smi shows them."""
    before, gpus_of, ended = _users_of_gpus(), {}, threading.Event()

    def watch():
        while not ended.wait(0.5):
            for process, gpu in _users_of_gpus() - before:
                gpus_of.setdefault(process, set()).add(gpu)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield gpus_of
    finally:
        ended.set()
        thread.join()


def _users_of_gpus():
    """Return pairs of a process and a GPU that it uses, as nvidia-smi shows them."""
    query = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        raise NotRun("there is no nvidia-smi")
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    return {(words[0], words[-1]) for line in lines if (words := line.split(", "))[0].isdecimal()}
