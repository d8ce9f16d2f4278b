import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

from dpbook.book.ch15.toys import join, net, points

rank, world = join(timeout=8)
sizes = [12] * (world - 1) + [8]
mine = range(sum(sizes[:rank]), sum(sizes[: rank + 1]))
loader = DataLoader(Subset(points(96), mine), batch_size=4)
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
