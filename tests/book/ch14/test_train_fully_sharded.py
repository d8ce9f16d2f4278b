"""Does the script that a reader takes home train as one process would, and go on on other ranks than it ended on?

A start of three ranks, then one of two, which finds what the three have saved; a start of four is a proof.
"""

import importlib
import os
import shutil
import signal
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from dpbook.book.ch14 import train_fully_sharded as script
from dpbook.ranks import start
from tests.cases import each

CPU = torch.device("cpu")
SMALL = ["--width", "20", "--depth", "1", "--examples", "30", "--batch", "12", "--micro", "2", "--steps", "5"]
NOISY = ["--dropout", "0.2", "--steps", "4"]
FORMS = {
    "whole sums": [], "sums in shards": ["--scatter-each"], "kept": ["--keep-gathered"],
    "recomputed": ["--checkpointing"], "copies": ["--shards", "1", "--scatter-each"],
}  # fmt: skip
UNITS = 2


class Calls(TorchDispatchMode):
    """The names of the operations that are called, collectives among them."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def options(folder, *others):
    return script.parse([*SMALL, "--out", str(folder), *others])


def weights(training):
    return [p.full_tensor().detach().cpu().numpy() for p in training.model.parameters()]


def bits(training):
    return [each.tobytes() for each in weights(training)]


def after_signal(rank, number, after, parsed, device=CPU):
    """A run whose process is sent a signal in a step, the ``after``-th from its start, if it is of ``rank``."""
    calls, step = [], script.Training.train_step

    def counted(training):
        calls.append(training)
        if dist.get_rank() == rank and len(calls) == after:
            os.kill(os.getpid(), number)
        return step(training)

    with patch.object(script.Training, "train_step", counted):
        return script.run(parsed, device)


def expected(training, settings):
    """Loss and gradient of a step's examples in one batch, by the model as it is without sharding."""
    model = script.Model(settings)
    with torch.no_grad():
        for mine, part in zip(model.parameters(), training.model.parameters(), strict=True):
            mine.copy_(part.full_tensor())
    draw = torch.Generator().manual_seed(settings.seed)
    first = torch.randperm(settings.examples, generator=draw)[: settings.batch].tolist()
    rows = [script.sequence(k, 0) for k in first]
    scores = torch.cat([model(row[None, :-1]) for row in rows])
    loss = cross_entropy(scores, torch.cat([row[1:] for row in rows]))
    return float(loss), torch.autograd.grad(loss, list(model.parameters()))


def gradient(folder, *form):
    """Differences of loss, norm and gradient of a step from those of one batch, and how many ranks printed."""
    settings = options(folder, *form)
    training = script.Training(settings, CPU)
    whole, parts = expected(training, settings)
    with Calls() as calls:
        loss = training.gradient(training.micro_batches())
    own = [p.grad.full_tensor() for p in training.model.parameters()]
    far = max(float((g - e).abs().max()) for g, e in zip(own, parts, strict=True))
    norm = float(torch.cat([e.flatten() for e in parts]).norm())
    training.optimizer.zero_grad()
    return {
        "loss": (float(loss), whole), "far": far, "norm": (float(training.train_step()[1]), norm), "calls": calls.names,
        "micro-batches": len(training.micro_batches()),
    }  # fmt: skip


def held_out(folder):
    """Loss and accuracy of 7 examples on the ranks, and of one after the other."""
    training = script.Training(options(folder), CPU)
    found = training.evaluate(7)
    model = script.Model(training.options).eval()
    model.load_state_dict({name: p.full_tensor() for name, p in training.model.named_parameters()})
    rows = [script.sequence(k, 10**6) for k in range(7)]
    with torch.no_grad():
        scores, targets = torch.cat([model(row[None, :-1]) for row in rows]), torch.cat([row[1:] for row in rows])
    return found, (float(cross_entropy(scores, targets)), float((scores.argmax(-1) == targets).float().mean()))


def refused(*arguments):
    with pytest.raises(SystemExit) as message:
        script.run(options(*arguments), CPU)
    return str(message.value)


def unfilled(folder):
    """A model with a buffer that is in no state."""
    make = script.Model.__init__

    def more(model, settings):
        make(model, settings)
        model.register_buffer("angles", torch.ones(2), persistent=False)

    with patch.object(script.Model, "__init__", more):
        return refused(folder)


def ended(folder):
    """A run with dropout that one rank alone is told to end: where it stood, and if it goes on to the same bits."""
    whole = bits(script.run(options(f"{folder}/noisy", *NOISY), CPU))
    cut = options(f"{folder}/noisy-cut", *NOISY)
    first = after_signal(1, signal.SIGUSR1, 2, cut)
    return first.step, bits(first) != whole, bits(script.run(cut, CPU)) == whole


def three(rank, folder):
    torch.set_num_threads(1)
    found = {"gradient": {name: gradient(folder, *form) for name, form in FORMS.items()}}
    found |= {"bf16": gradient(folder, "--precision", "bf16"), "held out": held_out(folder), "ended": ended(folder)}
    found["whole"] = weights(script.run(options(f"{folder}/whole"), CPU))
    found["cut"] = after_signal(2, signal.SIGTERM, 3, options(f"{folder}/cut")).step
    found["other"] = refused(f"{folder}/cut", "--batch", "6", "--seed", "1").partition("step-00000003 ")[2]
    found["batch"] = refused(folder, "--batch", "10")
    found["shards"] = refused(folder, "--shards", "2")
    found["buffer"] = unfilled(folder)
    return found


