"""Do the scripts that readers take home, and our own program, choose their devices by the same rule?"""

import contextlib
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbook.book.gpu_records import read_gpu_records
from dpbook.core import DpbookError, checkout
from dpbook.ranks import own_device
from scripts import train_adapters, train_ddp, train_fully_sharded, train_post_local
from tests.cases import each

CPU = torch.device("cpu")
SCRIPTS = [train_ddp, train_adapters, train_fully_sharded, train_post_local]


class Joined(Exception):
    """A script has joined its group."""


def script_of_chapter_09():
    """Run the chapter's script as far as its process group, and return the device of the rank."""
    (path,) = (checkout.root() / "chapters").glob("09_*.ipynb")
    cells = {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
    named, devices = {}, []

    def join(backend, device_id):
        assert backend == ("nccl" if device_id else "gloo")
        devices.append(device_id or CPU)
        raise Joined

    exec("".join(cells["script-text"]["source"]), named)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Joined):
        patch.setattr(dist, "init_process_group", join)
        exec(named["script"], {})
    return devices[0]


every_program = pytest.mark.parametrize("program", [*SCRIPTS, own_device, script_of_chapter_09])


def chosen(program, gpus, *, cpu=False, **variables):
    """Return the device of a rank with these environment ``variables`` that sees so many GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda") if gpus else None)
        patch.setattr(torch.accelerator, "device_count", lambda: gpus)
        patch.setattr(torch.accelerator, "set_device_index", lambda device: None)
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)
        variables = {"RANK": 0, "WORLD_SIZE": 8} | variables
        patch.setattr(os, "environ", {name: str(value) for name, value in variables.items()})
        if program is own_device:
            return own_device()[0]
        return program() if program is script_of_chapter_09 else program.join(cpu)


@every_program
@each(
    ("gpus", "local", "ranks", "index"),
    [(8, 3, 8, 3), (8, 3, 1, 3), (8, 0, 1, 0), (1, 0, 1, 0), (1, 3, 8, 0), (1, 3, 1, 0)],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(program, gpus, local, ranks, index):
    """srun does not set LOCAL_WORLD_SIZE, which is then 1."""
    assert chosen(program, gpus, LOCAL_RANK=local, LOCAL_WORLD_SIZE=ranks) == torch.device("cuda", index)


@every_program
@each(("local", "ranks"), [(3, 4), (0, 3)])
def test_a_rank_without_a_gpu_of_its_own_does_not_train_on_the_cpu(program, local, ranks):
    with pytest.raises(
        (SystemExit, DpbookError), match=rf"2 (GPUs|acc).*{ranks} ranks.*[Ss]tart 2|{ranks} ranks.*2 GPUs"
    ):
        chosen(program, 2, LOCAL_RANK=local, LOCAL_WORLD_SIZE=ranks)


@pytest.mark.parametrize("program", [*SCRIPTS, own_device])
def test_nor_does_a_rank_that_srun_has_started(program):
    with pytest.raises((SystemExit, DpbookError), match=r"sees 2 .*3 ranks.*[Ss]tart 2"):
        chosen(program, 2, LOCAL_RANK=2, LOCAL_WORLD_SIZE=1)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_rank_trains_on_the_cpu_if_it_is_told_to(script):
    assert chosen(script, 2, cpu=True, LOCAL_RANK=3, LOCAL_WORLD_SIZE=4) == CPU
    assert script.parse(["--cpu"]).cpu
    assert not script.parse([]).cpu


@pytest.mark.parametrize("script", [train_ddp, train_adapters])
def test_a_checkpoint_is_on_the_disk_before_it_replaces_the_one_before_it(script, tmp_path, monkeypatch):
    """Otherwise a power cut could leave the new name with an empty file."""
    path, calls, sync, replace = tmp_path / "run" / "checkpoint.pt", [], os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda file: calls.append(Path(os.readlink(f"/proc/self/fd/{file}"))) or sync(file)
    )
    monkeypatch.setattr(os, "replace", lambda old, new: calls.append(torch.load(old)) or replace(old, new))
    script.write({"step": 3}, path)
    assert calls == [path.with_name("checkpoint.pt.partial"), {"step": 3}, path.parent]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_says_that_no_gpu_has_run_it_until_one_has(script):
    """The proof for GPUs runs all of them, and leaves a record."""
    says_so = "Not tested: a GPU" in " ".join(script.__doc__.split())
    assert says_so == (not read_gpu_records())


@every_program
def test_a_machine_without_gpus_trains_on_the_cpu(program):
    assert chosen(program, 0, LOCAL_RANK=3, LOCAL_WORLD_SIZE=4) == CPU


@pytest.mark.parametrize("script", SCRIPTS)
@each(("built_for", "driver", "expected"), [(None, True, True), (None, False, False), ("13.0", True, False)])
def test_a_build_of_torch_without_cuda_says_so_where_there_are_gpus(script, built_for, driver, expected, monkeypatch):
    """With a build for CUDA the GPUs have been hidden, which is the reader's choice."""
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(os.path, "exists", lambda path: driver and path == "/dev/nvidiactl")
    monkeypatch.setattr(script, "log", (lines := []).append)
    for cpu in (True, False):
        assert chosen(script, 0, cpu=cpu, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1) == CPU
    assert [f"torch {torch.__version__} is a build without CUDA" in line for line in lines] == [True] * expected
