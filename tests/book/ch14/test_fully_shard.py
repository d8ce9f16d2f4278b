"""Does torch's `fully_shard` do what chapter 14's table of its options says? One start of four ranks.

Offloading is tried on the stand-in accelerator, which has memory of its own.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from dpbook.book import sim
from dpbook.ddp import FullySharded
from dpbook.ranks import start
from tests.scenarios import Scenarios

scenario = Scenarios()
UNITS, WIDTH = 3, 8
GATHER, REDUCE = "gather", "reduce"
CALLS = {"c10d._allgather_base_.default": GATHER, "c10d._reduce_scatter_base_.default": REDUCE, "aten.mm.default": "mm"}


class Calls(TorchDispatchMode):
    """Collectives and products in their order; of collectives the number of ranks and the dtype too."""

    def __init__(self):
        super().__init__()
        self.all, self.names = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if name := CALLS.get(str(function)):
            self.names.append(name)
            if name != "mm":
                larger, smaller = sorted(args[:2], key=lambda tensor: -tensor.numel())
                self.all.append((name, larger.numel() // smaller.numel(), larger.dtype))
        return function(*args, **(kwargs or {}))


def network(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)]).to(device)


def sharded(net, root=None, **options):
    for unit in net:
        fully_shard(unit, **options)
    return fully_shard(net, **options | (root or {}))


def calls_of_step(model, rank):
    """Return the calls of a forward and of a backward, after one step in which torch settles their order."""
    data = torch.full((2, WIDTH), 1.0 + rank)
    for _ in range(2):
        model.zero_grad()
        with Calls() as forward:
            loss = model(data).square().sum()
        with Calls() as backward:
            loss.backward()
    return forward, backward


def gradients(model):
    return [p.grad.full_tensor() for p in model.parameters()]


def check_gradients(model, world, device="cpu", rtol=1e-5):
    """Compare the gradients of `calls_of_step` with those of one process that has the examples of all ranks."""
    alone = network(device)
    data = torch.cat([torch.full((2, WIDTH), 1.0 + rank) for rank in range(world)]).to(device)
    (alone(data).square().sum() / world).backward()
    torch.testing.assert_close(gradients(model), [p.grad for p in alone.parameters()], rtol=rtol, atol=rtol)


@scenario
def by_default_a_unit_is_gathered_when_its_forward_begins(rank, world, folder):
    model = sharded(network())
    forward, _ = calls_of_step(model, rank)
    assert forward.names == [GATHER, "mm"] * UNITS
    assert {ranks for _, ranks, _ in forward.all} == {world}
    check_gradients(model, world)


@scenario
def a_forward_prefetch_gathers_the_units_that_it_names_earlier(rank, world, folder):
    model = sharded(network())
    model[0].set_modules_to_forward_prefetch([model[1], model[2]])
    forward, _ = calls_of_step(model, rank)
    assert forward.names == [GATHER] * UNITS + ["mm"] * UNITS
    check_gradients(model, world)


@scenario
def a_backward_prefetch_gathers_the_units_that_it_names_earlier(rank, world, folder):
    """By default one unit ahead is gathered; the last unit's backward then begins with two gathers."""
    default, model = sharded(network()), sharded(network())
    model[2].set_modules_to_backward_prefetch([model[1], model[0]])
    _, before = calls_of_step(default, rank)
    _, after = calls_of_step(model, rank)
    assert before.names[:3] == [GATHER, GATHER, "mm"]
    assert after.names[:4] == [GATHER, GATHER, GATHER, "mm"]
    check_gradients(model, world)


@scenario
def unshard_by_hand_gathers_before_forward_asks(rank, world, folder):
    model = sharded(network())
    calls_of_step(model, rank)
    with Calls() as early:
        model[0].unshard(async_op=True)
    with Calls() as forward:
        model(torch.ones(2, WIDTH))
    assert early.names == [GATHER]
    assert forward.names.count(GATHER) == UNITS - 1


@scenario
def units_that_are_kept_are_gathered_once(rank, world, folder):
    model = sharded(network(), reshard_after_forward=False)
    forward, backward = calls_of_step(model, rank)
    assert (forward.names.count(GATHER), backward.names.count(GATHER)) == (UNITS, 0)
    check_gradients(model, world)


