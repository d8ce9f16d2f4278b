"""Does autocast keep a bf16 copy of each weight from forward to backward, as the planner counts?"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dpbook.planning import memory_per_rank
from tests.cases import each

LAYERS, WIDTH = 8, 64


def copies_kept(model):
    """Return the bf16 tensors of a weight's shape that autograd keeps, each storage once."""
    kept = {}

    def pack(tensor):
        if tensor.shape == (WIDTH, WIDTH):  # no activation is: there are 3 rows
            kept[tensor.data_ptr(), tensor.dtype] = tensor
        return tensor

    weights = {weight.data_ptr() for weight in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(3, WIDTH)).sum()
    copies = [tensor for (place, _), tensor in kept.items() if place not in weights]
    assert {tensor.dtype for tensor in copies} == {torch.bfloat16}
    loss.backward()
    return copies


@each("sharded", [False, True])
def test_autocast_keeps_two_bytes_more_per_weight(sharded):
    """The first layer's input needs no gradient, so that its weight is not kept."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    if sharded:
        from torch.distributed.fsdp import fully_shard  # takes a second, in each process that collects the tests

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            for module in [*model, model]:
                fully_shard(module, mesh=mesh)
            copies = copies_kept(model)
        finally:
            dist.destroy_process_group()
    else:
        copies = copies_kept(model)
    kept = memory_per_rank((LAYERS - 1) * WIDTH * WIDTH, 8, 3 if sharded else 0, "autocast")
    assert sum(tensor.nbytes for tensor in copies) == kept.copies
