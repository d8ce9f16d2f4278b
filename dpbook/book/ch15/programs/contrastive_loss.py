import torch
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
data = points(96)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, _ in loader:
    mine = F.normalize(model(x))
    every = all_gather(mine)
    pairs = mine @ torch.cat(every).T / 0.1
    optimizer.zero_grad()
    F.cross_entropy(pairs, torch.arange(len(x)) + len(x) * rank).backward()
    optimizer.step()
