"""Does a training loop's trial report what the loop did, and leave nothing behind? And does a watched DDP average?"""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dpbook.book.ch11.loops import train_alone, watch
from dpbook.ranks import start

MAKE = DistributedDataParallel.__init__
RNG = np.random.default_rng(0)
SHAPES = (4, 3), (4,), (1, 4), (1,)
TRIAL = {
    "weights": [[RNG.normal(size=shape) for shape in SHAPES]],
    "x": RNG.normal(size=(6, 3)),
    "y": RNG.normal(size=(6, 1)),
    "epochs": 1,
    "batch": 2,
    "accumulation": 1,
    "rate": 0.1,
}


def one_step(model, data, epochs, batch, accumulation, rate, save):
    ddp = DistributedDataParallel(model)
    x, y = data[:batch]
    with torch.no_grad():
        ddp(x)
    ddp(x).sub(y).square().mean().backward()
    with ddp.no_sync():
        ddp(x).sub(y).square().mean().backward()
    save(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    return [7.0]


def test_a_trial_says_what_was_seen_sent_saved_and_returned():
    (found,) = train_alone(one_step, [TRIAL])
    assert [inputs.tolist() for inputs in found["inputs"]] == [TRIAL["x"][:2].tolist()] * 2
    assert (found["syncs"], found["logged"], len(found["saved"])) == (1, [7.0], 1)
    for saved, before, after in zip(found["saved"][0].values(), TRIAL["weights"][0], found["weights"], strict=True):
        assert np.array_equal(saved, before)
        assert not np.array_equal(after, before)


def test_losses_that_are_tensors_come_back_as_numbers():
    def logs(*arguments):
        return [torch.tensor(2.0), torch.tensor([3.0]), 4.0]

    (found,) = train_alone(logs, [TRIAL])
    assert found["logged"] == [2.0, 3.0, 4.0]
    assert not any(isinstance(each, torch.Tensor) for each in found["logged"])


def test_a_trial_leaves_neither_a_group_nor_a_watch_behind():
    def fails(*arguments):
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        train_alone(fails, [TRIAL])
    assert not dist.is_initialized()
    assert DistributedDataParallel.__init__ is MAKE


def test_a_group_that_is_there_is_used_and_stays():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert train_alone(one_step, [TRIAL, TRIAL])[1]["syncs"] == 1
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def watched(rank):
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(3)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1 / 4096)  # 256 bytes: a layer
    sent, found = watch(ddp), []
    for _ in range(2):
        sent.clear()
        ddp.zero_grad()
        ddp(torch.full((1, 8), 10.0**rank)).sum().backward()
        found.append([(each.buffer.nbytes, each.last) for each in sent])
    mean = torch.cat([p.grad.flatten() for p in reversed(list(ddp.parameters()))])
    return found, torch.equal(torch.cat([each.buffer for each in sent]), mean), mean.tolist()


@pytest.mark.processes
def test_a_watched_ddp_averages_and_reports_every_bucket():
    (found, same, mean), (_, _, other) = start(watched, [(0,), (1,)])
    assert found == [[(768, True)], [(256, False), (256, False), (256, True)]]
    assert same
    assert mean == other