def two(rank, folder):
    """A checkpoint of three ranks is resumed; beside it lies the rest of a save that was killed."""
    torch.set_num_threads(1)
    training = script.run(options(f"{folder}/cut"), CPU)
    left = sorted(path.name for path in os.scandir(f"{folder}/cut"))
    return {"weights": weights(training), "step": training.step, "left": left}


def four(rank, folder):
    """Two copies in two shards each; and what it saves, gone on with in four shards."""
    torch.set_num_threads(1)
    hybrid = ["--shards", "2", "--micro", "1"]
    forms = {"whole sums": [], "sums in shards": ["--scatter-each"], "recomputed": ["--checkpointing"]}
    found = {"gradient": {name: gradient(folder, *hybrid, *form) for name, form in forms.items()}}
    whole = weights(script.run(options(f"{folder}/hybrid", *hybrid), CPU))
    after_signal(3, signal.SIGTERM, 2, options(f"{folder}/hybrid-cut", *hybrid))
    again = weights(script.run(options(f"{folder}/hybrid-cut"), CPU))
    return found | {"far": max(float(abs(a - b).max()) for a, b in zip(whole, again, strict=True))}


def started(name, world, folder):
    module = importlib.import_module("tests.book.ch14.test_train_fully_sharded")
    return start(getattr(module, name), [(rank, str(folder)) for rank in range(world)], timeout=240, echo=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def ranks(folder):
    return started("three", 3, folder)


@pytest.fixture(scope="module")
def fewer(ranks, folder):
    unfinished = folder / "cut" / "step-00000004"
    shutil.copytree(folder / "cut" / "step-00000003", unfinished)
    (unfinished / ".metadata").unlink()
    (folder / "cut" / "step-by-step").mkdir()  # somebody's notes
    return started("two", 2, folder)


@pytest.mark.processes
def test_the_gradient_is_the_big_batchs_however_it_is_summed(ranks):
    """Every token weighs the same; and the norm by which it is clipped is the whole gradient's."""
    for rank in ranks:
        for found in rank["gradient"].values():
            assert found["micro-batches"] == 2
            assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-6)
            assert found["norm"][0] == pytest.approx(found["norm"][1], rel=1e-5)
            assert found["far"] < 1e-6
        assert 1e-6 < rank["bf16"]["far"] < 0.02


@each(
    ("form", "gathers", "scatters"),
    [
        ("whole sums", 2 * (2 * UNITS - 1), UNITS),  # backward finds the root as forward left it
        ("sums in shards", 2 * (2 * UNITS - 1), 2 * UNITS),
        ("kept", 2 * UNITS, UNITS),
        ("recomputed", 2 * (2 * UNITS - 1), UNITS),  # recomputation is in the block's backward, which has gathered
    ],
)
@pytest.mark.processes
def test_two_micro_batches_gather_each_time_and_reduce_as_asked(ranks, form, gathers, scatters):
    for rank in ranks:
        calls = rank["gradient"][form]["calls"]
        assert sum("allgather" in name for name in calls) == gathers
        assert sum("reduce_scatter" in name for name in calls) == scatters


@pytest.mark.processes
def test_evaluation_divides_sums_once(ranks):
    """Seven examples on three ranks: two that fill up count nothing."""
    for rank in ranks:
        found, right = rank["held out"]
        assert found == pytest.approx(right, rel=1e-5)


@pytest.mark.processes
def test_a_run_that_one_rank_is_told_to_end_goes_on_to_the_bits_of_one_that_was_not(ranks):
    assert [rank["ended"] for rank in ranks] == [(2, True, True)] * 3


@pytest.mark.processes
def test_two_ranks_go_on_where_three_were_ended(ranks, fewer):
    """Sums are of other parts, so not to the bit: without its moments AdamW would end 2e-3 away."""
    assert [rank["cut"] for rank in ranks] == [3, 3, 3]
    for rank in fewer:
        assert rank["step"] == 5
        for whole, gone_on in zip(ranks[0]["whole"], rank["weights"], strict=True):
            assert abs(whole - gone_on).max() < 5e-5
        assert rank["left"] == ["step-00000005", "step-by-step"]  # and not what a save that was killed has left


@pytest.mark.processes
def test_what_cannot_go_on_or_fill_a_step_is_refused(ranks):
    for rank in ranks:
        assert (
            rank["other"] == "was saved with batch 12, not 6; seed 0, not 1. Use the same settings, or another --out."
        )
        assert "30 examples, batches of 10 and 3 ranks" in rank["batch"]
        assert rank["shards"] == "--shards 2 does not divide 3 ranks."
        assert rank["buffer"] == "The state dict has no values for the buffers ['angles']. Make them persistent."


@each(
    ("arguments", "message"),
    [
        (["--micro", "0"], "argument --micro: 0 is less than 1"),
        (["--save-every", "0"], "argument --save-every: 0 is less than 1"),
        (["--shards", "-1"], "argument --shards: -1 is less than 1"),
        (["--width", "30"], "--width 30 is not divisible by 4 heads"),
    ],
)
def test_a_number_that_no_step_can_have_is_refused_before_anybody_waits(capsys, arguments, message):
    with pytest.raises(SystemExit):
        script.parse(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.proof
@pytest.mark.processes
def test_copies_in_shards_train_as_one_process_and_go_on_as_one_copy(folder):
    for rank in started("four", 4, folder):
        for found in rank["gradient"].values():
            assert found["micro-batches"] == 3
            assert found["norm"][0] == pytest.approx(found["norm"][1], rel=1e-5)
            assert found["far"] < 1e-6
        assert rank["far"] < 5e-5


def test_gpus_that_are_left_idle_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "2"})
    assert script.join() == torch.device("cpu")
    assert capsys.readouterr().out.startswith("Training on the CPU: a rank sees 1 GPUs, and this node needs 2")
