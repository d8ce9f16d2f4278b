"""Does the script that a reader takes home train as one process would, and go on where it was ended?

One start of three ranks.
"""

import signal
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scripts import train_ddp
from tests.book.scripts import CPU, run_with_signal
from tests.scenarios import Scenarios, gathered

pytestmark = pytest.mark.processes
scenario = Scenarios()
SMALL = ["--examples", "200", "--batch", "4", "--epochs", "2"]  # 8 steps of 2 micro-batches in an epoch, on 3 ranks
after_signal = partial(run_with_signal, train_ddp, train_ddp)


def options(folder, *others):
    return train_ddp.parse([*SMALL, "--out", str(folder), *others])


def bits(training):
    return [p.detach().numpy().tobytes() for p in training.ddp.parameters()]


@scenario
def a_run_that_one_rank_is_told_to_end_resumes_to_the_bits_of_an_uninterrupted_one(rank, world, folder):
    """With dropout, in the middle of an epoch: random states, place in the data, buckets and moments come back."""
    whole = bits(train_ddp.run(options(f"{folder}/whole"), CPU))
    cut = options(f"{folder}/cut")
    first, second = after_signal(1, signal.SIGTERM, 11, cut), after_signal(2, signal.SIGUSR1, 2, cut)
    assert [(training.epoch, training.step) for training in (first, second)] == [(1, 3), (1, 5)]
    assert bits(first) != whole
    assert bits(train_ddp.run(cut, CPU)) == whole


@scenario
def a_run_does_not_go_on_as_another(rank, world, folder):
    """With another batch its place in the epoch would be other examples; nobody would see it."""
    for changes, settings in (
        (["--batch", "2"], "batch 4, not 2"),
        (["--lr", "0.5", "--seed", "1"], "lr 0.01, not 0.5; seed 0, not 1"),
    ):
        with pytest.raises(SystemExit, match=rf"was saved with {settings}\. Use the same settings, or another --out\."):
            train_ddp.run(options(f"{folder}/cut", *changes), CPU)
    training = train_ddp.build(options(folder), CPU)
    training.settings["ranks"] = 4
    with pytest.raises(SystemExit, match="was saved with ranks 3, not 4"):
        training.load(Path(folder, "cut/checkpoint.pt"))


@scenario
def ranks_that_do_not_all_see_the_checkpoint_do_not_train(rank, world, folder):
    """On nodes that share no disk each would decide alone, and gradients of different weights would be averaged."""
    place = f"{folder}/cut" if rank == 0 else f"{folder}/elsewhere"
    with pytest.raises(SystemExit, match=r"exists, but ranks \[1, 2\] do not see it\. Let --out be a folder that all"):
        train_ddp.run(options(place), CPU)


@scenario
def every_token_of_a_step_weighs_the_same(rank, world, folder):
    """Means of micro-batches or of ranks would weigh the tokens of short sequences more."""
    training = train_ddp.build(options(folder), CPU)
    training.ddp.eval()  # without dropout
    data = train_ddp.Sequences(18, seed=5)  # three ranks, two micro-batches, three examples; of many lengths
    rows = [[train_ddp.collate([data[6 * r + 3 * m + k] for k in range(3)]) for m in range(2)] for r in range(3)]
    model = training.ddp.module
    parts = [(model(x)[y >= 0], y[y >= 0]) for micros in rows for x, y in micros]
    whole = cross_entropy(torch.cat([scores for scores, _ in parts]), torch.cat([y for _, y in parts]))
    expected, gradients = torch.autograd.grad(whole, list(model.parameters())), []
    with (
        patch.object(train_ddp.nn.utils, "clip_grad_norm_"),
        patch.object(training.scaler, "step", lambda _: gradients.extend(p.grad.clone() for p in model.parameters())),
    ):
        loss = train_ddp.train_step(training, rows[rank], options(folder))
    assert float(loss) == pytest.approx(float(whole), rel=1e-6)
    assert max(float((g - e).abs().max()) for g, e in zip(gradients, expected, strict=True)) < 1e-7


