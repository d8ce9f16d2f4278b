"""Where examples see each other: is the average wrong as it should be, and does the repair make it right?"""

import numpy as np
import pytest
import torch

from dpbook import collectives
from dpbook.book.ch02 import BatchNorm, Contrastive, plain_gather_gradients, synchronised_gradients
from dpbook.replicas import (
    average,
    compare,
    cross_entropy,
    gradient_bound,
    local_gradients,
    shard,
    synthetic_task,
    train,
)
from tests.cases import each, refuses

WORLDS = [*range(1, 10), 16]
MODELS = [BatchNorm(3, 4), BatchNorm(3, 4, 5, cross_entropy), Contrastive(4, 3)]


def problem(model, n, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, model.inputs)).astype(dtype)
    if isinstance(model, Contrastive):
        y = (x + 0.3 * rng.standard_normal(x.shape)).astype(dtype)
    elif model.outputs == 1:
        y = rng.standard_normal((n, 1)).astype(dtype)
    else:
        y = rng.integers(model.outputs, size=n)
    return x, y, rng.standard_normal(model.size).astype(dtype)


@each("n", [1, 2, 9])
@each("model", MODELS)
def test_gradient_is_the_central_difference_of_the_loss(model, n):
    x, y, params = problem(model, n, 1)
    step = np.cbrt(np.finfo(float).eps)
    numeric = [
        (model.loss(params + step * one, x, y) - model.loss(params - step * one, x, y)) / (2 * step)
        for one in np.eye(model.size)
    ]
    np.testing.assert_allclose(model.gradient(params, x, y), numeric, rtol=0, atol=1e-7)


@pytest.mark.parametrize("outputs", [1, 5])
def test_batch_norm_is_torchs(outputs):
    model = BatchNorm(3, 4, outputs, cross_entropy if outputs > 1 else MODELS[0]._loss)
    x, y, params = problem(model, 17, 2)
    p = {name: torch.tensor(value, requires_grad=True) for name, value in model.views(params).items()}
    normal = torch.nn.functional.batch_norm(
        torch.tensor(x) @ p["W1"], None, None, p["scale"], p["shift"], training=True, eps=1e-5
    )
    output = torch.tanh(normal) @ p["W2"] + p["b2"]
    target = torch.tensor(y)
    loss = torch.nn.functional.cross_entropy(output, target) if outputs > 1 else ((output - target) ** 2).mean()
    loss.backward()
    assert model.loss(params, x, y) == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(
        model.gradient(params, x, y), np.concatenate([t.grad.numpy().ravel() for t in p.values()]), rtol=0, atol=1e-12
    )


def test_contrastive_is_torchs():
    model = MODELS[2]
    x, y, params = problem(model, 11, 3)
    w = torch.tensor(params.reshape(4, 3), requires_grad=True)
    loss = torch.nn.functional.cross_entropy((torch.tensor(x) @ w) @ (torch.tensor(y) @ w).T, torch.arange(11))
    loss.backward()
    assert model.loss(params, x, y) == pytest.approx(loss.item(), rel=1e-12)
    np.testing.assert_allclose(model.gradient(params, x, y), w.grad.numpy().ravel(), rtol=0, atol=1e-11)


@each("dtype", [np.float32, np.float64])
@each("model", MODELS)
@each("world", WORLDS)
def test_local_gradients_average_to_another_gradient_and_synchronised_ones_to_the_batchs(world, model, dtype):
    for sizes in ([4] * world, [2 + rank for rank in range(world)]):
        x, y, params = problem(model, sum(sizes), world, dtype)
        big, bound = model.gradient(params, x, y), gradient_bound(model, params, x, y)
        replicas, shards, ring = np.tile(params, (world, 1)), shard(x, y, world, sizes), collectives.ring(world)
        local = compare(average(local_gradients(model, replicas, shards), ring, sizes), big, bound)
        repaired = average(synchronised_gradients(model, replicas, shards), ring, sizes)
        assert repaired.dtype == dtype
        assert compare(repaired, big, bound).verdict in ("rounding", "bit-identical")
        if world == 1:
            assert local.verdict == "bit-identical"
        else:
            assert local.verdict == "different"
            assert local.max_error > 1e-2 * np.abs(big).max()


