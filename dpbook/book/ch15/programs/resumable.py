import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()
rank, world = join()
data = points(96)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(net(16, nn.Dropout(0.2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
saved = torch.load(f"{options.out}/{rank}.pt") if options.resume else {"done": 0}
if options.resume:
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for i, (x, y) in enumerate(loader):
    if i < saved["done"]:
        continue
    if options.resume and i == saved["done"]:
        torch.set_rng_state(saved["random"])
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if options.out and not options.resume:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": i + 1}
        torch.save(state | {"random": torch.get_rng_state()}, f"{options.out}/{rank}.pt")
