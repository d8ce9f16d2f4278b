"""Do the optimizers follow torch's?"""

import numpy as np
import pytest
import torch

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import SGD, Adam, Momentum
from tests.cases import each

STEPS = 50
PAIRS = {
    "SGD": (lambda: SGD(0.03), lambda p: torch.optim.SGD(p, lr=0.03)),
    "Momentum": (lambda: Momentum(0.03, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8)),
    "Adam": (lambda: Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "Adam with other constants": (
        lambda: Adam(0.01, beta1=0.7, beta2=0.95, epsilon=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.7, 0.95), eps=1e-3),
    ),
    "AdamW": (lambda: Adam(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_follows_torch(name):
    ours, theirs = PAIRS[name]
    rng = np.random.default_rng(3)
    params = rng.standard_normal(20)
    leaf = torch.tensor(params.copy(), requires_grad=True)
    optimizer, oracle = ours(), theirs([leaf])
    for _ in range(STEPS):
        gradient = rng.standard_normal(20)
        params = optimizer.step(params, gradient)
        leaf.grad = torch.tensor(gradient)
        oracle.step()
        # The formulas are the same, the order of operations is not: a few roundings per step.
        np.testing.assert_allclose(params, leaf.detach().numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("make", [SGD, Momentum])
def test_weight_decay_without_gradient_shrinks_by_its_factor(make):
    params = np.array([1.0, -2.0])
    optimizer = make(0.5, weight_decay=0.25)
    for _ in range(3):
        params = optimizer.step(params, np.zeros(2))
    assert params.tolist() == [0.875**3, -2 * 0.875**3]


@pytest.mark.parametrize("make", [SGD, Momentum, Adam])
def test_step_changes_neither_argument_and_keeps_float32(make):
    params, gradient = np.ones(3, np.float32), np.full(3, 2, np.float32)
    optimizer = make(np.float64(0.1))  # a NumPy scalar, which would otherwise widen the parameters
    for _ in range(3):
        assert optimizer.step(params, gradient).dtype == np.float32
    assert params.tolist() == [1, 1, 1]
    assert gradient.tolist() == [2, 2, 2]


@pytest.mark.parametrize("make", [Momentum, Adam])
def test_history_belongs_to_one_optimizer(make):
    first, second = make(0.1), make(0.1)
    params = np.zeros(2)
    for _ in range(3):
        first.step(params, np.array([1.0, -3.0]))
    assert first.step(params, np.ones(2)).tolist() != second.step(params, np.ones(2)).tolist()


def test_repr_shows_the_settings_alone():
    optimizer = Momentum(0.1)
    optimizer.step(np.zeros(2), np.ones(2))
    assert repr(optimizer) == "Momentum(lr=0.1, weight_decay=0.0, momentum=0.9)"


@each(
    ("name", "call"),
    [
        ("lr", lambda: SGD(0)),
        ("lr", lambda: SGD(float("nan"))),
        ("lr", lambda: Adam(float("inf"))),
        ("lr", lambda: SGD("fast")),
        ("weight_decay", lambda: SGD(0.1, weight_decay=-1)),
        ("momentum", lambda: Momentum(0.1, momentum=1)),
        ("beta1", lambda: Adam(0.1, beta1=-0.1)),
        ("beta2", lambda: Adam(0.1, beta2=1.0)),
        ("epsilon", lambda: Adam(0.1, epsilon=0)),
        ("gradient", lambda: SGD(0.1).step(np.zeros(2), np.zeros(1))),
        ("gradient", lambda: SGD(0.1).step(np.zeros(2, np.float32), np.zeros(2))),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
