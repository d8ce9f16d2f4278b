"""What does a sharded step need at its peak: as much as torch's, and as the simulated step says?

Ranks without processes: torch's fake group, whose collectives return at once and allocate nothing. With gloo what is
counted depends on which thread gives its buffers back, so on what else the machine does.
"""

import copy
import gc
import itertools
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpbook.core import InvalidArgument
from dpbook.ddp import FullySharded, measure_layers
from dpbook.overlap import Sharding, Sizes, Wires, simulate_sharded, units_of
from tests.cases import each
from tests.ddp.unit_memory import measure_memory


@contextmanager
def first_of(world):
    """Rank 0 of so many ranks of which the others do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def allocated(step):
    """Bytes at the peak of a step, and at its end, as torch's allocator tells them."""
    gc.disable()  # or a model of before, whose hooks know it, is given back meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    gc.enable()
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    nbytes = list(itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns())))
    return max(nbytes), nbytes[-1]


def step_of(model, loss):
    """Peak and end of a third step, beyond what is kept from one to the next."""
    for _ in range(2):
        model.zero_grad()
        loss(model).backward()
    model.zero_grad()
    return allocated(lambda: loss(model).backward())


def wide():
    """Layers of a matrix each, and nothing else."""
    return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(96, 96, bias=False), nn.Tanh())])


def uneven():
    return nn.Sequential(*[
        layer for a, b in itertools.pairwise((40, 130, 70, 310, 50, 90)) for layer in (nn.Linear(a, b), nn.ReLU())
    ])  # fmt: skip


def gpt():
    blocks = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)]
    return nn.Sequential(nn.Embedding(50, 64), *blocks, nn.Linear(64, 50))


def ours(module, units, **options):
    return FullySharded(module, units=units, **options)


def torchs(module, units, **options):
    for unit in units:
        fully_shard(unit, **options)
    return fully_shard(module, **options)


def matrices(module):
    return [layer for layer in module if isinstance(layer, nn.Linear)]


@each("world", [2, 3, 4, 5])
def test_a_step_needs_no_more_memory_than_torchs(world):
    """Beyond what is kept, within 10 %; a unit gathered ahead is a unit more, and torch gathers none on a CPU."""
    module, x = wide(), torch.ones(2, 96)
    parameters = sum(p.nbytes for p in module.parameters())
    with first_of(world):
        found = {
            name: step_of(wrap(copied := copy.deepcopy(module), matrices(copied), **options), lambda m: m(x).sum())
            for name, wrap, options in [
                ("torch", torchs, {}), ("torch, kept", torchs, {"reshard_after_forward": False}), ("ours", ours, {}),
                ("kept", ours, {"reshard_after_forward": False}), ("no prefetch", ours, {"prefetch": 0}),
            ]
        }  # fmt: skip
    peaks = {name: peak for name, (peak, _) in found.items()}
    assert peaks["no prefetch"] <= 1.1 * peaks["torch"]
    assert peaks["ours"] <= 1.1 * peaks["torch"] + parameters / 6
    assert peaks["kept"] <= 1.1 * peaks["torch, kept"]
    for name in ("ours", "no prefetch", "kept"):
        assert parameters / world <= found[name][1] <= 1.01 * parameters / world


def words():
    x = torch.arange(2 * 24).view(2, 24) % 50
    return lambda model: nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())


MODELS = {
    "small GPT": (gpt, words, nn.TransformerEncoderLayer),
    "uneven MLP": (uneven, lambda: lambda model: model(torch.ones(8, 40)).square().sum(), nn.Linear),
}


@each("name", MODELS)
def test_the_simulated_peak_is_the_measured_one(name):
    """Within 10 %, beyond the shards, which both keep."""
    make, loss_of, kind = MODELS[name]
    torch.manual_seed(0)
    module, loss = make(), loss_of()
    names = [name for name, layer in module.named_children() if isinstance(layer, kind)]
    layers = measure_layers(module, lambda: loss(module), 1)
    units = units_of(layers, names, **measure_memory(module, lambda: loss(module), names))
    choices = [{}, {"prefetch": 0}, {"prefetch": 2}, {"reshard": False}]
    for how in [Sharding(3, world, **options) for world in (2, 3) for options in choices]:
        memory = simulate_sharded(units, how, Wires(*[lambda nbytes: 0.0] * 3), sizes=Sizes(optimizer=0)).memory
        copied = copy.deepcopy(module)
        with first_of(how.world):
            inside = [copied.get_submodule(name) for name in names]
            model = ours(copied, inside, prefetch=how.prefetch, reshard_after_forward=how.reshard)
            measured, _ = step_of(model, loss)
        assert memory.peak - memory.alive["weights"].max() == pytest.approx(measured, rel=0.1), how


def test_measured_bytes_are_those_that_one_counts():
    """A batch of 8: what tanh gives is kept for its own backward and the second layer's; then there is the loss."""
    module = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False))
    kept = torch.ones(5, 3)
    module[0].weight.grad = kept
    found = measure_memory(module, lambda: module(torch.ones(8, 3)).sum(), ["0", "2"])
    assert found["inputs"] == {"0": 8 * 3 * 4, "2": 8 * 5 * 4}
    assert sum(found["activations"].values()) == pytest.approx(8 * 3 * 4 + 8 * 5 * 4 + 4, abs=16)  # its input too
    assert found["scratch"]["2"] >= 8 * 5 * 4  # the gradient of what tanh gave
    assert module[0].weight.grad is kept
    assert not module[0]._forward_hooks


def test_what_is_collected_meanwhile_is_not_counted():
    """Earlier objects become garbage, and the loss makes so many objects that Python would look for it."""
    module, x, before = wide(), torch.ones(2, 96), []

    def loss():
        garbage = [before.pop() if before else None]
        garbage.append(garbage)
        del garbage
        assert len([[] for _ in range(3 * gc.get_threshold()[0])])
        return module(x).sum()

    names = [name for name, layer in module.named_children() if isinstance(layer, nn.Linear)]
    alone = measure_memory(module, loss, names)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):  # so that the profiler knows their sizes
        before += [torch.ones(1000, 1000) for _ in range(2)]
    assert measure_memory(module, loss, names) == alone


@each(
    ("units", "message"),
    [
        (["5"], "units must be names of modules inside the one that is measured, got '5'"),
        ([""], "units must be names of modules inside the one that is measured, got ''"),
        (["0", "1"], "units must be modules that the loss calls, got '1'"),
    ],
)
def test_a_unit_that_is_none_is_named(units, message):
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with pytest.raises(InvalidArgument, match=message):
        measure_memory(module, lambda: module[0](torch.ones(1, 3)).sum(), units)
