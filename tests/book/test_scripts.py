"""Do the scripts that readers take home, and our own program, choose their devices by the same rule?"""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dpbook.book.ch11 import train_adapters, train_ddp
from dpbook.book.ch14 import train_fully_sharded
from dpbook.book.ch16 import train_post_local
from dpbook.core import DpbookError
from dpbook.ranks import own_device
from tests.cases import each

CPU = torch.device("cpu")
SCRIPTS = [train_ddp, train_adapters, train_fully_sharded, train_post_local]
every_program = pytest.mark.parametrize("program", [*SCRIPTS, own_device])


def chosen(program, gpus, *, cpu=False, **variables):
    """Return the device of a rank with these environment ``variables`` that sees so many GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda") if gpus else None)
        patch.setattr(torch.accelerator, "device_count", lambda: gpus)
        patch.setattr(torch.accelerator, "set_device_index", lambda device: None)
        patch.setattr(dist, "init_process_group", lambda *_, **__: None)
        patch.setattr(os, "environ", {name: str(value) for name, value in variables.items()})
        return own_device()[0] if program is own_device else program.join(cpu)


@every_program
@each(
    ("gpus", "local", "ranks", "index"),
    [(8, 3, 8, 3), (8, 3, 1, 3), (8, 0, 1, 0), (1, 0, 1, 0), (1, 3, 8, 0), (1, 3, 1, 0)],
)
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(program, gpus, local, ranks, index):
    """srun does not set LOCAL_WORLD_SIZE, which is then 1."""
    assert chosen(program, gpus, LOCAL_RANK=local, LOCAL_WORLD_SIZE=ranks) == torch.device("cuda", index)


@every_program
@each(("gpus", "local", "ranks"), [(2, 3, 4), (2, 0, 3), (2, 2, 1)])
def test_a_rank_without_a_gpu_of_its_own_does_not_train_on_the_cpu(program, gpus, local, ranks):
    with pytest.raises((SystemExit, DpbookError), match=rf"sees {gpus} .*{max(ranks, local + 1)} ranks.*[Ss]tart 2"):
        chosen(program, gpus, LOCAL_RANK=local, LOCAL_WORLD_SIZE=ranks)


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


@every_program
def test_a_machine_without_gpus_trains_on_the_cpu(program):
    assert chosen(program, 0, LOCAL_RANK=3, LOCAL_WORLD_SIZE=4) == CPU
