"""Is a run that cannot fit, or cannot take a step, foreseen before it begins?"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpbook.collectives import FixedBounds, Round, Schedule, reduce_scatter, ring, to_json
from dpbook.core.machine import Gpu
from dpbook.runs.trainer.options import PRESETS, Options
from dpbook.runs.trainer.resource_check import (
    activations,
    adapters,
    checkpoint_bytes,
    least_memory,
    parameters,
    requirements,
)  # fmt: skip
from dpbook.runs.trainer.workloads import build
from tests.cases import each

GPUS = [Gpu("H100", 80 * 10**9)] * 4


@pytest.fixture(autouse=True)
def disk(monkeypatch):
    """A disk with much room, until a test takes some."""
    free = {"free": 10**15}
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(**free))
    return free


def said_by(*arguments, **options):
    return [str(finding) for finding in requirements(*arguments, **options)]


def test_a_model_that_does_not_fit_is_foreseen():
    large = Options(width=32 * 512, depth=64)
    assert any(
        "the model needs" in text and "a GPU (H100) has 80.0 GB" in text for text in said_by(large, 4, gpus=GPUS)
    )
    assert said_by(Options(), 4, gpus=GPUS) == []


@pytest.mark.parametrize(("strategy", "lora", "nbytes"), [("bucketed", 0, 16), ("zero1", 0, 10), ("bucketed", 8, 4)])
def test_a_rank_needs_what_is_kept(strategy, lora, nbytes):
    """Bytes per parameter on four ranks: weights, gradients and moments, of which ZeRO-1 keeps a quarter.

    With adapters next to nothing but the weights.
    """
    options = Options(width=32 * 88, depth=64, strategy=strategy, lora=lora)
    assert least_memory(options, 4) == pytest.approx(nbytes * parameters(options), rel=0.02)
    assert (said_by(options, 4, gpus=GPUS) == []) == (nbytes < 13)  # of 6.1 billion parameters


def saved(options):
    """Bytes of what autograd saves in a forward and is no parameter, each storage once."""
    model, kept = build(options), {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes(), tensor  # so that no other takes its place
        return tensor

    tokens = torch.zeros(options.batch, options.context, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, options.precision == "bf16"),
    ):
        loss = model(tokens, tokens)
    del loss
    return sum(nbytes for nbytes, _ in kept.values())


@each("precision", ["fp32", "bf16"])
@each("lora", [0, 8])
def test_activations_are_those_that_autograd_saves(precision, lora):
    options = Options(width=96, depth=5, context=40, batch=3, precision=precision, lora=lora)
    assert activations(options) == pytest.approx(saved(options), rel=0.02 if not lora else 0.1)  # a frozen block: less


def test_recomputation_saves_what_goes_into_a_block_and_needs_one_block_at_a_time():
    options = Options(width=96, depth=5, context=40, batch=3, checkpointing=True)
    shallow, plain = replace(options, depth=1, checkpointing=False), replace(options, depth=1)
    block = saved(replace(shallow, depth=2)) - saved(shallow)
    assert activations(options) == pytest.approx(saved(options) + block, rel=0.02)
    assert activations(plain) > activations(shallow)


@each(("batch", "message"), [(16, []), (64, ["activations of a micro-batch 29"])])
def test_the_gpus_preset_fits_a_small_gpu_and_four_times_its_batch_does_not(batch, message):
    """The GPU has 24 GB. 152 million parameters take 2.4 GB, 16,384 tokens in 12 blocks 7.5 GB."""
    options = Options(**{**PRESETS["gpu"], "batch": batch})
    assert parameters(options) == pytest.approx(152e6, rel=0.01)
    found = said_by(options, 1, gpus=[Gpu("RTX 4090", 24 * 10**9)])
    assert len(found) == len(message)
    assert all(text in finding for text, finding in zip(message, found, strict=True))


def test_ranks_without_a_step_are_foreseen():
    assert any("more than the 1,440 digits" in text for text in said_by(Options(model="cnn", batch=721), 2, gpus=[]))


@pytest.mark.parametrize("options", [{}, {"width": 96, "depth": 2, "context": 33}, {"model": "cnn"}, {"lora": 3}])
def test_parameters_are_counted_as_they_are_built(options):
    wanted = Options(**options)
    built = list(build(wanted).parameters())
    assert parameters(wanted) + adapters(wanted) == sum(p.numel() for p in built)
    assert adapters(wanted) in (0, sum(p.numel() for p in built if p.requires_grad))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"\(\[Errno 2\] No such file"),
        ("{}", r"\(text must be of format 'dpbook.schedule'"),
        (to_json(ring(3)), r"\(schedule must be for 2 ranks, got ring\(world=3\)"),
        (to_json(reduce_scatter(2)), r"\(schedule must be an all-reduce"),
        (to_json(Schedule(2, 1, [Round.of(0, 1, 0, True)], name="half")), r"\(half: lost contribution: rank 0"),
        (
            to_json(Schedule(2, 2, list(ring(2).rounds), FixedBounds((0, 3, 8)))),
            "must be a schedule that cuts buffers of any size",
        ),
    ],
    ids=["no file", "no schedule", "another world", "no all-reduce", "a broken promise", "one size"],
)
def test_a_schedule_that_cannot_sum_these_gradients_is_foreseen(content, message, tmp_path):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    found = said_by(Options(all_reduce=str(path)), 2, gpus=[])
    assert any(re.search(f"^problem: all_reduce .*{message}", text) for text in found), found


@pytest.mark.parametrize("name", ["ring", "gloo_ring", "mine.json"])
def test_a_schedule_that_can_is_not(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(to_json(ring(2)), encoding="utf-8")
    for gpus in ([], GPUS):
        assert not [text for text in said_by(Options(all_reduce=name), 2, gpus=gpus) if text.startswith("problem")]


@pytest.mark.parametrize("options", [{}, {"lora": 3}])
def test_a_checkpoint_is_as_large_as_foreseen(options, tmp_path):
    """But for the names that are in it."""
    model = build(Options(width=256, **options))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    assert checkpoint_bytes(Options(width=256, **options)) == pytest.approx(
        (tmp_path / "checkpoint.pt").stat().st_size, rel=0.02
    )


def test_a_disk_without_room_for_the_checkpoints_is_foreseen(tmp_path, disk):
    options = Options(out=str(tmp_path / "runs"))
    disk["free"] = 3 * checkpoint_bytes(options)
    assert said_by(options, 2, gpus=GPUS) == []
    disk["free"] -= 1
    (message,) = said_by(options, 2, gpus=GPUS)
    assert re.search(rf"problem: --out: the disk of {tmp_path} has .* free, and checkpoints need", message)
    options.folder.mkdir(parents=True)
    for step in (1, 2):
        (options.folder / f"checkpoint-0000000{step}.pt").touch()  # they have their room already
    assert said_by(options, 2, gpus=GPUS) == []


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_to_is_foreseen(tmp_path, name):
    (tmp_path / "file").touch()
    (message,) = said_by(Options(out=str(tmp_path / name)), 2, gpus=GPUS)
    assert message == f"problem: --out: cannot write to {tmp_path / 'file'}"
