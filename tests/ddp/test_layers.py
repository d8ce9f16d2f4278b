"""Do measured layers stand for the model they were measured on? No process group is needed."""

import pytest
import torch
from torch import nn

from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.ddp.layers import measure_layers
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
