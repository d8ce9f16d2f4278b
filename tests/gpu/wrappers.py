"""Do wrappers, sharded optimizers, fully sharded models and schedules train on the device as they do on the CPU?"""

import hashlib
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.collectives import ALGORITHMS, ring, simulate
from dpbook.core import DpbookError
from dpbook.ddp import BucketedDDP, FullySharded, HookDDP, NaiveDDP, ShardedOptimizer, over
from dpbook.ranks import execute, moment, now
from tests.gpu.checks import check

CPU = torch.device("cpu")
WRAPPERS = {
    "torch": partial(DistributedDataParallel, bucket_cap_mb=1e-3, gradient_as_bucket_view=True),
    "bucketed": partial(BucketedDDP, cap=1049, first=None),
    "naive": NaiveDDP,
    "hook": HookDDP,
}
OURS = ("bucketed", "naive", "hook")
CLOSE = {"rtol": 1e-4, "atol": 1e-6}
"""Of fp32 numbers that were computed in another order."""
PATIENCE = timedelta(seconds=60)
"""For messages that wait for each other."""


def small_net(where):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).to(where)


def train(net, model, optimizer, where, hindered=None, clip=None):
    """Return the bits of the parameters after four steps; the third runs inside ``hindered`` if given."""
    for step in range(4):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(4, 5, generator=draw).to(where)
        with hindered() if hindered and step == 2 else torch.enable_grad():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if clip:
                clip(0.5)
            optimizer.step()
    return bits(net)


def bits(net):
    return [p.detach().cpu().numpy().tobytes() for p in net.parameters()]


def numbers(parts):
    return np.concatenate([np.frombuffer(part, np.float32) for part in parts])


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def wrapped(name, where, hindered=None):
    net = small_net(where)
    model = WRAPPERS[name](net)
    return train(net, model, sgd(net), where, hindered)


def alone(where):
    """The bits of a single process without a wrapper."""
    net = small_net(where)
    return train(net, net, sgd(net), where)


def fully_sharded(where, hindered=None, clipped=True, **options):
    """The bits of this rank's shards, of a model whose gradients are clipped if so asked."""
    net = small_net(where)
    model = FullySharded(net, units=[net[0], net[2]], **options)
    return train(net, model, sgd(net), where, hindered, model.clip_grad_norm_ if clipped else None)


def equal_on_all_ranks(gpu, parts):
    return len(set(gpu.agree(hashlib.sha256(b"".join(parts)).hexdigest()))) == 1


@check()
def wrappers_train_as_on_the_cpu(gpu):
    """Every wrapper ends with equal replicas, and with the parameters that it has on the CPU."""
    farthest = 0.0
    for name in WRAPPERS:
        cpu, found = wrapped(name, CPU), wrapped(name, gpu.device)
        assert equal_on_all_ranks(gpu, found), f"replicas of {name} differ"
        assert gpu.world > 1 or found == alone(gpu.device), f"{name} does not have the bits of one process alone"
        assert not gpu.is_stand_in or found == cpu, f"{name} does not have the bits of the CPU"
        np.testing.assert_allclose(numbers(found), numbers(cpu), err_msg=name, **CLOSE)
        farthest = max(farthest, float(np.abs(numbers(found) - numbers(cpu)).max()))
    return {"largest distance to the CPU": farthest}


@check(ranks=2)
def equal_buckets_have_equal_bits(gpu):
    """Our buckets have the bits of torch's DDP, twice; one all-reduce per gradient has the same bits early or late."""
    for first, second in (("bucketed", "torch"), ("hook", "naive")):
        for _ in range(2):
            assert wrapped(first, gpu.device) == wrapped(second, gpu.device), f"{first} differs from {second}"


@check()
def the_host_never_waits_in_a_step(gpu):
    """In a step of our wrappers and of `FullySharded` the host waits for no kernel and no collective."""
    for name in OURS:
        assert wrapped(name, gpu.device, gpu.still) == wrapped(name, gpu.device), f"{name} has other bits"
    assert fully_sharded(gpu.device, gpu.still) == fully_sharded(gpu.device), "FullySharded has other bits"


