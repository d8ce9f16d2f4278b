"""Is it seen, from the graph of a loss alone, whether it couples the examples of a batch?"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpbook.runs.watching.coupling import HOOKS_ARE_SEEN, depends_on_other_examples, describe_coupling, mark_hooks

BATCHES = (2, 5, 8)


class Setting:
    """Data and networks for a batch of ``batch`` examples."""

    def __init__(self, batch):
        torch.manual_seed(0)
        self.batch = batch
        self.x, self.y, self.images = torch.randn(batch, 5), torch.randint(4, (batch,)), torch.randn(batch, 1, 8, 8)
        self.tokens = torch.randint(20, (batch, 7))
        self.net = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 4))
        self.losses = F.cross_entropy(self.net(self.x), self.y, reduction="none")


def convolutions(norm):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4))


def language_model(s):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    hidden = layer(nn.Embedding(20, 8)(s.tokens))
    return F.cross_entropy(nn.Linear(8, 20)(hidden).reshape(-1, 20), s.tokens.reshape(-1))


def square_layers(s):
    """Weights whose sides are as long as the batch."""
    net = nn.Sequential(nn.Linear(5, s.batch), nn.Tanh(), nn.Linear(s.batch, s.batch))
    return net(s.x).square().mean()


def barlow_twins(s):
    a, b = ((z - z.mean(0)) / z.std(0) for z in (s.net(s.x), s.net(s.x + 0.1)))
    return (a.T @ b / s.batch - torch.eye(4)).square().sum()


def contrastive(s):
    z = F.normalize(s.net(s.x))
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(s.batch))


APART = {
    "mean of squares": lambda s: F.mse_loss(s.net(s.x), torch.zeros(s.batch, 4)),
    "classes": lambda s: F.cross_entropy(s.net(s.x), s.y),
    "classes with weights": lambda s: F.cross_entropy(s.net(s.x), s.y, weight=torch.rand(4)),
    "a sum over the batch": lambda s: F.cross_entropy(s.net(s.x), s.y, reduction="sum") / s.batch,
    "dropout": lambda s: F.dropout(s.net(s.x), 0.5).square().mean(),
    "a language model": language_model,
    "images": lambda s: F.cross_entropy(convolutions(nn.Identity())(s.images), s.y),
    "group norm": lambda s: F.cross_entropy(convolutions(nn.GroupNorm(2, 4))(s.images), s.y),
    "weights as long as the batch": square_layers,
    "a recurrent net": lambda s: nn.LSTM(5, 8, batch_first=True)(torch.randn(s.batch, 3, 5))[0].square().mean(),
    "weight decay in the loss": lambda s: s.losses.mean() + sum(p.square().sum() for p in s.net.parameters()),
    "two losses": lambda s: s.losses.mean() + s.net(s.x).abs().mean(),
}
COUPLED = {
    "Barlow Twins": barlow_twins,
    "variance of the batch": lambda s: F.relu(1 - torch.sqrt(s.net(s.x).var(0) + 1e-4)).mean(),
    "contrastive": contrastive,
    "batch statistics in a function": lambda s: F.cross_entropy(
        F.batch_norm(s.net(s.x), None, None, training=True), s.y
    ),
    "losses over their deviation": lambda s: (s.losses / (1 + s.losses.std())).mean(),
    "the logarithm of summed exponentials": lambda s: torch.logsumexp(s.losses, 0),
    "pairs of ranks": lambda s: F.softplus(s.net(s.x)[:, 0][:, None] - s.net(s.x)[:, 0][None]).mean(),
    "distances": lambda s: torch.cdist(s.net(s.x), s.net(s.x)).mean(),
    "the hardest examples": lambda s: s.losses.topk(max(1, s.batch // 2)).values.mean(),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", APART)
def test_a_loss_of_each_example_alone_is_not_called_coupled(name, batch):
    assert describe_coupling(APART[name](Setting(batch)), batch) == ""


@pytest.mark.skipif(not HOOKS_ARE_SEEN, reason="this torch does not tell which saved tensors have hooks")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_couples_examples_is_seen(name, batch):
    assert "its rank's batch" in describe_coupling(COUPLED[name](Setting(batch)), batch)


def test_one_example_is_coupled_with_none():
    assert depends_on_other_examples(APART["classes"](Setting(1)), 1) is None


class Doubled(torch.autograd.Function):
    """A function with a backward of its own, which may do anything."""

    calls = 0

    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        Doubled.calls += 1
        return 2 * gradient


def test_what_may_have_effects_is_not_run_for_it():
    setting = Setting(4)
    assert depends_on_other_examples(Doubled.apply(setting.net(setting.x)).square().mean(), 4) is None
    assert Doubled.calls == 0
    hooked, calls = setting.net(setting.x), []
    mark_hooks(torch.Tensor.register_hook)(hooked, calls.append)
    assert depends_on_other_examples(hooked.square().mean(), 4) is None
    assert calls == []
    recomputed = checkpoint(setting.net, setting.x, use_reentrant=False)
    assert depends_on_other_examples(recomputed.square().mean(), 4) is None
    recomputed.square().mean().backward()


@pytest.mark.parametrize("name", ["classes", "contrastive"])
def test_the_scripts_own_backward_is_the_same_after_it(name):
    gradients = []
    for asked in (False, True):
        setting = Setting(5)
        loss = {**APART, **COUPLED}[name](setting)
        if asked:
            describe_coupling(loss, 5)
            assert all(p.grad is None for p in setting.net.parameters())
        loss.backward()
        gradients.append([p.grad for p in setting.net.parameters()])
    assert all(map(torch.equal, *gradients))
