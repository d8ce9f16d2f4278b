"""Are the divisors that are read from autograd's graph those of each loss's definition?"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from dpbook.runs.watching.loss_graph import reductions
from tests.cases import each

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
Y = torch.tensor([1, 2, -100, 0, -100, 4])
COUNTED = Y != -100
MASK = COUNTED.float()
LOSS_PER_ROW = F.cross_entropy(X, Y, reduction="none")

LOSSES = {
    "cross entropy": (lambda: F.cross_entropy(X, Y), [(4, 4)]),
    "of a sum": (lambda: F.cross_entropy(X, Y, reduction="sum"), [(4, 1)]),
    "over two micro-batches": (lambda: F.cross_entropy(X, Y) / 2, [(4, 8)]),
    "scaled up": (lambda: 1024.0 * F.cross_entropy(X, Y), [(4, 4 / 1024)]),
    "scaled by a tensor": (lambda: F.cross_entropy(X, Y) * torch.tensor(1024.0), [(4, 4 / 1024)]),
    "masked": (lambda: (LOSS_PER_ROW * MASK).sum() / MASK.sum(), [(4, 4)]),
    "masked by indexing": (lambda: LOSS_PER_ROW[COUNTED].mean(), [(4, 4)]),
    "divided by a number of its own": (lambda: 3 * F.cross_entropy(X, Y, reduction="sum") / 12, [(4, 4)]),
    "squares": (lambda: F.mse_loss(X, X.detach() + 1), [(30, 30)]),
    "absolute": (lambda: F.l1_loss(X, X.detach() + 1), [(30, 30)]),
    "binary": (lambda: F.binary_cross_entropy_with_logits(X, torch.ones_like(X), reduction="sum"), [(30, 1)]),
    "negative log likelihood by hand": (lambda: -X.log_softmax(1)[:, 0].mean(), [(6, 6)]),
    "another precision": (lambda: F.cross_entropy(X.bfloat16(), Y).float().mean(), [(4, 4)]),
    "two parts": (lambda: F.cross_entropy(X, Y) + 0.1 * X.pow(2).mean(), [(4, 4), (30, 300)]),
    "a mean of two losses": (
        lambda: torch.stack([F.cross_entropy(X, Y), LOSS_PER_ROW.mean()]).mean(), [(4, 8), (6, 12)]
    ),
    "weighted classes": (lambda: F.cross_entropy(X, Y, torch.tensor([1.0, 2, 1, 1, 3])), [(7, 7)]),
}  # fmt: skip


@each(("name", "expected"), [(name, expected) for name, (_, expected) in LOSSES.items()])
def test_terms_and_divisor(name, expected):
    parts = reductions(LOSSES[name][0]())
    assert [(part.terms, part.divisor) for part in parts] == [pytest.approx(pair) for pair in expected]


class CustomSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(6, 5)


@each("loss", [lambda: CustomSum.apply(X), lambda: F.cross_entropy(X, Y) * X.sum(), lambda: X.detach().sum()])
def test_what_cannot_be_read_is_not_guessed(loss):
    assert reductions(loss()) is None


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class PassedOn(torch.nn.Module):
    """A module that returns a loss among other things, as Hugging Face's models do."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(5))

    def forward(self, x):
        logits = x * self.weight
        return {"aux": None, "labels": Y, "logits": logits, "loss": F.cross_entropy(logits, Y)}


def test_a_loss_that_is_computed_inside_a_wrapper_that_looks_for_unused_parameters(alone):
    model = torch.nn.parallel.DistributedDataParallel(PassedOn(), find_unused_parameters=True)
    parts = reductions(model(X.detach())["loss"] * 3 / 2)
    assert [(part.terms, part.divisor) for part in parts] == [(4, pytest.approx(8 / 3))]
