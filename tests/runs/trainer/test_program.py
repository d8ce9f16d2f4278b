"""Does the training program train, whatever the strategy, as one process would, and resume to the same bits?"""

import argparse
import importlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpbook.app import main
from dpbook.core.errors import InvalidArgument
from dpbook.ranks import start
from dpbook.runs.trainer import checkpoints, metrics
from dpbook.runs.trainer.options import Options, add_options, from_namespace
from dpbook.runs.trainer.trainer import TIMEOUT
from dpbook.runs.trainer.workloads import Batches, Digits, PrefetchedBatches, Text, build, flops_per_token
from tests.cases import each

DAMAGES = ("empty", "cut", "garbled", "a bit", "other content", "missing")
STRATEGIES = ("torch", "naive", "hook", "bucketed", "zero1")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    everything = importlib.import_module("tests.runs.trainer.program_ranks").everything
    folder = str(tmp_path_factory.mktemp("runs"))
    return start(everything, [(rank, 3, folder) for rank in range(3)], timeout=240)


SAME_LAYOUT = {"torch": "torch", "bucketed": "torch", "zero1": "torch", "naive": "naive", "hook": "naive"}
"""A sum of three has an order, which the layout of the messages decides."""


@pytest.mark.processes
@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_that_send_the_same_buckets_train_to_the_same_bits(ranks, name):
    for rank in ranks:
        assert rank["strategies"][name] == rank["strategies"][SAME_LAYOUT[name]]
        assert rank["strategies"][name] == ranks[0]["strategies"][name]
    losses = [[step["loss"] for step in ranks[0]["strategies"][other][0]] for other in (name, "torch")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.processes
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_schedule_trains_every_strategy_to_the_same_bits(ranks, name):
    for rank in ranks:
        found, messages = rank["over schedules"][name]
        assert found == rank["strategies"][name]
        assert messages > 0


@pytest.mark.processes
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_ends_with_the_bits_of_one_that_was_never_ended(ranks, name):
    """On three ranks the first step after a start has other bits, unless the buckets are those of before."""
    assert [rank["resumed"][name] for rank in ranks] == [[True, 3, 3]] * 3


@pytest.mark.processes
@pytest.mark.parametrize(("name", "before"), [("zero1", "bucketed"), ("bucketed", "zero1")])
def test_an_optimizer_that_is_sharded_does_not_resume_one_that_was_not(ranks, name, before):
    for rank in ranks:
        output = rank["resumed"][f"{name} after {before}"]
        assert output.startswith(f"strategy must be as in the checkpoint ({before}), or --name another")


@pytest.mark.processes
def test_another_model_does_not_resume_a_run(ranks):
    for rank in ranks:
        assert rank["resumed"]["another depth"].startswith("depth must be as in the checkpoint (1), or --name another")


@pytest.mark.processes
@pytest.mark.parametrize("part", ["pt", "rank2"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_taken(ranks, part, name):
    """Also where the damage is to the shard of one rank, which alone sees it."""
    if (part, name) == ("pt", "missing"):
        return
    for number, rank in enumerate(ranks):
        step, output, aside, kept = rank["damaged"][f"{part} {name}"]
        assert (step, aside, kept) == (1, True, [1, 2])
        if number == 0:
            assert f"checkpoint-00000002.{part} " in output
            assert output.endswith("; renamed it to *.damaged; using the previous checkpoint\n")


@pytest.mark.processes
def test_where_all_checkpoints_are_damaged_all_are_named_and_kept(ranks):
    for rank in ranks:
        output, kept = rank["damaged"]["both"]
        assert re.search(r"checkpoint-00000002\.pt cannot be read .*checkpoint-00000001\.pt cannot be read", output)
        assert output.endswith("no readable checkpoint is left to resume from")
        assert kept == [1, 2]


@pytest.mark.processes
def test_ranks_of_which_one_is_asked_to_end_save_after_the_same_step(ranks):
    assert [rank["preempted"] for rank in ranks] == [[2, [2], True]] * 3


@pytest.mark.processes
def test_the_loss_is_that_of_the_whole_batch_on_one_process(ranks):
    for many, _ in (rank["big batch"] for rank in ranks):
        assert [step["loss"] for step in many] == pytest.approx(ranks[0]["big batch"][1], rel=1e-4)


@pytest.mark.processes
def test_only_trained_gradients_cross_the_wire_and_the_bytes_are_those_predicted(ranks):
    for rank in ranks:
        found = rank["variants"]
        assert all(variant["sent per step"] == variant["payload"] for variant in found.values())
        assert found["lora"]["frozen without gradient"]
        adapters = 4 * sum(rows + columns for rows, columns in ((96, 32), (32, 32), (128, 32), (32, 128)))
        assert found["lora"]["trained"] == adapters
        assert found["lora"]["payload"] == 4 * adapters
        assert found["lora"]["payload"] < found["plain"]["payload"] / 5


@pytest.mark.processes
def test_autocast_keeps_fp32_gradients_and_recomputation_the_values(ranks):
    for rank in ranks:
        found = rank["variants"]
        assert found["bf16"]["dtypes"] == ["torch.float32"]
        assert found["bf16"]["losses"] != found["plain"]["losses"]
        assert found["bf16"]["losses"] == pytest.approx(found["plain"]["losses"], rel=0.02)
        assert found["checkpointing"]["losses"] == pytest.approx(found["plain"]["losses"], rel=1e-5)
        assert found["cnn"]["losses"][-1] < found["cnn"]["losses"][0]


@pytest.mark.processes
def test_a_batch_that_the_data_cannot_fill_is_refused(ranks):
    assert ranks[0]["refusals"]["too large"].startswith("global batch must be at most the 1440 examples")


class Places:
    """A source whose examples are their places."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def examples(self, places):
        return places.tolist()


@each("steps", [[0, 1, 2, 3], [0, 0, 5, 6, 2], list(range(5, 20))])
def test_what_is_made_ready_ahead_is_what_is_read(steps):
    """Whatever is asked for next: a prediction reads the first batch once more."""
    options = Options(batch=3, accumulation=2)
    plain, ahead = (
        Batches(Places(50), options, 1, 2),
        PrefetchedBatches(Batches(Places(50), options, 1, 2), pinned=False),
    )
    for step in steps:
        assert list(ahead(step)) == list(plain(step))


def test_what_is_made_ready_for_a_gpu_is_pinned_before_it_is_asked_for(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor)
    ahead = PrefetchedBatches(Batches(Text(8), Options(batch=3), 0, 2), pinned=True)
    list(ahead(0))
    ahead._thread.shutdown()
    assert pinned == [(3, 8)] * 4  # of two steps


def dealt(steps, world, *, examples=100, batch=1, accumulation=1, seed=0):
    """The places that each rank reads: [rank][step][micro-batch]."""
    options = Options(batch=batch, accumulation=accumulation, seed=seed)
    ranks = [Batches(Places(examples), options, rank, world) for rank in range(world)]
    return [[list(batches(step)) for step in steps] for batches in ranks]


def together(ranks, step):
    return sorted(place for rank in ranks for micro_batch in rank[step] for place in micro_batch)


@pytest.mark.parametrize(("world", "batch", "accumulation"), [(2, 6, 1), (2, 3, 2), (3, 4, 1), (3, 1, 4), (1, 3, 4)])
def test_a_global_batch_is_the_same_for_any_number_of_ranks_and_micro_batches(world, batch, accumulation):
    steps = range(20)  # of 8 in an epoch
    ranks, alone = dealt(steps, world, batch=batch, accumulation=accumulation), dealt(steps, 1, batch=12)
    assert [together(ranks, step) for step in steps] == [together(alone, step) for step in steps]
    assert {len(micro) for rank in ranks for step in rank for micro in step} == {batch}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_run_that_begins_at_a_later_step_reads_what_an_uninterrupted_one_does(world):
    whole = dealt(range(30), world, batch=4)
    for first in (5, 13, 29):
        assert dealt(range(first, 30), world, batch=4) == [rank[first:] for rank in whole]


def test_an_epoch_shows_each_example_once_and_the_next_in_another_order():
    ranks = dealt(range(16), 3, batch=4)  # 8 steps of 12
    first, second = ([together(ranks, step) for step in steps] for steps in (range(8), range(8, 16)))
    assert len({place for batch in first for place in batch}) == 96
    assert first != second
    assert dealt([0], 3, batch=4) != dealt([0], 3, batch=4, seed=1)


@pytest.mark.parametrize("source", [Text(8), Digits()])
def test_the_last_example_is_one_of_the_data(source):
    inputs, targets = source.examples(np.array([0, len(source) - 1]))
    assert len(inputs) == len(targets) == 2
    with pytest.raises(IndexError):
        source.examples(np.array([len(source)]))


def test_text_is_predicted_one_byte_ahead():
    source = Text(8)
    inputs, targets = source.examples(np.arange(5))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(source.bytes[:4].tolist()) == b"(TM)"


def counted(model, context):
    """Operations per token of forward and backward, by torch's counter: every matrix product of one sequence."""
    tokens = torch.zeros(1, context, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    return counter.get_total_flops() / context


@each(("width", "depth", "context"), [(64, 3, 16), (32, 2, 256), (96, 1, 40)])
def test_the_gpt_counts_the_operations_that_torch_counts(width, depth, context):
    """The scores of attention included: they are a third of the second model's."""
    model = build(Options(width=width, depth=depth, context=context))
    assert flops_per_token(model) == counted(model, context)


def test_frozen_weights_need_no_gradient_of_their_own():
    """The count includes activations of the first block, before which nothing is trained."""
    model = build(Options(width=64, depth=3, context=16, lora=2))
    first = 2 * (3 * 64 * 64 + 2 * 64)
    assert flops_per_token(model) == counted(model, 16) + first


def test_metrics_of_lost_steps_are_dropped_and_a_cut_line_is_left_out(tmp_path):
    written = metrics.Metrics(tmp_path, 0)
    for step in (1, 2, 3):
        written.append(step=step, loss=1 / step)
    with written.path.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2, 3]
    metrics.Metrics(tmp_path, 2)
    assert [line["step"] for line in metrics.read(tmp_path)] == [1, 2]


def test_an_incomplete_checkpoint_does_not_count(tmp_path):
    assert checkpoints.steps(tmp_path) == []
    (tmp_path / "checkpoint-00000007.rank0").touch()
    (tmp_path / ".checkpoint-00000008.pt.partial").touch()
    (tmp_path / "checkpoint-00000005.pt").touch()
    assert checkpoints.steps(tmp_path) == [5]


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    add_options(parser)
    return from_namespace(parser.parse_args(arguments))


def test_the_command_line_gives_every_option():
    assert parsed() == Options()
    given = parsed("--strategy", "zero1", "--save-every", "7", "--checkpointing", "--lr", "0.5", "--name", "a.b-1")
    assert given == Options(strategy="zero1", save_every=7, checkpointing=True, lr=0.5, name="a.b-1")
    assert parsed("--all-reduce", "ring") == Options(all_reduce="ring")


def test_a_preset_gives_way_to_what_is_given_with_it():
    gpu = parsed("--preset", "gpu")
    assert (gpu.precision, gpu.fused, gpu.depth, gpu.context) == ("bf16", True, 12, 1024)
    assert gpu.width >= 1024
    assert parsed("--preset", "gpu", "--depth", "2", "--no-fused") == replace(gpu, depth=2, fused=False)


def test_the_help_says_what_a_preset_means_and_how_long_a_collective_may_take(capsys):
    assert main(["launch", "--program-help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "gpu: --steps 200 --batch 16 --lr 0.0003" in printed
    assert f"may take {TIMEOUT.total_seconds():g} s" in printed


@pytest.mark.parametrize("options", [Options(), Options(strategy="hook", checkpointing=True, predict=False, cap=0.25)])
def test_options_become_the_command_line_that_means_them(options):
    assert parsed(*options.to_arguments()) == options


@each(
    ("options", "output"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"model": "bert"}, "model must be one of gpt, cnn, got 'bert'"),
        ({"width": 40}, "width must be a multiple of 32"),
        ({"name": "../x"}, "name must be letters, digits"),
        ({"name": ""}, "name must be letters, digits"),
        ({"lora": 4, "model": "cnn"}, "lora must be 0 for the cnn"),
        ({"lr": -1.0}, "lr must be"),
        ({"all_reduce": "rings"}, "all_reduce must be one of torch, parameter_server, .*, gloo_ring, or FILE.json"),
        ({"checkpointing": 1}, "checkpointing must be True or False"),
    ],
)
def test_bad_options_are_named(options, output):
    with pytest.raises(InvalidArgument, match=output.replace("(", r"\(")):
        Options(**options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to Linux's device that is always full")
def test_of_a_checkpoint_that_does_not_fit_nothing_is_left_and_its_name_is_reported(tmp_path):
    path = tmp_path / "checkpoint-00000005.pt"
    partial = tmp_path / f".{path.name}.partial"
    partial.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*checkpoint-00000005\.pt"):
        checkpoints._write({"model": torch.zeros(10**5)}, path)
    assert list(tmp_path.iterdir()) == []
