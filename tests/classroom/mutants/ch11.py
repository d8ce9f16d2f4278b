"""Wrong answers to exercise 11, each with the mistake that people make."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.classroom.tasks.judging import Mutant

# 11.1: from a script to ranks


def loop(
    *,
    sampled=True,
    reshuffled=True,
    local=True,
    divided=True,
    averaged=True,
    first_alone=True,
    plain=True,
    wrapped=True,
    local_inside=True,
):
    """A training loop with one thing wrong."""

    def train(model, data, epochs, batch, accumulation, rate, save):
        ddp = DistributedDataParallel(model) if wrapped else model
        sampler = DistributedSampler(data) if sampled else None
        loader = DataLoader(data, batch, sampler=sampler, shuffle=not sampled)
        optimizer = torch.optim.SGD(ddp.parameters(), rate)
        logged, total = [], torch.zeros((), dtype=torch.float64)
        for epoch in range(epochs):
            if sampled and reshuffled:
                sampler.set_epoch(epoch)
            for number, (x, y) in enumerate(loader, start=1):
                last = number % accumulation == 0
                early = None if local_inside else ddp(x)
                with nullcontext() if last or not (local and wrapped) else ddp.no_sync():
                    loss = mse_loss(ddp(x) if early is None else early, y) / (accumulation if divided else 1)
                    loss.backward()
                total += loss.detach() / (1 if divided else accumulation)
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    if averaged:
                        dist.all_reduce(total)
                        total /= dist.get_world_size()
                    logged.append(total.item())
                    total.zero_()
        if dist.get_rank() == 0 or not first_alone:
            save((model if plain else ddp).state_dict())
        return logged

    return train


# 11.2: bytes on the wire

RIGHT = (25_165_824, 25_165_824, 12_582_912, 983_040, 15_728_640, 37_748_736)


def with_number(place, number):
    return (*RIGHT[:place], number, *RIGHT[place + 1 :])


# 11.3: who sits where


def place(
    *,
    before=lambda nodes, node: sum(map(len, nodes[:node])),
    world=lambda nodes: sum(map(len, nodes)),
    device=lambda rank, local, gpu, sees_all: local if sees_all else 0,
    gpu=lambda gpus, local: gpus[local],
):
    def answer(nodes, node, local, sees_all):
        rank, physical = before(nodes, node) + local, gpu(nodes[node], local)
        return rank, world(nodes), device(rank, local, physical, sees_all), physical

    return answer


ALONE, TOGETHER = "one rank: the script as it was", "three real processes"
NUMBERS, NODES = "six numbers", "nodes of different sizes"
MUTANTS = (
    Mutant("11.1", "no set_epoch", loop(reshuffled=False), ALONE),
    Mutant("11.1", "no no_sync", loop(local=False), ALONE),
    Mutant("11.1", "module. in the checkpoint", loop(plain=False), ALONE),
    Mutant("11.1", "no sampler", loop(sampled=False), TOGETHER),
    Mutant("11.1", "one rank's loss", loop(averaged=False), TOGETHER),
    Mutant("11.1", "every rank writes", loop(first_alone=False), TOGETHER),
    Mutant("11.2", "autocast halves", with_number(1, 12_582_912), NUMBERS),
    Mutant("11.2", "bf16 weights, fp32 gradients", with_number(2, 25_165_824), NUMBERS),
    Mutant("11.2", "adapters of both sides, squared", with_number(3, 12 * 2 * 8 * 8 * 4), NUMBERS),
    Mutant("11.2", "no_sync remembered", with_number(4, 983_040), NUMBERS),
    Mutant("11.2", "elements", tuple(number // 4 for number in RIGHT), NUMBERS),
    Mutant("11.2", "all that is sent", with_number(5, 4 * 37_748_736), NUMBERS),
    Mutant("11.2", "the payload", with_number(5, 25_165_824), NUMBERS),
    Mutant("11.3", "nodes alike", place(before=lambda nodes, node: node * len(nodes[node])), NODES),
    Mutant("11.3", "device by rank", place(device=lambda rank, local, gpu, sees_all: rank), NODES),
    Mutant("11.3", "device by GPU", place(device=lambda rank, local, gpu, sees_all: gpu), NODES),
    Mutant("11.3", "its own GPU has the local number", place(device=lambda r, local, g, a: local), NODES),
    Mutant("11.3", "GPUs from 0", place(gpu=lambda gpus, local: local), NODES),
    Mutant("11.3", "GPUs sorted", place(gpu=lambda gpus, local: sorted(gpus)[local]), NODES),
    Mutant("11.3", "GPUs one after another", place(gpu=lambda gpus, local: gpus[0] + local), NODES),
    Mutant("11.3", "a node for the world", place(world=lambda nodes: len(nodes[0])), NODES),
)

WORTHLESS = (
    ("11.1", loop(wrapped=False)),
    ("11.1", loop(divided=False)),
    ("11.1", loop(local_inside=False)),
    ("11.2", (0, 0, 0, 0, 0, 0)),
    ("11.3", place(before=lambda nodes, node: 0)),
)
"""Answers that must not earn a single point."""