@scenario
def an_integer_gathers_for_backward_among_so_many_ranks(rank, world, folder):
    """After forward a rank keeps half of a unit, and backward gathers from one other rank."""
    model = sharded(network(), reshard_after_forward=2, root={"reshard_after_forward": False})
    forward, backward = calls_of_step(model, rank)
    assert [ranks for name, ranks, _ in forward.all if name == GATHER] == [world] * UNITS
    assert [ranks for name, ranks, _ in backward.all if name == GATHER] == [2] * UNITS
    check_gradients(model, world)


@scenario
def mixed_precision_gathers_and_sums_in_its_types(rank, world, folder):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(network(), mp_policy=policy)
    _, backward = calls_of_step(model, rank)
    assert {(name, dtype) for name, _, dtype in backward.all} == {(GATHER, torch.bfloat16), (REDUCE, torch.float32)}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    check_gradients(model, world, rtol=0.05)


@scenario
def without_gradient_sync_nothing_is_reduced_and_whole_gradients_are_summed(rank, world, folder):
    model, data = sharded(network()), torch.full((2, WIDTH), 1.0 + rank)
    model.set_requires_gradient_sync(False)
    with Calls() as first:
        (model(data).square().sum() / 2).backward()
    model.set_requires_gradient_sync(True)
    with Calls() as last:
        (model(data).square().sum() / 2).backward()
    assert (first.names.count(REDUCE), last.names.count(REDUCE)) == (0, UNITS)
    check_gradients(model, world)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.linear(x)


@scenario
def compiled_units_are_graphs_between_hooks_that_gather(rank, world, folder):
    """Compiled with ``fullgraph`` each unit is one graph without a break; the backend only counts the graphs."""
    graphs, weights = [], network()
    net = nn.Sequential(*[Block() for _ in range(UNITS)])
    for unit, weight in zip(net, weights, strict=True):
        unit.linear = weight
        unit.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True)
    model = sharded(net)
    model(torch.full((2, WIDTH), 1.0 + rank)).square().sum().backward()
    assert 1 <= len(graphs) <= UNITS  # units that are alike share one
    check_gradients(model, world)


@scenario
def training_goes_on_while_a_checkpoint_is_written(rank, world, folder):
    """The state is copied before `async_save` returns, so later updates do not change what is saved."""
    model, again = sharded(network()), sharded(network())
    future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder)
    with torch.no_grad():
        for part in model.parameters():
            part.zero_()
    future.result()
    state = {"model": again.state_dict()}
    for part in state["model"].values():
        part.to_local().fill_(7)
    dcp.load(state, checkpoint_id=folder)
    for part, expected in zip(state["model"].values(), network().parameters(), strict=True):
        assert part.full_tensor().equal(expected)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x


@scenario
def scalar_parameters_are_refused_by_fully_shard_and_lie_in_a_row_of_ours(rank, world, folder):
    with pytest.raises(ValueError, match="doesn't support scalar parameters"):
        fully_shard(Scaled())
    model = FullySharded(Scaled())
    model(torch.tensor(1.0 + rank)).backward()
    (scale,) = model.parameters()
    mean = sum(1.0 + rank for rank in range(world)) / world
    assert scale.grad.tolist() == ([mean] if rank == 0 else [])


failures, test_scenario = scenario.tests(4, folder=True)


def offloaded(rank, world):
    device = sim.join()
    model = sharded(network(device), offload_policy=CPUOffloadPolicy(pin_memory=False))
    loss = model(torch.full((2, WIDTH), 1.0 + rank, device=device)).square().sum()
    loss.backward()
    return loss.device.type, {p.device.type for p in model.parameters()} | {
        p.grad.device.type for p in model.parameters()
    }


@pytest.mark.processes
@pytest.mark.skipif(sim.missing() is not None, reason=str(sim.missing()))
def test_offloaded_shards_and_gradients_are_in_the_hosts_memory():
    assert start(offloaded, [(rank, 2) for rank in range(2)]) == [("sim", {"cpu"})] * 2
