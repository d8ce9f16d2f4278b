"""Does a rank take its accelerator, and does a prediction count the calls of a step?"""

import os
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist

from dpbook.core import DpbookError
from dpbook.runs.trainer import __main__ as program
from dpbook.runs.trainer import checkpoints, metrics
from dpbook.runs.trainer.__main__ import TIMEOUT, bind
from dpbook.runs.trainer.metrics import Metrics
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.prediction import _sizes, predict
from dpbook.runs.trainer.trainer import Trainer, train
from tests.cases import each

SMALL = {"width": 32, "depth": 1, "context": 16, "batch": 2}


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def rank_with_gpus(monkeypatch):
    """Ranks that see the GPU number 3 of 8, join through one store, and note what they call."""
    store, calls = dist.HashStore(), []

    def rank(rank, uuid):
        monkeypatch.setattr(dist, "rendezvous", lambda url, timeout: iter([(store, rank, 2)]))
        properties = SimpleNamespace(name="H100", uuid=uuid)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return calls

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(torch.accelerator, "set_device_index", calls.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: calls.append((backend, options)))
    monkeypatch.setattr(os, "environ", {**os.environ, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"})
    return rank


def test_the_group_of_ranks_with_gpus_takes_tensors_of_the_cpu_too(rank_with_gpus):
    calls, device = rank_with_gpus(1, "GPU-1"), bind()
    bound, (backends, options) = calls
    assert device == bound == options["device_id"] == torch.device("cuda", 3)
    assert (backends, options["rank"], options["world_size"]) == ("cpu:gloo,cuda:nccl", 1, 2)
    assert options["timeout"] == options["store"].timeout == TIMEOUT


def test_two_ranks_with_one_gpu_are_refused_before_nccl_meets_them(rank_with_gpus):
    for rank, uuid in ((0, "GPU-0"), (1, "GPU-1"), (1, "GPU-1")):  # a rank may join more than one group
        rank_with_gpus(rank, uuid)
        bind()
    calls = rank_with_gpus(2, "GPU-1")
    before = list(calls)
    with pytest.raises(DpbookError, match=r"ranks 1 and 2 have the same accelerator \(H100, GPU-1\)"):
        bind()
    assert calls == before


@each(("kind", "count"), [(None, 0), ("mps", 4)])
def test_ranks_without_an_accelerator_or_a_backend_for_it_are_on_the_cpu(kind, count):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available: torch.device(kind) if kind else None
        )
        patch.setattr(torch.accelerator, "device_count", lambda: count)
        patch.setattr(dist, "init_process_group", lambda backend, **options: calls.append((backend, options)))
        patch.setattr(os, "environ", {**os.environ, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"})
        assert bind() == torch.device("cpu")
    assert calls == [("gloo", {"timeout": TIMEOUT})]


@each("gpus", [0, 8])
def test_a_rank_that_has_a_group_keeps_it_on_the_cpu_and_changes_it_for_its_accelerator(gpus):
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda") if gpus else None
        )
        patch.setattr(torch.accelerator, "device_count", lambda: gpus)
        patch.setattr(dist, "is_initialized", lambda: True)
        patch.setattr(dist, "init_process_group", lambda *arguments, **options: pytest.fail("it has a group"))
        patch.setattr(program, "regroup", lambda *arguments: calls.append(arguments))
        patch.setattr(os, "environ", {**os.environ, "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"})
        device = bind()
    assert (device, calls) == (
        (torch.device("cuda", 3), [(torch.device("cuda", 3), "cpu:gloo,cuda:nccl")])
        if gpus
        else (torch.device("cpu"), [])
    )


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


@each(
    ("kind", "payload", "largest"),
    [("cpu", 2**28, 2**24), ("cuda", 2**20, 2**24), ("cuda", 2**28, 2**28), ("cuda", 2**33, 2**30)],
)
def test_all_reduces_are_measured_up_to_what_a_step_sends_between_accelerators(kind, payload, largest):
    """Up to 1 GiB; on the CPU up to 16 MiB, for larger ones take seconds."""
    sizes = _sizes(SimpleNamespace(device=torch.device(kind), payload=payload))
    assert (min(sizes), max(sizes)) == (2**14, largest)


def test_there_is_a_line_of_metrics_for_some_steps_and_before_each_checkpoint(group, tmp_path):
    """Its line for the last step is that of a run which reports every step."""
    often = trained(Options(out=str(tmp_path), name="often", steps=10, save_every=0, **SMALL))
    seldom = trained(Options(out=str(tmp_path), name="seldom", steps=10, save_every=3, report_every=4, **SMALL))
    assert [(line["step"], line["steps"]) for line in seldom] == [(3, 3), (4, 1), (6, 2), (8, 2), (9, 1), (10, 1)]
    for line in seldom:
        assert all(line[name] == often[line["step"] - 1][name] for name in ("loss", "gradient_norm", "lr"))
    assert checkpoints.steps(tmp_path / "seldom") == [9, 10]


def trained(options):
    lines = Metrics(options.folder, 0)
    train(Trainer(options, torch.device("cpu")), lines, MagicMock())
    return metrics.read(options.folder)


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
