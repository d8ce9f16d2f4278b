"""Are the gradients written by hand the derivatives of the losses?"""

import numpy as np
import pytest
import torch

from dpbook.core.errors import InvalidArgument
from dpbook.replicas import MLP, Linear, accuracy, cross_entropy, squared_error
from tests.cases import each

MODELS = [
    Linear(1),
    Linear(5, 3),
    Linear(4, 3, cross_entropy),
    MLP(1, 1),
    MLP(3, 7),
    MLP(5, 4, 2),
    MLP(6, 5, 4, cross_entropy),
    MLP(2, 3, 2, cross_entropy),
]


def batch(model, loss_name, n=6, seed=1, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, model.inputs)).astype(dtype)
    if loss_name == "cross_entropy":
        return x, rng.integers(model.outputs, size=n)
    return x, rng.standard_normal((n, model.outputs)).astype(dtype)


def loss_name(model):
    return model._loss.__name__


def randomized(model, seed=2, dtype=np.float64):
    """Parameters with non-zero biases too: a bias of 0 would hide a missing one."""
    return np.random.default_rng(seed).standard_normal(model.size).astype(dtype)


@each("n", [1, 2, 9])
@each("model", MODELS)
def test_gradient_is_the_central_difference_of_the_loss(model, n):
    x, y = batch(model, loss_name(model), n)
    params = randomized(model)
    step = np.cbrt(np.finfo(float).eps)  # balances truncation, step², against rounding, eps / step
    numeric = np.empty(model.size)
    for i in range(model.size):
        up, down = params.copy(), params.copy()
        up[i] += step
        down[i] -= step
        numeric[i] = (model.loss(up, x, y) - model.loss(down, x, y)) / (up[i] - down[i])
    scale = 1 + np.abs(params).max() + model.loss(params, x, y)
    np.testing.assert_allclose(model.gradient(params, x, y), numeric, rtol=0, atol=100 * step**2 * scale)


@each("model", MODELS)
def test_loss_and_gradient_agree_with_autograd(model):
    x, y = batch(model, loss_name(model), 17)
    params = randomized(model)
    leaves = {name: torch.tensor(tensor, requires_grad=True) for name, tensor in model.views(params).items()}
    inputs = torch.tensor(x)
    if isinstance(model, MLP):
        output = torch.tanh(inputs @ leaves["W1"] + leaves["b1"]) @ leaves["W2"] + leaves["b2"]
    else:
        output = inputs @ leaves["W"] + leaves["b"]
    if loss_name(model) == "cross_entropy":
        loss = torch.nn.functional.cross_entropy(output, torch.tensor(y))
    else:
        loss = ((output - torch.tensor(y)) ** 2).sum(dim=1).mean()
    loss.backward()
    flat = np.concatenate([leaf.grad.numpy().ravel() for leaf in leaves.values()])
    assert model.loss(params, x, y) == pytest.approx(loss.item(), rel=1e-13)
    np.testing.assert_allclose(model.gradient(params, x, y), flat, rtol=1e-12, atol=1e-13)


@each("model", MODELS)
def test_an_examples_loss_does_not_depend_on_its_neighbours(model):
    x, y = batch(model, loss_name(model), 8)
    params = randomized(model)
    huge = x.copy()
    huge[1:] *= 1e3  # a softmax shifted by the batch's maximum would underflow in row 0
    output, shifted = model.predict(params, x), model.predict(params, huge)
    shifted[0] = output[0]
    np.testing.assert_array_equal(model._loss(output, y)[0][0], model._loss(shifted, y)[0][0])


def test_cross_entropy_survives_large_scores():
    losses, slopes = cross_entropy(np.array([[1e4, 0.0], [-1e4, 0.0]]), np.array([1, 1]))
    np.testing.assert_array_equal(losses, [1e4, 0.0])
    np.testing.assert_array_equal(slopes, [[1.0, -1.0], [0.0, 0.0]])