@scenario
def evaluation_divides_sums_once(rank, world, folder):
    """17 examples on three ranks, and all at once."""
    training, data = train_ddp.build(options(folder), CPU), train_ddp.Sequences(17, seed=9)
    measured = train_ddp.evaluate(training, data, options(folder))
    inputs, targets = train_ddp.collate([data[k] for k in range(17)])
    with torch.no_grad():
        scores, real = training.ddp.module.eval()(inputs), targets >= 0
    right = (scores[real].argmax(-1) == targets[real]).float().mean()
    assert measured == pytest.approx((float(cross_entropy(scores[real], targets[real])), float(right)), rel=1e-6)


@scenario
def a_compiled_run_trains_as_one_that_is_not_and_either_resumes_the_other(rank, world, folder):
    """Compiled without a C++ compiler, which a machine may lack: the default, inductor, needs one on a CPU."""
    with patch.object(nn.Dropout, "forward", lambda module, x: x):
        plain = train_ddp.run(options(f"{folder}/compiled", "--epochs", "1"), CPU)
        compiled = train_ddp.run(options(f"{folder}/compiled", "--compile", "aot_eager"), CPU)
        whole = train_ddp.run(options(f"{folder}/plain"), CPU)
    assert (plain.epoch, compiled.epoch) == (1, 2)
    assert compiled.ddp.module._compiled_call_impl is not None
    for found, expected in zip(compiled.ddp.parameters(), whole.ddp.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@scenario
def tf32_is_asked_for_by_name(rank, world, folder):
    """It is a switch of the process, which on a CPU changes no digit that a run prints."""
    before = torch.get_float32_matmul_precision()
    assert before == "highest"
    try:
        training = train_ddp.run(options(f"{folder}/tf32", "--tf32", "--epochs", "1"), CPU)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)
    assert len({*gathered(bits(training)[0])}) == 1


@scenario
def replicas_stay_equal_in_fp16(rank, world, folder):
    training = train_ddp.run(options(f"{folder}/fp16", "--precision", "fp16"), CPU)
    weights, *others = gathered((bits(training), training.scaler.get_scale()))
    assert others == [weights] * 2
    assert all(bool(p.isfinite().all()) for p in training.ddp.parameters())


@scenario
def a_step_that_the_scaler_skips_does_not_move_the_learning_rate(rank, world, folder):
    """A first scale of 2 ** 127 overflows, so the scaler skips the first step and halves the scale."""
    training = train_ddp.build(options(folder, "--precision", "fp16"), CPU)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    batches, before = [train_ddp.collate([train_ddp.Sequences(9, seed=5)[rank]])], bits(training)
    train_ddp.train_step(training, batches, options(folder, "--precision", "fp16"))
    assert training.scaler.get_scale() == 2.0**126
    assert bits(training) == before
    assert training.schedule.last_epoch == 0
    training.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    train_ddp.train_step(training, batches, options(folder, "--precision", "fp16"))
    assert bits(training) != before
    assert training.schedule.last_epoch == 1


@scenario
def gradients_are_kept_once_and_the_optimizer_is_one_kernel(rank, world, folder):
    training = train_ddp.build(options(folder), CPU)
    train_ddp.rehearse(training.ddp, CPU)  # after which DDP has its buckets
    training.ddp(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    assert len({p.grad.untyped_storage().data_ptr() for p in training.ddp.parameters()}) == 1
    assert training.optimizer.defaults["fused"]


class Noise(train_ddp.Sequences):
    """Numbers that torch's generator draws in the loading process, as augmentation does."""

    def __getitem__(self, index):
        return torch.randint(train_ddp.TOKENS, (9,))


@scenario
def no_two_ranks_augment_alike(rank, world, folder):
    parsed = options(folder, "--workers", "1")
    first = next(train_ddp.read(Noise(100, seed=0), train_ddp.build(parsed, CPU), parsed))
    assert len({str(drawn) for drawn in gathered(first[0][0].tolist())}) == world


@scenario
def data_that_fill_no_step_are_refused(rank, world, folder):
    with pytest.raises(SystemExit, match=r"^23 examples do not fill one global batch of 24"):
        train_ddp.run(options(f"{folder}/few", "--examples", "23"), CPU)


failures, test_scenario = scenario.tests(3, folder=True)
