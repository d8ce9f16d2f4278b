"""Does the script that a reader takes home train as one process would, and go on where it was ended?

One start of three ranks.
"""

import importlib
import os
import signal
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dpbook.book.ch11 import train_ddp
from dpbook.ranks import start

CPU = torch.device("cpu")
SMALL = ["--examples", "200", "--batch", "4", "--epochs", "2"]  # 8 steps of 2 micro-batches in an epoch, on 3 ranks


def options(folder, *others):
    return train_ddp.parse([*SMALL, "--out", str(folder), *others])


def bits(training):
    return [p.detach().numpy().tobytes() for p in training.ddp.parameters()]


def after_signal(rank, number, after, parsed, device=CPU):
    """A run whose process is sent a signal in a step, the ``after``-th from its start, if it is of ``rank``."""
    calls, step = [], train_ddp.train_step

    def counted(*arguments):
        calls.append(arguments)
        if dist.get_rank() == rank and len(calls) == after:
            os.kill(os.getpid(), number)
        return step(*arguments)

    with patch.object(train_ddp, "train_step", counted):
        return train_ddp.run(parsed, device)


def ended(folder):
    """Steps at which a run ended if one rank, then another, got a signal; and whether its result is as without."""
    whole = bits(train_ddp.run(options(f"{folder}/whole"), CPU))
    cut = options(f"{folder}/cut")
    first, second = after_signal(1, signal.SIGTERM, 11, cut), after_signal(2, signal.SIGUSR1, 2, cut)
    stood = [(training.epoch, training.step) for training in (first, second)]
    return stood, bits(first) != whole, bits(train_ddp.run(cut, CPU)) == whole


def others(folder):
    """Error if the options, or the number of ranks, are not those of the checkpoint."""
    found = []
    for changes in (("--batch", "2"), ("--lr", "0.5", "--seed", "1")):
        with pytest.raises(SystemExit) as said:
            train_ddp.run(options(f"{folder}/cut", *changes), CPU)
        found.append(str(said.value).partition("checkpoint.pt ")[2])
    training = train_ddp.build(options(folder), CPU)
    training.settings["ranks"] = 4
    with pytest.raises(SystemExit) as said:
        training.load(Path(folder, "cut/checkpoint.pt"))
    return [*found, str(said.value).partition("checkpoint.pt ")[2]]


def one_step(rank, folder):
    """Loss and gradient of a step without dropout or clipping, and those of all its tokens in one batch."""
    training = train_ddp.build(options(folder), CPU)
    training.ddp.eval()
    data = train_ddp.Sequences(18, seed=5)  # three ranks, two micro-batches, three examples; of many lengths
    rows = [[train_ddp.collate([data[6 * r + 3 * m + k] for k in range(3)]) for m in range(2)] for r in range(3)]
    model = training.ddp.module
    parts = [(model(x)[y >= 0], y[y >= 0]) for micros in rows for x, y in micros]
    whole = cross_entropy(torch.cat([scores for scores, _ in parts]), torch.cat([y for _, y in parts]))
    expected = torch.autograd.grad(whole, list(model.parameters()))
    found = []
    with (
        patch.object(train_ddp.nn.utils, "clip_grad_norm_"),
        patch.object(training.scaler, "step", lambda _: found.extend(p.grad.clone() for p in model.parameters())),
    ):
        loss = train_ddp.train_step(training, rows[rank], options(folder))
    far = max(float((g - e).abs().max()) for g, e in zip(found, expected, strict=True))
    return float(loss), float(whole), far


def held_out(folder):
    """Loss and accuracy of 17 examples on three ranks, and of all at once."""
    training, data = train_ddp.build(options(folder), CPU), train_ddp.Sequences(17, seed=9)
    found = train_ddp.evaluate(training, data, options(folder))
    inputs, targets = train_ddp.collate([data[k] for k in range(17)])
    with torch.no_grad():
        scores, real = training.ddp.module.eval()(inputs), targets >= 0
    right = (scores[real].argmax(-1) == targets[real]).float().mean()
    return found, (float(cross_entropy(scores[real], targets[real])), float(right))


def halves(folder):
    """The weights after two epochs in fp16 with a scaler, and its scale, which an overflow would have halved."""
    training = train_ddp.run(options(f"{folder}/fp16", "--precision", "fp16"), CPU)
    return bits(training), training.scaler.get_scale(), all(bool(p.isfinite().all()) for p in training.ddp.parameters())