@check(ranks=2)
def gradients_wait_for_their_sum(gpu):
    """No update reads a gradient before its sum is there, also where the last rank is late."""
    for name in WRAPPERS:
        assert wrapped(name, gpu.device, gpu.last_rank_late) == wrapped(name, gpu.device), name


@check()
def a_sharded_optimizer_has_the_bits_of_the_whole_one(gpu):
    """`ShardedOptimizer` ends with the bits of the same optimizer on every rank."""
    options = {"lr": 0.01, "foreach": False}
    ends = []
    for make in (torch.optim.AdamW, partial(ShardedOptimizer, optimizer=torch.optim.AdamW)):
        net, draw = small_net(gpu.device), torch.Generator().manual_seed(0)
        optimizer = make(net.parameters(), **options)
        for _ in range(3):
            for p in net.parameters():  # not by a backward, whose kernels may depend on where the parameters lie
                p.grad = torch.randn(p.shape, generator=draw).to(gpu.device)
            optimizer.step()
            optimizer.zero_grad()
        ends.append(bits(net))
    assert ends[0] == ends[1]


@check()
def a_fully_sharded_model_trains_as_on_the_cpu(gpu):
    """`FullySharded` has the shards of the CPU, and the same bits with slow kernels and with parameters kept."""
    cpu, found = fully_sharded(CPU), fully_sharded(gpu.device)
    assert not gpu.is_stand_in or found == cpu
    np.testing.assert_allclose(numbers(found), numbers(cpu), **CLOSE)
    assert found == fully_sharded(gpu.device, lambda: gpu.slower(0.002)), "slow kernels change the bits"
    assert found == fully_sharded(gpu.device, gpu.last_rank_late), "a late rank changes the bits"
    assert found == fully_sharded(gpu.device, reshard_after_forward=False), "kept parameters change the bits"
    assert gpu.world == 1 or not equal_on_all_ranks(gpu, found), "the ranks have the same shards"
    if gpu.world > 1:
        return {}
    whole, unwrapped = fully_sharded(gpu.device, clipped=False), alone(gpu.device)
    assert not gpu.is_stand_in or whole == unwrapped, "one rank does not have the bits of the unwrapped module"
    np.testing.assert_allclose(numbers(whole), numbers(unwrapped), **CLOSE)
    return {"bits of the unwrapped module": whole == unwrapped}  # a GPU may take other kernels for rows elsewhere


@check()
def a_storage_gives_its_memory_back(gpu):
    """A storage that is resized to nothing frees its memory under tensors that stay, and can take it again."""
    tensor = gpu.ones(1024)
    torch.accelerator.synchronize()  # what streams still use is freed before anything is counted
    storage, view, before = tensor.untyped_storage(), tensor[3:5], torch.accelerator.memory_allocated()
    storage.resize_(0)
    assert (before - torch.accelerator.memory_allocated(), storage.size()) == (4096, 0)
    storage.resize_(4096)
    tensor.fill_(7)
    assert view.tolist() == [7.0, 7.0]


def schedules_of(world):
    found = {}
    for name, make in ALGORITHMS.items():
        try:
            found[name] = make(world)
        except DpbookError:  # it needs another number of ranks
            continue
    return found


@check()
def schedules_have_the_bits_of_their_simulation(gpu):
    """Every schedule on device tensors, at once or beside the host (`over`), has the bits of its simulation."""
    inputs = np.random.default_rng(0).normal(size=(gpu.world, 1003)).astype(np.float32)
    tried = schedules_of(gpu.world)
    for name, schedule in tried.items():
        expected = simulate(schedule, inputs).buffers[gpu.rank].tobytes()
        buffer = torch.from_numpy(inputs[gpu.rank]).to(gpu.device)
        execute(schedule, buffer)
        assert buffer.cpu().numpy().tobytes() == expected, name
        begin = over(schedule)
        begin(buffer).wait()  # opens connections, for which the host waits
        buffer * 1  # loads a kernel
        buffer = torch.from_numpy(inputs[gpu.rank]).to(gpu.device)
        with gpu.still():
            begin(buffer).wait()
            read = buffer * 1
        assert read.cpu().numpy().tobytes() == expected, f"{name} beside the host"
        halves = inputs.astype(np.float16)
        execute(schedule, half := torch.from_numpy(halves[gpu.rank]).to(gpu.device))
        expected = simulate(schedule, halves).buffers[gpu.rank].tobytes()
        assert half.cpu().numpy().tobytes() == expected, f"{name} in fp16"
    return {"schedules": list(tried)}


