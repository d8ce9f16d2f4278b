"""Do the scripts that readers take home, and our own program, choose their devices by the same rule?"""

import os

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


@every_program
def test_a_machine_without_gpus_trains_on_the_cpu(program):
    assert chosen(program, 0, LOCAL_RANK=3, LOCAL_WORLD_SIZE=4) == CPU
