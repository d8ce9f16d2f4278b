"""Do torch's hooks send what was predicted and train as they promise, and does the script average as it says?

A start of three ranks; starts of two and four are a proof.
"""

from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dpbook.book.ch16 import Setting, hooks, payload, wire
from dpbook.ranks import process_stats
from scripts import train_post_local
from tests.book.scripts import CPU
from tests.scenarios import Scenarios, gathered

pytestmark = pytest.mark.processes
scenario = Scenarios()
SETTINGS = {
    "exact": Setting(steps=8), "fp16": Setting("fp16", steps=8), "bf16": Setting("bf16", steps=8),
    "powersgd": Setting("powersgd", steps=8, begin=2), "no feedback": Setting("powersgd", steps=8, feedback=False),
    "full rank": Setting("powersgd", steps=8, begin=2, rank=128, least=0.01),
    "local": Setting("local", steps=8, begin=3, every=2), "each step": Setting("local", steps=8, begin=0, every=1),
}  # fmt: skip
SCRIPT = ["--steps", "13", "--begin", "3", "--every", "4"]


def mean(array):
    """Return the mean of an array over the ranks."""
    return np.mean(gathered(np.asarray(array)), axis=0)


@scenario
def hooks_send_the_bytes_that_were_predicted_and_train_as_they_promise(rank, world):
    trained = {name: hooks.train(setting) for name, setting in SETTINGS.items()}
    for name, setting in SETTINGS.items():
        check_bytes(gathered(trained[name]), setting, world)
    # only local steps part the ranks, and an average joins them
    for name, record in trained.items():
        differs = [drift > 0 for drift in record.drift]
        assert differs == ([False] * 4 + [True, False, True, False] if name == "local" else [False] * 8), name
    # PowerSGD calls three times, and local steps not at all
    assert trained["powersgd"].calls == [1, 1, 3, 3, 3, 3, 3, 3]
    assert trained["local"].calls == [1, 1, 1, 1, 0, 1, 0, 1]
    # PowerSGD of full rank and averages of every step are the exact loop but for rounding, which the few digits of
    # fp16 and bf16 leave more of, and low rank far more
    far = {name: np.abs(np.subtract(record.losses, trained["exact"].losses)).max() for name, record in trained.items()}
    assert max(far["full rank"], far["each step"]) < 1e-5
    assert far["fp16"] < far["bf16"] < 1e-2 < far["powersgd"]


def check_bytes(trained, setting, world):
    """Bytes that each rank passed to the hook and that all wrote: headers, equal for every message, are extra."""
    for record in trained:
        assert record.payload == payload(setting).tolist()
    if process_stats.IO_COUNTERS.exists():
        beyond = np.sum([record.wire for record in trained], axis=0) - wire(setting, world)
        messages = np.array(trained[0].calls) * world * 4 * (world - 1)  # a chunk in two parts, there and back
        settled = slice(2, None)  # DDP's ranks talk of their buckets after the first step
        assert (beyond[settled] == 144 * messages[settled]).all()


@scenario
def error_feedback_holds_back_what_was_not_applied(rank, world):
    local, applied, states = [], [], []

    def counted(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def note(future):
            applied.append(future.value().numpy().copy())
            return future.value()

        states.append(state)
        local.append(bucket.buffer().numpy().copy())
        return powerSGD_hook(state, bucket).then(note)

    with patch.object(hooks, "powerSGD_hook", counted):
        hooks.train(Setting("powersgd", steps=9, begin=2))
    residual = mean(states[-1].error_dict[0].numpy())
    lost = mean(sum(local[2:])) - sum(applied[2:]) - residual
    assert np.abs(residual).max() > 1e-3
    assert np.abs(lost).max() < 1e-6


def by_hand(options):
    """Return the weights at the end of the script's steps, with averages of ranks in plain torch, and their drift."""
    ddp, _ = train_post_local.build(options, CPU)
    model, rank, ranks = ddp.module, dist.get_rank(), dist.get_world_size()
    weights, moments = list(model.parameters()), [0.0] * 4
    for step in range(options.steps):
        x, y = train_post_local.batch(options.batch, 2 + step * ranks + rank)
        gradients = torch.autograd.grad(cross_entropy(model(x), y), weights)
        for k, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            moments[k] = 0.9 * moments[k] + (torch.tensor(mean(gradient)) if step < options.begin else gradient)
            weight.data -= options.lr * moments[k]
        if step >= options.begin and (step - options.begin) % options.every == 0:
            for weight in weights:
                weight.data = torch.tensor(mean(weight.detach()))
    return [mean(weight.detach()) for weight in weights], hooks.drift(ddp)


@scenario
def the_script_averages_when_it_says_so_and_ends_with_equal_ranks(rank, world):
    options = train_post_local.parse(SCRIPT)
    ddp = train_post_local.run(options, CPU)
    expected, drift = by_hand(options)
    assert max(np.abs(p.detach().numpy() - e).max() for p, e in zip(ddp.parameters(), expected, strict=True)) < 1e-5
    assert drift > 1e-3
    assert train_post_local.drift(ddp) == 0
    accuracy = train_post_local.accuracy(ddp, CPU)
    assert set(gathered(accuracy)) == {accuracy}
    assert accuracy > 0.3  # of four classes


@scenario
def the_script_sends_no_buffers_in_a_step_and_ends_with_equal_ones(rank, world):
    """The model has batch norm, whose statistics are buffers."""
    options, synchronized = train_post_local.parse([*SCRIPT, "--steps", "6"]), []
    build = train_post_local.build

    def observed(*args):
        ddp, optimizer = build(*args)
        ddp.register_forward_pre_hook(lambda module, inputs: synchronized.append(module.will_sync_module_buffers()))
        return ddp, optimizer

    with patch.object(nn, "GELU", partial(nn.BatchNorm1d, 64)), patch.object(train_post_local, "build", observed):
        ddp = train_post_local.run(options, CPU)
    assert not any(synchronized)
    # mean and variance, averaged, and the number of batches
    assert [np.ptp(gathered(buffer.numpy()), axis=0).max() for buffer in ddp.buffers()] == [0, 0, 0]


@scenario
def ddp_refuses_the_bf16_hook_by_its_name(rank, world):
    if torch.version.cuda is None:  # DDP asks how torch was built, not what the group is of
        with pytest.raises(TypeError, match=r"^BF16 all reduce communication hook required CUDA"):
            DistributedDataParallel(nn.Linear(2, 2)).register_comm_hook(None, default_hooks.bf16_compress_hook)


failures, test_scenario = scenario.tests(3)


@pytest.mark.proof
@pytest.mark.parametrize("world", [2, 4])
def test_the_bytes_are_those_predicted_in_other_worlds(world):
    for name, trained in hooks.train_all(world, SETTINGS).items():
        check_bytes(trained, SETTINGS[name], world)
