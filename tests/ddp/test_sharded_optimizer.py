"""Does a sharded optimizer end with the bits of the unsharded one, and keep 1/N of its state? One start per world."""

import copy
import itertools
from functools import partial

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dpbook.core.errors import InvalidArgument
from dpbook.ddp.sharded_optimizer import ShardedOptimizer
from dpbook.ddp.wrappers import BucketedDDP
from dpbook.ranks import start

pytestmark = pytest.mark.processes
STEPS = 12
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}, 0),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, 1),
    "adam": (torch.optim.Adam, {"lr": 0.01}, 2),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}, 2),
}
"""The class, its options, and how many numbers it keeps per parameter."""


def groups(model):
    first, _, second = model.module
    return [{"params": list(first.parameters()), "lr": 0.02}, {"params": list(second.parameters())}]


def make(cls, sharded, options):
    torch.manual_seed(0)
    model = BucketedDDP(nn.Sequential(nn.Linear(13, 37), nn.Tanh(), nn.Linear(37, 5)))
    return model, ShardedOptimizer(groups(model), cls, **options) if sharded else cls(groups(model), **options)


def train(rank, model, optimizer, steps=STEPS, first=0):
    """The parameters after every step, with a falling learning rate and clipped gradients."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    history = []
    for step in range(first, first + steps):
        x = torch.randn(8, 13, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        history.append([p.detach().numpy().tobytes() for p in model.parameters()])
    return history


def state_bytes(optimizer):
    """State of an optimizer, without its steps."""
    tensors = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.numel() > 1]
    return sum(t.numel() * t.element_size() for t in tensors)


def on_one_rank(rank, world):
    torch.set_num_threads(1)
    found = {}
    for name, (cls, options, _) in OPTIMIZERS.items():
        plain, plain_optimizer = make(cls, False, options)
        model, optimizer = make(cls, True, options)
        equal = train(rank, plain, plain_optimizer) == train(rank, model, optimizer)
        again, resumed = make(cls, True, options)
        train(rank, again, resumed, steps=1)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # as from a file
        again.load_state_dict(model.state_dict())
        found[name] = {
            "equal": equal,
            "state": (state_bytes(optimizer.local), state_bytes(plain_optimizer)),
            "parameters": sum(p.numel() for p in model.parameters()),
            "resumed": train(rank, again, resumed, 3, first=50) == train(rank, model, optimizer, 3, first=50),
        }
    kept = [p.grad is not None for group in optimizer.local.param_groups for p in group["params"]]
    found["gradients"] = sum(kept), len(kept)
    found["refused"] = refusals(model, optimizer)
    adamw = partial(ShardedOptimizer, optimizer=torch.optim.AdamW)
    found["peak"] = peak_of_training(adamw), peak_of_training(torch.optim.AdamW)
    found["laid out"] = laid_out()
    return found


def peak_of_training(make, count=240_000):
    """Peak memory of two steps, from the weights on, in multiples of these, by torch's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        weights = nn.Parameter(torch.ones(count))
        optimizer = make([weights])
        for _ in range(2):
            weights.grad = None
            weights.grad = torch.ones(count)
            optimizer.step()
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    nbytes = itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns()))
    return max(nbytes) / (4 * count)


def moved():
    """An optimizer whose module was given other memory."""
    module = nn.Linear(3, 2)
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    module.load_state_dict(nn.Linear(3, 2).state_dict(), assign=False)
    optimizer.step()
    module.weight.data = module.weight.data.clone()
    optimizer.step()


def laid_out():
    """Steps of matrices that lie column by column, with gradients that do not: beside the unsharded optimizer."""
    found = []
    for make in (torch.optim.AdamW, partial(ShardedOptimizer, optimizer=torch.optim.AdamW)):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(5, 4).t().mul(1)), nn.Parameter(torch.randn(3))]
        optimizer = make(weights, lr=0.1)
        for step in range(2):
            weights[0].grad = torch.arange(20.0).view(4, 5) - step
            weights[1].grad = torch.ones(3)
            optimizer.step()
        found.append([w.tolist() for w in weights])
    return found


def refusals(model, optimizer):
    other = {**optimizer.state_dict(), "world": 77}
    mixed = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    calls = {
        "world": lambda: optimizer.load_state_dict(other),
        "dtype": lambda: ShardedOptimizer(mixed, torch.optim.SGD, lr=0.1),
        "class": lambda: ShardedOptimizer(model.parameters(), "Adam", lr=0.1),
        "moved": moved,
        "late": lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]}),
    }
    refusals = {}
    for name, call in calls.items():
        try:
            call()
        except InvalidArgument as error:
            refusals[name] = str(error)
    return refusals


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.proof), 3])
def ranks(request):
    return start(on_one_rank, [(rank, request.param) for rank in range(request.param)], timeout=120)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_has_the_bits_of_the_unsharded_optimizer(ranks, name):
    assert all(rank[name]["equal"] for rank in ranks)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_falls_as_1_over_n(ranks, name):
    """An optimizer that shards nothing keeps the whole on every rank, and fails here for every world above 1."""
    per_parameter = OPTIMIZERS[name][2]
    own = [rank[name]["state"][0] for rank in ranks]
    whole = 4 * per_parameter * ranks[0][name]["parameters"]
    assert {rank[name]["state"][1] for rank in ranks} == {whole}
    assert sum(own) == whole
    assert max(own) - min(own) <= 4 * per_parameter * 2 * (len(ranks) - 1)  # the last piece of each group may be short


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_resumes_with_the_same_bits(ranks, name):
    assert all(rank[name]["resumed"] for rank in ranks)


def test_no_moment_of_training_needs_more_than_unsharded_training_does(ranks):
    """From the weights on: these, their gradients, 1/N of the moments, and of what AdamW takes for a moment or gloo's
    own copy of the weights, which comes after it."""
    world = len(ranks)
    for rank in ranks:
        sharded, unsharded = rank["peak"]
        update, gathering = 2 + (unsharded - 2) / world, 2 + 2 / world + 1
        assert sharded == pytest.approx(max(update, gathering), rel=1e-2)
        assert sharded < unsharded


def test_after_a_step_no_slice_keeps_the_memory_of_a_gradient(ranks):
    for rank in ranks:
        kept, slices = rank["gradients"]
        assert kept == 0 < slices


def test_tensors_of_another_layout_end_with_the_bits_of_the_unsharded_optimizer(ranks):
    for rank in ranks:
        whole, sharded = rank["laid out"]
        assert sharded == whole


def test_bad_input_is_named(ranks):
    for number, rank in enumerate(ranks):
        refusals = rank["refused"]
        assert refusals["world"].startswith(f"state_dict must be that of rank {number} in a world of {len(ranks)}, got")
        assert refusals["dtype"].startswith("params must be of one dtype and device within a group")
        assert refusals["class"].startswith("optimizer must be an optimizer's class")
        assert refusals["moved"].startswith("params must be left in the memory that the optimizer has put them in")
        assert refusals["late"].startswith("param_group must be given when the optimizer is made")