class Noise(train_ddp.Sequences):
    """Numbers that torch's generator draws in the loading process, as augmentation does."""

    def __getitem__(self, index):
        return torch.randint(train_ddp.TOKENS, (9,))


def drawn(folder):
    """The first inputs that a loading process of this rank draws."""
    parsed = options(folder, "--workers", "1")
    first = next(train_ddp.read(Noise(100, seed=0), train_ddp.build(parsed, CPU), parsed))
    return first[0][0].tolist()


def too_few(folder):
    """Message about 23 examples, if a step of three ranks takes 24."""
    with pytest.raises(SystemExit) as said:
        train_ddp.run(options(f"{folder}/few", "--examples", "23"), CPU)
    return str(said.value)


def invisible(rank, folder):
    """The error of a second start in which only rank 0 sees the checkpoint, as on nodes that share no disk."""
    place = f"{folder}/cut" if rank == 0 else f"{folder}/elsewhere"
    with pytest.raises(SystemExit) as error:
        train_ddp.run(options(place), CPU)
    return str(error.value)


def everything(rank, folder):
    torch.set_num_threads(1)
    return {
        "ended": ended(folder),
        "others": others(folder),
        "step": one_step(rank, folder),
        "held out": held_out(folder),
        "fp16": halves(folder),
        "drawn": drawn(folder),
        "too few": too_few(folder),
        "invisible": invisible(rank, folder),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    module = importlib.import_module("tests.book.ch11.test_train_ddp")
    folder = str(tmp_path_factory.mktemp("train"))
    return start(module.everything, [(rank, folder) for rank in range(3)], timeout=120, echo=False)


@pytest.mark.processes
def test_a_run_that_one_rank_is_told_to_end_goes_on_to_the_bits_of_one_that_was_not(ranks):
    """With dropout, in the middle of an epoch: random states, place in the data, buckets and moments come back."""
    assert [rank["ended"] for rank in ranks] == [([(1, 3), (1, 5)], True, True)] * 3


@pytest.mark.processes
def test_a_run_does_not_go_on_as_another(ranks):
    """With another batch its place in the epoch would be other examples; nobody would see it."""
    said = [
        f"was saved with {settings}. Use the same settings, or another --out."
        for settings in ("batch 4, not 2", "lr 0.01, not 0.5; seed 0, not 1", "ranks 3, not 4")
    ]
    assert [rank["others"] for rank in ranks] == [said] * 3


@pytest.mark.processes
def test_ranks_that_do_not_all_see_the_checkpoint_do_not_train(ranks):
    """Each rank would otherwise decide alone, and gradients of different weights would be averaged."""
    assert [rank["invisible"].partition(" exists, ")[2] for rank in ranks] == [
        "but ranks [1, 2] do not see it. Let --out be a folder that all nodes share."
    ] * 3


@pytest.mark.processes
def test_every_token_of_a_step_weighs_the_same(ranks):
    """Means of micro-batches or of ranks would weigh the tokens of short sequences more."""
    for rank in ranks:
        loss, expected, far = rank["step"]
        assert loss == pytest.approx(expected, rel=1e-6)
        assert far < 1e-7


@pytest.mark.processes
def test_evaluation_divides_sums_once(ranks):
    for rank in ranks:
        found, expected = rank["held out"]
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.processes
def test_replicas_stay_equal_in_fp16(ranks):
    weights, scale, finite = ranks[0]["fp16"]
    assert [rank["fp16"] for rank in ranks] == [(weights, scale, True)] * 3
    assert finite


@pytest.mark.processes
def test_no_two_ranks_augment_alike(ranks):
    assert len({str(rank["drawn"]) for rank in ranks}) == 3


@pytest.mark.processes
def test_data_that_fill_no_step_are_refused(ranks):
    assert {rank["too few"][:46] for rank in ranks} == {"23 examples do not fill one global batch of 24"}


def test_gpus_that_are_left_idle_are_told_of(monkeypatch, capsys):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "2"})
    assert train_ddp.join() == torch.device("cpu")
    assert capsys.readouterr().out.startswith("Training on the CPU: a rank sees 1 GPUs, and this node needs 2")
