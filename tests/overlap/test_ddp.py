"""Does a real DistributedDataParallel use the buckets of the plan, in its first step and later?"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dpbook.overlap import CAP, MIB, Tensor, first_step_plan, plan


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def specifications(module):
    return tuple(Tensor(name, tuple(p.shape)) for name, p in module.named_parameters())


def buckets(text):
    """Return the groups in DDP's log of its buckets, such as "5 4, 3 2 1 0"."""
    return tuple(tuple(map(int, group.split())) for group in text.split(", "))


def run(module, width, steps, **arguments):
    model = nn.parallel.DistributedDataParallel(module, **arguments)
    for _ in range(steps):
        model(torch.ones(2, width)).sum().backward()
    return model._get_ddp_logging_data()


def small():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(9)))


def test_the_first_step_has_one_bucket():
    module = small()
    log = run(module, 64, 1)
    assert log["bucket_sizes"] == str(first_step_plan(specifications(module)).total_bytes)
    assert first_step_plan(specifications(module)).calls == 1


def test_later_steps_use_the_plan_with_a_first_bucket_of_1_mib():
    width = 768
    module = nn.Sequential(*(nn.Linear(width, width, bias=k % 2 == 0) for k in range(14)))  # 33 MB
    expected = plan(specifications(module))
    assert 2 <= expected.calls <= 4
    assert expected.nbytes[0] < 3 * MIB < CAP
    assert buckets(run(module, width, 3)["rebuilt_per_bucket_param_indices"]) == expected.groups


@pytest.mark.parametrize("kib", [1, 20, 40, 100])
def test_given_a_cap_torch_uses_it_for_the_first_bucket_too(kib):
    module = small()
    log = run(module, 64, 3, bucket_cap_mb=kib / 1024)
    assert buckets(log["rebuilt_per_bucket_param_indices"]) == plan(specifications(module), kib * 1024, None).groups


def test_with_unused_parameters_looked_for_the_buckets_are_never_rebuilt():
    module = small()
    log = run(module, 64, 3, find_unused_parameters=True, bucket_cap_mb=40 / 1024)
    expected = first_step_plan(specifications(module), True, 40 * 1024, None)
    assert not log["has_rebuilt_buckets"]
    assert log["bucket_sizes"] == ", ".join(map(str, expected.nbytes.tolist()))


def test_the_ready_order_decides_and_not_the_order_of_the_parameters():
    class Crossed(nn.Module):
        """Uses its second layer first."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x):
            return self.c(self.a(self.b(x)))

    module = Crossed()
    log = run(module, 64, 3, bucket_cap_mb=20 / 1024)
    assert (
        buckets(log["rebuilt_per_bucket_param_indices"])
        == plan(specifications(module), 20 * 1024, None, (2, 0, 1)).groups
    )
