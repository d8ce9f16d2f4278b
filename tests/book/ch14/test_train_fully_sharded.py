"""Does the script that a reader takes home train as one process would, and go on on other ranks than it ended on?

A start of three ranks, then one of two, which finds what the three have saved; a start of four is a proof.
"""

import os
import shutil
import signal
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from scripts import train_fully_sharded as script
from tests.book.scripts import CPU, run_with_signal
from tests.cases import each
from tests.scenarios import Scenarios

SMALL = ["--width", "20", "--depth", "1", "--examples", "30", "--batch", "12", "--micro", "2", "--steps", "5"]
NOISY = ["--dropout", "0.2", "--steps", "4"]
UNITS = 2
on_three, on_two, on_four = Scenarios(), Scenarios(), Scenarios()
after_signal = partial(run_with_signal, script, script.Training)


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


def check_gradient(folder, *form, micro_batches=2, bound=1e-6):
    """Check loss, gradient and norm of a step against those of one batch, and return the calls of its gradient."""
    settings = options(folder, *form)
    training = script.Training(settings, CPU)
    whole, parts = expected(training, settings)
    assert len(training.micro_batches()) == micro_batches
    with Calls() as calls:
        loss = training.gradient(training.micro_batches())
    assert float(loss) == pytest.approx(whole, rel=max(bound, 1e-6))
    gradients = [p.grad.full_tensor() for p in training.model.parameters()]
    far = max(float((g - e).abs().max()) for g, e in zip(gradients, parts, strict=True))
    assert far < bound
    training.optimizer.zero_grad()
    norm = float(torch.cat([e.flatten() for e in parts]).norm())
    assert float(training.train_step()[1]) == pytest.approx(norm, rel=max(bound, 1e-5))
    return calls.names, far


@on_three
def the_gradient_is_the_big_batchs_however_it_is_summed(rank, world, folder):
    """Every token weighs the same; the norm by which it is clipped is the whole gradient's; gathers are as asked."""
    twice, once = 2 * (2 * UNITS - 1), UNITS  # backward finds the root as forward left it
    for form, gathers, scatters in (
        ([], twice, once),
        (["--scatter-each"], twice, 2 * once),
        (["--keep-gathered"], 2 * UNITS, once),
        (["--checkpointing"], twice, once),  # recomputation is in the block's backward, which has gathered
    ):
        calls, _ = check_gradient(folder, *form)
        assert sum("allgather" in name for name in calls) == gathers, form
        assert sum("reduce_scatter" in name for name in calls) == scatters, form
    check_gradient(folder, "--shards", "1", "--scatter-each")
    _, far = check_gradient(folder, "--precision", "bf16", bound=0.02)
    assert far > 1e-6


@on_three
def evaluation_divides_sums_once(rank, world, folder):
    """Seven examples on three ranks: two that fill up count nothing."""
    training = script.Training(options(folder), CPU)
    model = script.Model(training.options).eval()
    model.load_state_dict({name: p.full_tensor() for name, p in training.model.named_parameters()})
    rows = [script.sequence(k, 10**6) for k in range(7)]
    with torch.no_grad():
        scores, targets = torch.cat([model(row[None, :-1]) for row in rows]), torch.cat([row[1:] for row in rows])
    right = float(cross_entropy(scores, targets)), float((scores.argmax(-1) == targets).float().mean())
    assert training.evaluate(7) == pytest.approx(right, rel=1e-5)


@on_three
def a_run_that_one_rank_is_told_to_end_resumes_to_the_bits_of_an_uninterrupted_one(rank, world, folder):
    """With dropout."""
    whole = bits(script.run(options(f"{folder}/noisy", *NOISY), CPU))
    cut = options(f"{folder}/noisy-cut", *NOISY)
    first = after_signal(1, signal.SIGUSR1, 2, cut)
    assert first.step == 2
    assert bits(first) != whole
    assert bits(script.run(cut, CPU)) == whole


@on_three
def runs_that_cannot_resume_or_fill_a_step_are_refused(rank, world, folder):
    torch.save(weights(script.run(options(f"{folder}/whole"), CPU)), f"{folder}/whole-{rank}.pt")
    assert after_signal(2, signal.SIGTERM, 3, options(f"{folder}/cut")).step == 3
    same = r"step-00000003 was saved with batch 12, not 6; seed 0, not 1\. Use the same settings, or another --out\."
    with pytest.raises(SystemExit, match=same):
        script.run(options(f"{folder}/cut", "--batch", "6", "--seed", "1"), CPU)
    with pytest.raises(SystemExit, match="30 examples, batches of 10 and 3 ranks"):
        script.run(options(folder, "--batch", "10"), CPU)
    with pytest.raises(SystemExit, match=r"^--shards 2 does not divide 3 ranks\."):
        script.run(options(folder, "--shards", "2"), CPU)


@on_three
def a_buffer_that_is_in_no_state_is_refused(rank, world, folder):
    make = script.Model.__init__

    def more(model, settings):
        make(model, settings)
        model.register_buffer("angles", torch.ones(2), persistent=False)

    message = r"^The state dict has no values for the buffers \['angles'\]\. Make them persistent\."
    with patch.object(script.Model, "__init__", more), pytest.raises(SystemExit, match=message):
        script.run(options(folder), CPU)


@on_two
def two_ranks_go_on_where_three_were_ended(rank, world, folder):
    """Sums are of other parts, so not to the bit: without its moments AdamW would end 2e-3 away."""
    training = script.run(options(f"{folder}/cut"), CPU)
    assert training.step == 5
    for whole, resumed in zip(torch.load(f"{folder}/whole-0.pt", weights_only=False), weights(training), strict=True):
        assert abs(whole - resumed).max() < 5e-5
    # the rest of a save that was killed is gone, and somebody's notes are not
    assert sorted(os.listdir(f"{folder}/cut")) == ["step-00000005", "step-by-step"]


@on_four
def copies_in_shards_train_as_one_process_and_resume_as_one_copy(rank, world, folder):
    """Two copies in two shards each; a run that is resumed in four shards ends alike, but for rounding."""
    hybrid = ["--shards", "2", "--micro", "1"]
    for form in ([], ["--scatter-each"], ["--checkpointing"]):
        check_gradient(folder, *hybrid, *form, micro_batches=3)
    whole = weights(script.run(options(f"{folder}/hybrid", *hybrid), CPU))
    after_signal(3, signal.SIGTERM, 2, options(f"{folder}/hybrid-cut", *hybrid))
    again = weights(script.run(options(f"{folder}/hybrid-cut"), CPU))
    assert max(float(abs(a - b).max()) for a, b in zip(whole, again, strict=True)) < 5e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def failures(folder):
    """Three ranks, then two, which find what the three have saved, and beside it the rest of a save that was killed."""
    of_three, unfinished = on_three.run(3, str(folder), timeout=240), folder / "cut" / "step-00000004"
    shutil.copytree(folder / "cut" / "step-00000003", unfinished)
    (unfinished / ".metadata").unlink()
    (folder / "cut" / "step-by-step").mkdir()  # somebody's notes
    return of_three | on_two.run(2, str(folder), timeout=240)


@pytest.mark.processes
@pytest.mark.parametrize("name", [*on_three.names, *on_two.names])
def test_scenario(failures, name):
    assert not failures[name], failures[name]


@pytest.mark.processes
@pytest.mark.proof
def test_four_ranks(folder):
    for failure in on_four.run(4, str(folder), timeout=240).values():
        assert not failure, failure


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
