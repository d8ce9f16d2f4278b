"""Do the scripts that readers take home choose their devices alike?"""

import os

import pytest
import torch
import torch.distributed as dist

from dpbook.book.ch11 import train_adapters, train_ddp
from dpbook.book.ch14 import train_fully_sharded
from dpbook.book.ch16 import train_post_local


@pytest.mark.parametrize("script", [train_ddp, train_adapters, train_fully_sharded, train_post_local])
def test_gpus_that_are_left_idle_are_named(script, monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "2"})
    assert script.join() == torch.device("cpu")
    assert capsys.readouterr().out.startswith("Training on the CPU: a rank sees 1 GPUs, and this node needs 2")
