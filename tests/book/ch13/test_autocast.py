"""Does autocast keep a bf16 copy of each weight from forward to backward, as chapter 13 says?"""

import torch


def test_autocast_keeps_two_bytes_more_per_weight():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(8)))
    weights = {weight.data_ptr() for weight in model.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.shape == (64, 64):  # no activation is: there are 3 rows
            kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(3, 64)).sum()
    copies = [tensor for place, tensor in kept.items() if place not in weights]
    assert {tensor.dtype for tensor in copies} == {torch.bfloat16}
    # the first layer's input needs no gradient, so its weight is not kept
    assert sum(tensor.nbytes for tensor in copies) == 2 * 7 * 64 * 64
    loss.backward()
