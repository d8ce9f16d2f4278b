import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from dpbook.book.ch15.toys import LanguageModel, join, sentences

rank, world = join()
data = sentences(48)
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
model = DDP(LanguageModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for words in loader:
    given, wanted = words[:, :-1], words[:, 1:].flatten()
    optimizer.zero_grad()
    count = (wanted != 0).sum()
    dist.all_reduce(count)
    total = F.cross_entropy(model(given).flatten(0, 1), wanted, ignore_index=0, reduction="sum")
    loss = total * world / count
    loss.backward()
    optimizer.step()
