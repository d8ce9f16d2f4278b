"""Are an update's moments those of the script, and is everything as before afterwards? No process group is needed."""

import contextlib
import time

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint

from dpbook.runs.forecast import NoForecast
from dpbook.runs.forecast.measured_step import WARMUP_UPDATES, read_step
from dpbook.runs.watching import read_journal
from dpbook.runs.watching.installation import record_moments
from dpbook.runs.watching.update_marks import units

SLEEP = 0.01


class Slow(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP)
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.frozen(x)
        for block in self.blocks:
            x = Slow.apply(block(x))
        return self.head(x)


@contextlib.contextmanager
def watched(folder, updates=100):
    recorder = record_moments(folder, 0, 1, {"updates": updates, "link": None, "check": False})
    try:
        yield
    except SystemExit:
        pass
    finally:
        recorder.close()


def train(model, updates, optimizer=None, micro_batches=1):
    optimizer = optimizer or SGD(model.parameters(), 0.1)
    for _ in range(updates):
        for _ in range(micro_batches):
            model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(torch.ones(3, 4))  # an evaluation


def read_recorded(folder):
    return read_step([read_journal(folder, 0)])


def test_layers_are_the_gradients_in_the_reverse_of_their_order_with_their_times(tmp_path):
    with watched(tmp_path):
        train(Net(), WARMUP_UPDATES + 2)
    step = read_recorded(tmp_path)
    assert [layer.name for layer in step.layers[:3]] == [f"blocks.{k}.weight" for k in range(3)]
    assert {layer.name for layer in step.layers[3:]} == {"head.weight", "head.bias"}
    assert min(layer.backward for layer in step.layers[:3]) > 0.5 * SLEEP
    assert step.backward >= 3 * SLEEP
    assert (step.updates, step.accumulation, step.world) == (2, 1, 1)
    assert step.units == ("blocks.0", "blocks.1", "blocks.2")
    assert step.frozen == {"frozen.weight": 16, "frozen.bias": 4}


def test_micro_batches_are_counted(tmp_path):
    with watched(tmp_path):
        train(Net(), WARMUP_UPDATES + 1, micro_batches=3)
    step = read_recorded(tmp_path)
    assert (step.accumulation, step.no_sync) == (3, True)
    assert step.backward >= 9 * SLEEP


def test_enough_ends_the_script(tmp_path):
    with watched(tmp_path, updates=WARMUP_UPDATES + 2):
        train(Net(), 1000)
        pytest.fail("it went on")
    assert read_recorded(tmp_path).updates == 2


def test_tied_weights_are_ready_once_and_checkpoints_are_inside_their_backward(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(checkpoint(self.one, x.requires_grad_(), use_reentrant=True))

    with watched(tmp_path):
        train(Tied(), WARMUP_UPDATES + 1)
    step = read_recorded(tmp_path)
    assert sorted(layer.name for layer in step.layers) == ["one.bias", "one.weight", "two.bias"]
    assert step.accumulation == 1


def test_optimizers_that_step_together_make_one_update(tmp_path):
    model = Net()
    with watched(tmp_path):
        both = SGD(model.blocks.parameters(), 0.1), SGD(model.head.parameters(), 0.1)

        class Both:
            def step(self):
                for optimizer in both:
                    optimizer.step()

            def zero_grad(self):
                model.zero_grad()

        train(model, WARMUP_UPDATES + 2, Both())
    step = read_recorded(tmp_path)
    assert (step.updates, len(step.layers)) == (2, 5)


def test_a_closure_is_inside_its_step(tmp_path):
    model = Net()

    def closure():
        model.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    with watched(tmp_path):
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(WARMUP_UPDATES + 2):
            optimizer.step(closure)
    step = read_recorded(tmp_path)
    assert (step.updates, step.accumulation, len(step.layers)) == (2, 1, 5)


def test_a_compiled_model_has_a_forward(tmp_path):
    class SlowForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            torch.compiler.disable(time.sleep)(SLEEP)
            return self.layer(x)

    with watched(tmp_path):
        train(torch.compile(SlowForward(), backend="eager"), WARMUP_UPDATES + 2)
    step = read_recorded(tmp_path)
    assert step.forward >= SLEEP
    assert {layer.name for layer in step.layers} == {"layer.weight", "layer.bias"}


def test_weights_that_are_trained_later_are_no_surprise(tmp_path):
    model = Net()
    with watched(tmp_path):
        train(model, WARMUP_UPDATES + 1)
        train(model.requires_grad_(), 1)
    with pytest.raises(NoForecast, match="differ in which gradients"):
        read_recorded(tmp_path)


def test_nothing_of_the_scripts_is_changed(tmp_path):
    def hooked():
        return Optimizer.__init__, DistributedDataParallel.__init__, torch.autograd.backward, nn.Module.__call__

    before = hooked()
    watched_model, plain = Net(), Net()
    plain.load_state_dict(watched_model.state_dict())
    with watched(tmp_path):
        train(watched_model, 3)
    train(plain, 3)
    assert hooked() == before
    assert not any(p._post_accumulate_grad_hooks for p in watched_model.parameters())
    assert all(map(torch.equal, watched_model.parameters(), plain.parameters()))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), ["0", "2"]),
        (nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2)), "b": nn.Linear(2, 2)}), ["a.0"]),
        (nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.ReLU()}), ["a"]),
    ],
)
def test_units_are_the_members_of_sequences(module, names):
    assert units(module) == names
