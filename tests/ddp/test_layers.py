"""Do measured layers stand for the model they were measured on? No process group is needed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.ddp import measurements
from dpbook.ddp.measurements import measure_layers
from dpbook.overlap import plan, simulate_step, single, tensors_of

PRICE = AlphaBeta(0, 0)


@pytest.fixture
def model():
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 2))
    module[2].bias.requires_grad_(False)
    return module


def loss_of(module):
    return lambda: module(torch.ones(4, 5)).square().mean()


def test_there_is_a_layer_for_every_trained_tensor_in_the_reverse_of_the_ready_order(model):
    layers = measure_layers(model, loss_of(model), repeats=2)
    assert {layer.name for layer in layers} == {n for n, p in model.named_parameters() if p.requires_grad}
    assert [t.shape for t in tensors_of(layers)] == [tuple(model.get_parameter(x.name).shape) for x in layers]
    assert layers[0].name.startswith("0.")
    assert layers[-1].name.startswith("3.")
    assert plan(tensors_of(layers), 0, None).groups[0] == (len(layers) - 1,)


def test_times_add_up_to_the_simulated_step(model):
    layers = measure_layers(model, loss_of(model), repeats=2)
    assert all(layer.forward > 0 and layer.backward >= 0 for layer in layers)
    total = sum(layer.forward + layer.backward for layer in layers)
    assert simulate_step(layers, single(), PRICE).duration == pytest.approx(total)


class Clock:
    """Stands still but where a `Work` lets so many seconds pass."""

    def __init__(self):
        self.seconds = 0.0

    def moment(self, device):
        begun = self.seconds
        return SimpleNamespace(seconds=begun, until=lambda later: later.seconds - begun)


class Work(torch.autograd.Function):
    """Takes ``seconds`` in forward and twice as long in backward."""

    @staticmethod
    def forward(ctx, x, clock, seconds):
        ctx.clock, ctx.seconds = clock, seconds
        clock.seconds += seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.seconds += 2 * ctx.seconds
        return gradient, None, None


def test_a_layer_that_takes_longer_has_as_much_more_of_forward(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measurements, "moment", clock.moment)
    chain = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(3)])

    def loss():
        x = torch.ones(1, 1)
        for layer, seconds in zip(chain, (1, 7, 4), strict=True):
            x = Work.apply(layer(x), clock, seconds)  # its backward is over before that of the layer
        return x.sum()

    found = [(layer.name, layer.forward, layer.backward) for layer in measure_layers(chain, loss, repeats=1)]
    assert found == [("0.weight", 1, 2), ("1.weight", 7, 14), ("2.weight", 4, 8)]


def test_gradients_and_hooks_are_left_as_they_were(model):
    kept = torch.full_like(model[0].weight, 3.0)
    model[0].weight.grad = kept
    measure_layers(model, loss_of(model), repeats=1)
    assert model[0].weight.grad is kept
    assert model[3].weight.grad is None
    loss_of(model)().backward()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_parameter_without_a_gradient_is_named(model):
    with pytest.raises(InvalidArgument, match=r"every trained parameter, got '3\.weight'"):
        measure_layers(model, lambda: model[:3](torch.ones(4, 5)).sum())
    assert model[0].weight.grad is None


@pytest.mark.parametrize("repeats", [0, 1.5])
def test_bad_repeats_are_named(model, repeats):
    with pytest.raises(InvalidArgument, match="repeats must be"):
        measure_layers(model, loss_of(model), repeats)