@each("dtype", [np.float32, np.float64])
@each("model", MODELS)
def test_dtype_is_kept(model, dtype):
    x, y = batch(model, loss_name(model), dtype=dtype)
    params = model.init(np.random.default_rng(0), dtype)
    assert params.dtype == model.gradient(params, x, y).dtype == model.predict(params, x).dtype == dtype


def test_float32_start_is_the_rounded_float64_start():
    model = MLP(3, 4)
    single, double = (model.init(np.random.default_rng(5), dtype) for dtype in (np.float32, np.float64))
    np.testing.assert_array_equal(single, double.astype(np.float32))


def test_views_are_the_flat_array():
    model = MLP(2, 3, 2)
    params = np.arange(model.size, dtype=float)
    views = model.views(params)
    assert {name: view.shape for name, view in views.items()} == model.shapes
    assert np.concatenate([view.ravel() for view in views.values()]).tolist() == params.tolist()
    views["b2"][1] = -1
    assert params[-1] == -1


def test_weights_are_drawn_in_their_order_and_biases_are_zero():
    model = MLP(16, 32)
    views = model.views(model.init(np.random.default_rng(0)))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(views["W1"], 0.1 * rng.standard_normal((16, 32)))
    np.testing.assert_array_equal(views["W2"], 0.1 * rng.standard_normal((32, 1)))
    assert not views["b1"].any()
    assert not views["b2"].any()


def test_accuracy_counts_the_largest_output():
    model = Linear(2, 2, cross_entropy)
    params = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])  # the outputs are the inputs
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, 1.0]])
    assert accuracy(model, params, x, np.array([0, 1, 0, 0])) == 0.75


PARAMS, X, Y = np.zeros(3), np.zeros((4, 2)), np.zeros((4, 1))


@each(
    ("name", "call"),
    [
        ("inputs", lambda: Linear(0)),
        ("hidden", lambda: MLP(1, 2.5)),
        ("outputs", lambda: MLP(1, 2, 0)),
        ("rng", lambda: Linear(2).init(0)),
        ("dtype", lambda: Linear(2).init(np.random.default_rng(0), np.float16)),
        ("params", lambda: Linear(2).views(np.zeros(4))),
        ("params", lambda: Linear(2).views([0.0, 0.0, 0.0])),
        ("params", lambda: Linear(2).loss(PARAMS.astype(int), X, Y)),
        ("x", lambda: Linear(2).gradient(PARAMS, np.zeros((4, 3)), Y)),
        ("x", lambda: Linear(2).gradient(PARAMS, np.zeros((0, 2)), np.zeros((0, 1)))),
        ("x", lambda: Linear(2).predict(PARAMS, X.astype(np.float32))),
        ("y", lambda: Linear(2).loss(PARAMS, X, Y[:, 0])),  # would broadcast to a matrix
        ("y", lambda: squared_error(Y, Y.astype(np.float32))),
        ("y", lambda: cross_entropy(X, np.zeros(3, dtype=int))),
        ("y", lambda: cross_entropy(X, np.zeros(4))),
        ("y", lambda: cross_entropy(X, np.array([0, 1, 2, 0]))),
        ("y", lambda: cross_entropy(X, np.array([0, 1, -1, 0]))),
        ("labels", lambda: accuracy(Linear(2), PARAMS, X, np.zeros(3))),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()


@each("make", [Linear, lambda *shape: MLP(shape[0], 5, *shape[1:])])
def test_a_stack_of_networks_has_the_sums_of_each(make):
    def errors_of(output, y):  # of any number of axes
        return ((output - y) ** 2).sum(axis=-1), 2 * (output - y)

    rng, model = np.random.default_rng(3), make(4, 2, errors_of)
    params, x, y = rng.standard_normal((3, model.size)), rng.standard_normal((3, 6, 4)), rng.standard_normal((3, 6, 2))
    each_p = [model.views(own) for own in params]
    stack = {name: np.stack([np.atleast_2d(p[name]) for p in each_p]) for name in model.shapes}
    for name, sums in model.sum_gradients(stack, x, y).items():
        alone = [model.sum_gradients(*own)[name] for own in zip(each_p, x, y, strict=True)]
        np.testing.assert_allclose(sums, alone, rtol=0, atol=1e-12)
