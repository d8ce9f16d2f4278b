import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from dpbook.book.ch15.toys import join, net, points

rank, world = join()
data = points(32)
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + rank)
loader = DataLoader(data, batch_size=16, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
