"""Training scripts in the words of Accelerate, Hugging Face's Trainer, Lightning and Fabric: right ones, and faults.

``RIGHT`` must not be accused. ``WRONG`` are right scripts with one change, and the check that names the fault.
"""

ACCELERATE = """
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
set_seed(42)
data = TensorDataset(torch.randn(192, 8), torch.randint(0, 4, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 100)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(3):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
WORDS = """
class Words(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1, 20, (12,), generator=g)
        words[int(torch.randint(2, 12, (1,), generator=g)):] = 0
        return words
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
    def forward(self, words):
        return self.head(self.embed(words))
"""
ACCELERATE_LM = f"""
import contextlib
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset
{WORDS}
k = 2
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
torch.manual_seed(1)
model, loader = LM(), DataLoader(Words(), batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    batches = iter(loader)
    for update in range(len(loader) // k):
        group = [next(batches) for _ in range(k)]
        count = torch.stack([(words[:, 1:] != 0).sum() for words in group]).sum()
        count = accelerator.gather(count).sum().item()
        for i, words in enumerate(group):
            with accelerator.no_sync(model) if i < k - 1 else contextlib.nullcontext():
                logits, targets = model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()
                loss = F.cross_entropy(logits, targets, ignore_index=0, reduction="sum")
                loss = loss * accelerator.num_processes * k / count
                accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINER = """
import tempfile
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Words(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        words = torch.randint(1, 20, (12,), generator=g)
        labels = words.clone()
        labels[: int(torch.randint(0, 10, (1,), generator=g))] = -100
        return {"input_ids": words, "labels": labels}

sizes = dict(vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
heads = dict(num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True, report_to=[],
        save_strategy="no", max_steps=12, disable_tqdm=True, learning_rate=1e-3, logging_strategy="no",
    )
    Trainer(model=model, args=arguments, train_dataset=Words()).train()
"""
CLASSIFIER = """
import tempfile
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Texts(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(1, 20, (12,), generator=g), "labels": i % 3}

torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32,
))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no", max_steps=8,
        disable_tqdm=True, learning_rate=1e-3, logging_strategy="no", max_grad_norm=0.1,
        average_tokens_across_devices=False,
    )
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()
"""
LIGHTNING = """
import os
import torch
import torch.nn.functional as F
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    def training_step(self, batch, i):
        x, y = batch
        return F.cross_entropy(self.net(x), y)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

L.seed_everything(3)
data = TensorDataset(torch.randn(192, 8), torch.randint(0, 4, (192,)))
trainer = L.Trainer(
    strategy="ddp", accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_epochs=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, gradient_clip_val=0.1, accumulate_grad_batches=1,
)
trainer.fit(Net(), DataLoader(data, batch_size=4, shuffle=True))
"""
TWICE = LIGHTNING.replace("accumulate_grad_batches=1", "accumulate_grad_batches=2")
MANUAL = (
    LIGHTNING.replace(" gradient_clip_val=0.1, accumulate_grad_batches=1,", "")
    .replace(
        """        x, y = batch
        return F.cross_entropy(self.net(x), y)
""",
        """        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        optimizer.step()
""",
    )
    .replace("        self.net = nn.Seq", "        self.automatic_optimization = False\n        self.net = nn.Seq")
)
FABRIC = """
import os
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
fabric.launch()
fabric.seed_everything(1)
data = TensorDataset(torch.randn(192, 8), torch.randint(0, 4, (192,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        last = i % 2 == 1
        with fabric.no_backward_sync(model, enabled=not last):
            loss = F.cross_entropy(model(x), y) / 2
            fabric.backward(loss)
        if last:
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
"""
COMPILED = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(192, 8), torch.randint(0, 4, (192,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model = torch.compile(DDP(model), backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

RIGHT = {
    "Accelerate": ACCELERATE,
    "Accelerate, no accumulation": ACCELERATE.replace("_steps=2", "_steps=1"),
    "Accelerate, tokens of all ranks": ACCELERATE_LM,
    "Trainer": TRAINER,
    "Trainer, no accumulation": TRAINER.replace("_steps=2", "_steps=1"),
    "Trainer, a classifier": CLASSIFIER,
    "Lightning": LIGHTNING,
    "Lightning, accumulation": TWICE,
    "Lightning, by hand": MANUAL,
    "Fabric": FABRIC,
    "torch.compile": COMPILED,
}


def changed(text, *pairs):
    """``text`` with each first string replaced by the second; each must be there."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


WRONG = {
    "Accelerate: loader not prepared": (
        changed(
            ACCELERATE,
            ("optimizer, loader, scheduler = acc", "optimizer, scheduler = acc"),
            ("(model, optimizer, loader, scheduler)", "(model, optimizer, scheduler)"),
        ),
        "examples",
    ),
    "Accelerate: model not prepared": (
        changed(
            ACCELERATE,
            ("model, optimizer, loader, scheduler = acc", "optimizer, loader, scheduler = acc"),
            ("(model, optimizer, loader, scheduler)", "(optimizer, loader, scheduler)"),
        ),
        "gradients",
    ),
    "Accelerate: scheduler not prepared": (
        changed(
            ACCELERATE,
            ("optimizer, loader, scheduler = acc", "optimizer, loader = acc"),
            ("(model, optimizer, loader, scheduler)", "(model, optimizer, loader)"),
        ),
        "scheduler",
    ),
    "Accelerate: times the ranks": (
        changed(
            ACCELERATE, ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y) * accelerator.num_processes")
        ),
        "replay",
    ),
    "Accelerate: dropout alike": (changed(ACCELERATE, ("nn.ReLU()", "nn.Dropout(0.2)")), "random"),
    "Accelerate: a parameter outside": (
        changed(
            ACCELERATE,
            (
                "optimizer = torch.optim.AdamW(model.parameters()",
                "heat = nn.Parameter(torch.ones(()))\noptimizer = torch.optim.AdamW([*model.parameters(), heat]",
            ),
            ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x) * heat, y)"),
        ),
        "gradients",
    ),
    "Accelerate: clips each micro-batch": (
        changed(
            ACCELERATE,
            (
                "            if accelerator.sync_gradients:\n                accelerator.clip_grad_norm_",
                "            torch.nn.utils.clip_grad_norm_",
            ),
        ),
        "clip",
    ),
    "Accelerate: means of tokens": (
        changed(
            ACCELERATE_LM,
            (', reduction="sum")', ")"),
            ("                loss = loss * accelerator.num_processes * k / count\n", ""),
        ),
        "mean",
    ),
    "Accelerate: not times the ranks": (changed(ACCELERATE_LM, (" * accelerator.num_processes", "")), "replay"),
    "Trainer: tokens of one rank": (
        changed(TRAINER, ("report_to=[],", "report_to=[], average_tokens_across_devices=False,")),
        "mean",
    ),
    # As transformers 5.24 does it by default: its loss is a mean over one rank's batch, and Trainer multiplies it.
    "Trainer: a mean times the ranks": (changed(CLASSIFIER, ("average_tokens_across_devices=False,", "")), "replay"),
    "Trainer: dropout alike": (
        changed(TRAINER, ("dict(vocab_size=20,", "dict(vocab_size=20, attention_dropout=0.1,")),
        "random",
    ),
    "Lightning: no distributed sampler": (
        changed(LIGHTNING, ("max_epochs=3", "max_epochs=3, use_distributed_sampler=False")),
        "examples",
    ),
    "Lightning: times the ranks": (
        changed(
            LIGHTNING, ("F.cross_entropy(self.net(x), y)", "F.cross_entropy(self.net(x), y) * self.trainer.world_size")
        ),
        "replay",
    ),
    "Lightning: dropout alike": (changed(TWICE, ("nn.ReLU()", "nn.Dropout(0.2)")), "random"),
    "Lightning: batches of any size": (
        changed(
            TWICE,
            (
                "return F.cross_entropy(self.net(x), y)",
                "n = 1 + (i + self.global_rank) % 3\n        return F.cross_entropy(self.net(x[:n]), y[:n])",
            ),
        ),
        "mean",
    ),
    "Fabric: loader not set up": (
        changed(
            FABRIC,
            (
                "fabric.setup_dataloaders(DataLoader(data, batch_size=4, shuffle=True))",
                "DataLoader(data, batch_size=4, shuffle=True)",
            ),
        ),
        "examples",
    ),
    "Fabric: never averaged": (changed(FABRIC, ("enabled=not last", "enabled=True")), "sync"),
    "Fabric: times the ranks": (
        changed(FABRIC, ("model(x), y) / 2", "model(x), y) / 2 * fabric.world_size")),
        "replay",
    ),
    "Fabric: not divided": (changed(FABRIC, ("model(x), y) / 2", "model(x), y)")), "mean"),
    "Fabric: a parameter outside": (
        changed(
            FABRIC,
            (
                "optimizer = torch.optim.SGD(model.parameters()",
                "heat = nn.Parameter(torch.ones(()))\noptimizer = torch.optim.SGD([*model.parameters(), heat]",
            ),
            ("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x) * heat, y)"),
        ),
        "gradients",
    ),
    "Trainer: every rank reads all": (
        changed(
            CLASSIFIER,
            (
                "    Trainer(model",
                "    class Whole(Trainer):\n        def get_train_dataloader(self):\n"
                "            return DataLoader(self.train_dataset, 4, shuffle=True)\n    Whole(model",
            ),
            ("from torch.utils.data import Dataset", "from torch.utils.data import DataLoader, Dataset"),
        ),
        "examples",
    ),
    "Trainer: times the ranks": (
        changed(
            CLASSIFIER,
            (
                "    Trainer(model",
                "    class Long(Trainer):\n        def compute_loss(self, *given, **options):\n"
                "            return super().compute_loss(*given, **options) * self.args.world_size\n    Long(model",
            ),
        ),
        "replay",
    ),
    "Trainer: never averaged": (
        changed(
            CLASSIFIER,
            (
                "    Trainer(model",
                "    class Alone(Trainer):\n        def training_step(self, model, *given):\n"
                "            with model.no_sync():\n                return super().training_step(model, *given)\n"
                "    Alone(model",
            ),
        ),
        "sync",
    ),
    "Trainer: a parameter outside": (
        changed(
            CLASSIFIER,
            (
                "    Trainer(model",
                "    class Heated(Trainer):\n        heat = torch.nn.Parameter(torch.ones(()))\n"
                "        def create_optimizer(self, *given):\n            super().create_optimizer(*given)\n"
                "            self.optimizer.add_param_group({'params': [self.heat], 'weight_decay': 0.0})\n"
                "            return self.optimizer\n"
                "        def compute_loss(self, *given, **options):\n"
                "            return super().compute_loss(*given, **options) * self.heat\n    Heated(model",
            ),
        ),
        "gradients",
    ),
    "Lightning: never averaged": (
        changed(
            MANUAL,
            (
                "        self.manual_backward(loss)",
                "        with self.trainer.strategy.model.no_sync():\n            self.manual_backward(loss)",
            ),
        ),
        "sync",
    ),
    "Lightning: clips each micro-batch": (
        changed(
            MANUAL,
            ("        optimizer.zero_grad()\n", ""),
            (
                "        self.manual_backward(loss)\n",
                "        with self.trainer.strategy.model.no_sync() if i % 2 == 0 else "
                "contextlib.nullcontext():\n            self.manual_backward(loss / 2)\n",
            ),
            ("import torch\nimport torch.nn.f", "import contextlib\nimport torch\nimport torch.nn.f"),
            (
                "        optimizer.step()\n",
                "        if i % 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
            ),
        ),
        "clip",
    ),
    "Lightning: gradients times the ranks": (
        changed(
            MANUAL,
            (
                '        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")\n',
                "        for p in self.parameters(): p.grad.mul_(self.trainer.world_size)\n",
            ),
        ),
        "replay",
    ),
    "Lightning: a parameter outside": (
        changed(
            LIGHTNING,
            (
                "        self.net = nn.Seq",
                "        self.heat = [nn.Parameter(torch.ones(()))]\n        self.net = nn.Seq",
            ),
            ("F.cross_entropy(self.net(x), y)", "F.cross_entropy(self.net(x) * self.heat[0], y)"),
            ("AdamW(self.parameters()", "AdamW([*self.parameters(), *self.heat]"),
        ),
        "gradients",
    ),
    "Fabric: dropout alike": (changed(FABRIC, ("nn.ReLU()", "nn.Dropout(0.2)")), "random"),
    "Fabric: clips each micro-batch": (
        changed(
            FABRIC,
            (
                "        if last:\n            fabric.clip_gradients(model, optimizer, max_norm=0.1)\n",
                "        fabric.clip_gradients(model, optimizer, max_norm=0.1)\n        if last:\n",
            ),
        ),
        "clip",
    ),
    "Fabric: model not set up": (
        changed(
            FABRIC,
            ("model, optimizer = fabric.setup(model, optimizer)\n", "optimizer = fabric.setup_optimizers(optimizer)\n"),
            ("with fabric.no_backward_sync(model, enabled=not last):", "if True:"),
            (
                "fabric.clip_gradients(model, optimizer, max_norm=0.1)",
                "nn.utils.clip_grad_norm_(model.parameters(), 0.1)",
            ),
        ),
        "gradients",
    ),
    "Fabric: batches of any size": (
        changed(
            FABRIC,
            (
                "            loss = F.cross_entropy(model(x), y) / 2",
                "            n = 1 + (i + fabric.global_rank) % 3\n"
                "            loss = F.cross_entropy(model(x[:n]), y[:n]) / 2",
            ),
        ),
        "mean",
    ),
    "torch.compile: never averaged": (
        changed(
            COMPILED,
            (
                "        F.cross_entropy(model(x), y).backward()\n",
                "        with wrapped.no_sync():\n            F.cross_entropy(model(x), y).backward()\n",
            ),
            ("torch.compile(DDP(model), backend", "torch.compile(wrapped := DDP(model), backend"),
        ),
        "sync",
    ),
    "torch.compile: dropout alike": (changed(COMPILED, ("nn.ReLU()", "nn.Dropout(0.2)")), "random"),
    "torch.compile: no set_epoch": (changed(COMPILED, ("    sampler.set_epoch(epoch)\n", ""), ("192", "24")), "epochs"),
    "torch.compile: no sampler": (
        changed(COMPILED, ("batch_size=4, sampler=sampler", "batch_size=4, shuffle=True")),
        "examples",
    ),
    "torch.compile: times the ranks": (
        changed(COMPILED, ("F.cross_entropy(model(x), y)", "(F.cross_entropy(model(x), y) * dist.get_world_size())")),
        "replay",
    ),
}