def test_shards_of_one_example_have_no_variance_and_no_negatives():
    """The extreme of a small local batch: batch normalisation outputs its shift, and the contrastive loss is 0."""
    for model in MODELS[0], MODELS[2]:
        x, y, params = problem(model, 8, 4)
        local = local_gradients(model, np.tile(params, (8, 1)), shard(x, y, 8))
        views = [model.views(own) for own in local]
        blind = ["W1", "scale"] if isinstance(model, BatchNorm) else ["W"]
        assert not any(view[name].any() for view in views for name in blind)


def test_dividing_by_the_global_batch_is_world_times_too_small():
    """The usual slip after gathering: each rank divides by all examples, and the average over ranks divides again."""
    model = MODELS[2]
    x, y, params = problem(model, 12, 5)
    right = synchronised_gradients(model, np.tile(params, (4, 1)), shard(x, y, 4))
    big, bound = model.gradient(params, x, y), gradient_bound(model, params, x, y)
    wrong = average(right * 3 / 12, collectives.ring(4))
    assert compare(wrong, big, bound).verdict == "different"
    assert compare(4 * wrong, big, bound).verdict == "rounding"


def test_gathered_negatives_need_their_gradients():
    """Gathering without a way back for gradients leaves out how the second views served as other ranks' negatives."""
    model = MODELS[2]
    x, y, params = problem(model, 12, 6)
    w = torch.tensor(params.reshape(4, 3), requires_grad=True)
    gradients = []
    for rank in range(3):
        own = slice(4 * rank, 4 * rank + 4)
        second = torch.tensor(y) @ w.detach()
        second[own] = torch.tensor(y[own]) @ w
        scores = (torch.tensor(x[own]) @ w) @ second.T
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(12)[own])
        gradients.append(torch.autograd.grad(loss, w)[0].numpy().ravel())
    averaged = average(np.stack(gradients), collectives.ring(3))
    assert compare(averaged, model.gradient(params, x, y), gradient_bound(model, params, x, y)).verdict == "different"


def test_batch_norm_trains_to_another_place_on_several_ranks():
    data = synthetic_task(48, 3)
    run = train(BatchNorm(3, 4), data, 4, steps=10, lr=0.1)
    assert run.drift == 0  # all replicas agree on the wrong gradient
    assert run.gap > 1e-2


def test_bits_of_a_rows_cross_entropy_do_not_depend_on_its_neighbours():
    rng = np.random.default_rng(7)
    output, labels = 5 * rng.standard_normal((16, 4)), rng.integers(4, size=16)
    whole, part = (cross_entropy(output[:n], labels[:n])[0][:4] for n in (16, 4))
    assert compare(part, whole).verdict == "bit-identical"


X, Y = np.zeros((4, 4)), np.zeros((4, 4))


test_bad_input_is_named = refuses(
    (lambda: synchronised_gradients(MODELS[2], np.zeros((2, 12)), shard(X, Y, 4)), "shards"),
    (lambda: synchronised_gradients(MODELS[2], np.zeros((0, 12)), []), "shards"),
    (lambda: synchronised_gradients(MODELS[2], np.zeros((2, 12)), shard(X, Y, 2, [4, 0])), "x"),
    (lambda: MODELS[2].gradient(np.zeros(12), X, Y[:3]), "y"),
    (lambda: MODELS[0].gradient(np.zeros(25), X[:, :3], Y), "y"),
    (lambda: Contrastive(3, 0), "features"),
    (lambda: BatchNorm(3, 0), "hidden"),
    (lambda: plain_gather_gradients(MODELS[2], np.zeros((1, 12)), [(X, Y)], "none"), "loss_of"),
)


@each("loss_of", ["own", "all"])
@each("world", [1, 3, 4])
def test_a_plain_gather_is_torchs_detached_outputs(world, loss_of):
    model, n = MODELS[2], 2
    x, y, params = problem(model, n * world, 5)
    shards, replicas = shard(x, y, world), np.tile(params, (world, 1))
    for rank, got in enumerate(plain_gather_gradients(model, replicas, shards, loss_of)):
        w = torch.tensor(params.reshape(4, 3), requires_grad=True)
        own = slice(rank * n, rank * n + n)
        first, second = ((torch.tensor(views) @ w).detach().clone() for views in (x, y))
        first[own], second[own] = torch.tensor(x[own]) @ w, torch.tensor(y[own]) @ w
        rows = own if loss_of == "own" else slice(None)
        torch.nn.functional.cross_entropy((first @ second.T)[rows], torch.arange(n * world)[rows]).backward()
        np.testing.assert_allclose(got, w.grad.numpy().ravel(), rtol=0, atol=1e-12)
