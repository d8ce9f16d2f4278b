"""Is a wrapped model's memory free once nothing refers to it?"""

import gc
import weakref
from time import sleep

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbook.ddp import BucketedDDP, FullySharded, HookDDP, NaiveDDP, ShardedOptimizer


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("wrapper", "sharded_optimizer"),
    [(NaiveDDP, False), (HookDDP, False), (BucketedDDP, False), (BucketedDDP, True), (FullySharded, False)],
)
def test_a_model_that_nothing_refers_to_is_freed_with_its_parameters(wrapper, sharded_optimizer):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = wrapper(module)
    trained = list(model.parameters())
    optimizer = ShardedOptimizer(trained, torch.optim.SGD, lr=0.1) if sharded_optimizer else torch.optim.SGD(trained)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    gone = [weakref.ref(module), *map(weakref.ref, trained)]
    del module, model, trained, optimizer
    for _ in range(100):
        gc.collect()
        if not any(reference() is not None for reference in gone):
            break
        sleep(0.05)  # a thread of gloo may still drop what it has used
    assert [reference() for reference in gone] == [None] * len(gone)