@check(ranks=2)
def sums_of_two_groups_go_on_at_once(gpu):
    """Sums over a schedule and by the backend, under way at once in two groups and on two streams, are all right."""
    begin, size = over(ring), 1000 if gpu.is_stand_in else 2**20
    other = dist.new_group(backend=dist.get_default_backend_for_device(gpu.device), timeout=PATIENCE)
    under_way = []
    for number in range(1, 9):
        ours, theirs = (torch.full((size + number,), float(number), device=gpu.device) for _ in range(2))
        sums = begin(ours), dist.all_reduce(theirs, group=other, async_op=True)
        under_way.append((number, ours, theirs, sums))
    for number, ours, theirs, sums in under_way:
        for done in sums:
            done.wait()
        assert ours.unique().tolist() == theirs.unique().tolist() == [number * gpu.world], f"sum {number}"


@check(ranks=2, gpu_only="memory for large buffers")
def buffers_of_more_than_two_gibibytes_are_summed(gpu):
    """A schedule, and the backend, sum a buffer of more bytes than a number of 32 bits can count."""
    buffer = torch.ones(2**31 + 2**10 + 1, dtype=torch.int8, device=gpu.device)
    execute(ring(gpu.world), buffer)
    assert (int(buffer.min()), int(buffer.max())) == (gpu.world, gpu.world), "a ring"
    buffer.fill_(1)
    dist.all_reduce(buffer)
    assert (int(buffer.min()), int(buffer.max())) == (gpu.world, gpu.world), "the backend"


@check()
def torchs_ddp_trains_over_a_schedule(gpu):
    """torch's DDP with the hook of `over(ring)` has the bits of `BucketedDDP` over the same schedule."""
    net = small_net(gpu.device)
    model = WRAPPERS["torch"](net)
    model.register_comm_hook(None, over(ring).hook)
    by_torch = train(net, model, sgd(net), gpu.device)
    net = small_net(gpu.device)
    model = BucketedDDP(net, all_reduce=over(ring), cap=1049, first=None)
    assert train(net, model, sgd(net), gpu.device) == by_torch


@check(ranks=2)
def messages_of_a_round_go_together(gpu):
    """A ring in which all send first does not block, and adds nothing before it has come, where a rank is late."""
    backend = dist.get_default_backend_for_device(gpu.device)
    group = dist.new_group(backend=backend, timeout=PATIENCE)
    x = gpu.ones(gpu.world)
    with gpu.last_rank_late():
        execute(ring(gpu.world), x, group)
    assert x.tolist() == [gpu.world] * gpu.world


@check(ranks=2)
def the_backends_all_reduce_beside_schedules(gpu):
    """The backend's all-reduce and every schedule sum to the same numbers; times and ratios are recorded."""
    elements = 2**10 if gpu.is_stand_in else 2**22
    figures = {"bytes": 4 * elements}
    ours = {name: partial(execute, schedule) for name, schedule in schedules_of(gpu.world).items()}
    for name, call in [("backend", dist.all_reduce), *ours.items()]:
        buffer = gpu.ones(elements)
        call(buffer)  # opens connections
        assert buffer.unique().tolist() == [gpu.world], name
        dist.barrier()
        begin = moment(gpu.device)
        for _ in range(5):
            call(buffer)
        end = moment(gpu.device)
        now(gpu.device)
        figures[f"{name}, ms"] = 1e3 * begin.until(end) / 5
    ratios = {f"{name} over backend": figures[f"{name}, ms"] / figures["backend, ms"] for name in ours}
    return figures | ratios
