"""Is a prediction measured on the trainer's device? "meta", which computes nothing, stands in for an accelerator."""

import contextlib
import os

import pytest
import torch
import torch.distributed as dist

from dpbook.program.__main__ import TIMEOUT, bind
from dpbook.program.options import Options
from dpbook.program.prediction import REPEATS, SIZES, predict
from dpbook.program.trainer import Trainer

SMALL = {"width": 32, "depth": 1, "context": 16, "batch": 2}
META = torch.device("meta")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def handed(monkeypatch):
    """The device and the bytes of every tensor that is handed to an all-reduce, and "synchronised" where one waited."""
    found, all_reduce = [], dist.all_reduce

    def watched(tensor, *args, **kwargs):
        found.append((tensor.device.type, tensor.numel() * tensor.element_size()))
        return all_reduce(tensor, *args, **kwargs)

    monkeypatch.setattr(dist, "all_reduce", watched)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: found.append("synchronised"))
    return found


def test_the_sweep_of_a_prediction_lies_on_the_trainers_device_and_waits_for_it(group, handed, tmp_path):
    trainer = Trainer(Options(out=str(tmp_path), strategy="naive", **SMALL), META)
    trainer.model = trainer.module  # without the wrapper, which reads the values of a tensor
    trainer.model.no_sync = contextlib.nullcontext
    handed.clear()
    assert predict(trainer)["seconds"] > 0
    calls = [tuple(handed[at : at + 3]) for at in range(0, 3 * len(SIZES) * (1 + REPEATS), 3)]
    expected = {("synchronised", ("meta", size), "synchronised") for size in SIZES}
    for turn in range(1 + REPEATS):  # in an order of its own
        assert set(calls[turn * len(SIZES) : (turn + 1) * len(SIZES)]) == expected


def test_the_group_of_ranks_with_gpus_takes_tensors_of_the_cpu_too(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: asked.append((backend, options)))
    for name, value in {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # which `bind` completes
    device = bind()
    assert device == torch.device("cuda", 3)
    assert asked == [device, ("cpu:gloo,cuda:nccl", {"timeout": TIMEOUT, "device_id": device})]


@pytest.mark.parametrize("cap", [0.01, 25.0])
@pytest.mark.parametrize("strategy", ["torch", "naive", "hook", "bucketed", "zero1"])
def test_the_calls_that_are_predicted_are_those_that_a_step_makes(group, tmp_path, strategy, cap):
    trainer = Trainer(Options(out=str(tmp_path), strategy=strategy, cap=cap, **SMALL), torch.device("cpu"))
    trainer.train_step()  # its buckets are those of a first step
    calls = [calls_of(trainer.model)]
    for _ in range(2):
        trainer.train_step()
        calls.append(calls_of(trainer.model))
    made = calls[-1] if strategy == "torch" else calls[-1] - calls[-2]
    assert predict(trainer)["calls"] == made


def test_blocks_are_compiled_one_by_one_so_that_backward_can_hide_messages(group, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(type(module).__name__))
    Trainer(Options(out=str(tmp_path), compile=True, **{**SMALL, "depth": 2}), torch.device("cpu"))
    assert compiled == ["Block", "Block"]


def calls_of(model):
    """Ours count what they have sent; torch tells the buckets of its present plan."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "").count(",") + 1
    return model.sent.calls
