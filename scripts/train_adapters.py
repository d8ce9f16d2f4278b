"""Complete script to train adapters on a frozen, quantised model (QLoRA) under DDP, to copy and to change.

    torchrun --nproc-per-node=2 train_adapters.py --lr 2e-3                               # torch alone, anywhere
    torchrun --nproc-per-node=2 train_adapters.py --model Qwen/Qwen3-4B --text lines.txt  # NF4, on GPUs

The first form trains a toy: a frozen model of random weights, not quantised, with its own adapters. The second needs
transformers, accelerate, bitsandbytes and peft. The same command resumes a run after SIGTERM or SIGUSR1.

Tested: the first form on CPUs and on a stand-in accelerator, on 2 and 3 ranks; the second on CPUs only, on 2 and 3
ranks, with a Llama of 115,000 random weights in NF4 (torch 2.13, transformers 5.23, bitsandbytes 0.50, peft 0.21). The
first form ran with one rank on an NVIDIA H200, too (torch 2.11). Not tested: several GPUs, a real model, speed, and
bitsandbytes' GPU kernels.
"""

import argparse
import math
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

IGNORED = -100
STOP = (signal.SIGTERM, signal.SIGUSR1)
FIXED_SETTINGS = ("model", "text", "rank", "batch", "accumulation", "length", "lr", "seed")  # a resumed run keeps them
Batch = tuple[torch.Tensor, torch.Tensor]


class Adapted(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A frozen linear layer plus two trained matrices, whose product is 0 at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2 * linear(linear(x, self.down), self.up)  # 2: alpha / rank


class Toy(nn.Module):  # type: ignore[misc]
    """Toy language model of bytes, with frozen layers that are recomputed in backward."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, 64), nn.Linear(64, 256)
        layers = [(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(3)]
        self.blocks = nn.ModuleList(nn.Sequential(*layer) for layer in layers)
        self.requires_grad_(False)
        for block in self.blocks:
            block[1], block[3] = Adapted(block[1], rank), Adapted(block[3], rank)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            # Re-entrant recomputation would train no adapter, since the frozen embedding's output needs no gradient.
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def quantised(options: argparse.Namespace, device: torch.device) -> tuple[nn.Module, Any]:
    """Return a language model in NF4 with adapters on every linear layer, and its tokenizer."""
    try:
        import bitsandbytes  # noqa: F401  # transformers loads it late, with a vaguer error
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
        from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
    except ImportError as error:
        raise SystemExit(f"--model needs transformers, accelerate, bitsandbytes and peft: {error}") from error
    nf4 = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    base = AutoModelForCausalLM.from_pretrained(
        options.model, quantization_config=nf4, dtype=torch.bfloat16,
        device_map={"": str(device)},  # all of it on this rank's device; "auto" would spread it
    )  # fmt: skip
    base = prepare_model_for_kbit_training(base, gradient_checkpointing_kwargs={"use_reentrant": False})
    # Without dropout a checkpoint needs no random states (train_ddp.py saves them).
    lora = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(base, lora), AutoTokenizer.from_pretrained(options.model)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def write(state: dict[str, Any], path: Path) -> None:
    """Replace ``path`` so that even after a power cut it is the old file or the new one, and complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.partial", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())  # a file system may store the new name before the content
    os.replace(f"{path}.partial", path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # stores the new name
    os.close(folder)


def log(text: str) -> None:
    """Print a line, on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def join(cpu: bool) -> torch.device:
    """Join torchrun's process group, or one of this process alone; return this rank's GPU, or the CPU if there is none.

    Exit if a rank would need a GPU that it does not see: training on the CPU instead could go unnoticed for days.
    """
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}).items():
        os.environ.setdefault(name, str(value))
    kind = None if cpu else torch.accelerator.current_accelerator(check_available=True)  # of any vendor
    backend = dist.get_default_backend_for_device(kind) if kind else "gloo"  # a Mac's GPU has no backend
    if kind is None or backend == "gloo":
        dist.init_process_group("gloo")
        if not (cpu or torch.version.cuda or torch.version.hip) and os.path.exists("/dev/nvidiactl"):
            log(f"torch {torch.__version__} is a build without CUDA: this run uses the CPU, and no GPU.")
        return torch.device("cpu")
    visible, local = torch.accelerator.device_count(), int(os.environ["LOCAL_RANK"])
    ranks = max(int(os.environ["LOCAL_WORLD_SIZE"]), local + 1)
    if 1 < visible < ranks:
        raise SystemExit(f"A rank sees {visible} GPUs, and this node has {ranks} ranks. Start {visible}, or add --cpu.")
    # If it sees one, the scheduler has given each rank its own (--gpus-per-task=1). NCCL refuses two ranks on one GPU.
    device = torch.device(kind.type, local if visible > 1 else 0)
    torch.accelerator.set_device_index(device)
    dist.init_process_group(f"cpu:gloo,{device.type}:{backend}", device_id=device)
    return device


class Run:
    """A model under DDP, its data and its step number: the state that a checkpoint restores."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(options.seed)  # the same adapters everywhere; DDP sends rank 0's all the same
        model, encode = quantised(options, device) if options.model else (Toy(options.rank).to(device), None)
        if elsewhere := {p.device for p in model.parameters()} - {device}:
            raise SystemExit(f"Parts of the model are on {elsewhere}. DDP needs the whole model on {device}.")
        model.train()  # transformers returns models in evaluation mode, which recompute nothing
        # DDP averages only parameters that are trained. Every adapter takes part in every step, and recomputation is
        # not re-entrant, so neither find_unused_parameters nor static_graph is needed.
        devices = None if device.type == "cpu" else [device.index]
        self.ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
        self.adapters = trained(model)
        self.optimizer = torch.optim.AdamW(self.adapters.values(), options.lr, weight_decay=0.0, fused=True)
        self.options, self.device, self.step = options, device, 0
        self.settings = {name: getattr(options, name) for name in FIXED_SETTINGS} | {"ranks": dist.get_world_size()}
        self.data = sequences(options, encode)
        self.size = dist.get_world_size() * options.accumulation * options.batch
        if len(self.data) < self.size:
            raise SystemExit(f"{len(self.data)} lines do not fill one global batch of {self.size}.")

    def describe(self) -> None:
        count = sum(p.numel() for p in self.adapters.values())
        base = sum(p.nbytes for p in self.ddp.module.parameters() if not p.requires_grad)
        sent = sum(p.nbytes for p in self.adapters.values())
        log(f"{base / 1e6:,.1f} MB frozen on every rank; {count:,} trained, {sent / 1e6:,.2f} MB averaged per step")

    def micro_batches(self) -> list[Batch]:
        """Return this rank's part of the step, which depends only on the step's number: a checkpoint saves that."""
        epoch, place = divmod(self.step, len(self.data) // self.size)
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(self.options.seed + epoch))
        mine = order[place * self.size : (place + 1) * self.size][dist.get_rank() :: dist.get_world_size()]
        return [self.batch([self.data[i] for i in micro]) for micro in mine.split(self.options.batch)]

    def batch(self, rows: list[torch.Tensor]) -> Batch:
        """Return the inputs, and for each the next token; padding is at the end, where a causal model ignores it."""
        inputs = pad_sequence([row[:-1] for row in rows], batch_first=True)
        targets = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)
        return inputs.to(self.device), targets.to(self.device)

    def backward(self, batches: list[Batch]) -> torch.Tensor:
        """Compute the gradient of the mean loss of all tokens of all ranks, and return that loss."""
        count = sum((targets != IGNORED).sum() for _, targets in batches)
        dist.all_reduce(count)  # every token weighs the same, on whichever rank it is
        total = torch.zeros((), device=self.device)
        for number, (inputs, targets) in enumerate(batches, start=1):
            with nullcontext() if number == len(batches) else self.ddp.no_sync():
                with torch.autocast(self.device.type, torch.bfloat16, enabled=bool(self.options.model)):
                    scores = self.ddp(input_ids=inputs)
                flat = getattr(scores, "logits", scores).float().flatten(0, 1)
                summed = cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
                (summed * dist.get_world_size() / count).backward()  # DDP divides by the ranks
            total += summed.detach()
        dist.all_reduce(total)
        return total / count

    def rehearse(self) -> None:
        """Run two steps of the longest lines that train nothing: a shortage of memory shows now.

        The second has the largest peak, since the first makes the optimizer's moments at its end. DDP also rebuilds its
        buckets after the first backward, so a resumed run has the bits of an uninterrupted one.
        """
        longest = sorted(self.data, key=len)[-self.options.batch :]
        for _ in range(2):
            self.backward([self.batch(longest) for _ in range(self.options.accumulation)])
            for adapter in self.adapters.values():
                adapter.grad.zero_()
            self.update(lr=0.0)
        self.optimizer.state.clear()  # as if there had been no step
        if self.device.type != "cpu":  # NCCL's buffers and the CUDA context, about 1 GB, are not torch's
            megabytes = math.ceil(torch.accelerator.max_memory_allocated() / 1e6)
            log(f"torch's allocator: at most {megabytes / 1e3:,.3f} GB")

    def update(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        nn.utils.clip_grad_norm_(self.adapters.values(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train_step(self) -> torch.Tensor:
        loss = self.backward(self.micro_batches())
        self.update(self.options.lr)
        self.step += 1
        return loss

    def save(self, path: Path) -> None:
        """Save the adapters and the optimizer's state, on rank 0; the frozen model is not saved."""
        if dist.get_rank() == 0:
            adapters = {name: p.detach().cpu() for name, p in self.adapters.items()}
            state = {"adapters": adapters, "optimizer": self.optimizer.state_dict(), "step": self.step}
            write(state | {"settings": self.settings}, path)
        dist.barrier()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load(self, path: Path) -> None:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        before = saved["settings"]
        differ = [f"{name} {before[name]}, not {now}" for name, now in self.settings.items() if before[name] != now]
        if differ:
            raise SystemExit(f"{path} was saved with {'; '.join(differ)}. Use the same settings, or another --out.")
        for name, parameter in self.adapters.items():
            parameter.copy_(saved["adapters"][name])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]
        log(f"resumed from {path}: step {self.step}")


def sequences(options: argparse.Namespace, encode: Any) -> list[torch.Tensor]:
    """Return the tokens of each line: the tokenizer's, or for the toy its bytes."""
    letters = "abcdefghijklmnopqrstuvwxyz" * 2
    lines = [letters[k % 26 :][: 5 + k % 19] for k in range(400)]
    if options.text:
        lines = Path(options.text).read_text(encoding="utf-8").splitlines()
    tokens = [(encode(line)["input_ids"] if encode else list(line.encode()))[: options.length] for line in lines]
    return [torch.tensor(row) for row in tokens if len(row) > 1]


def checkpoint_exists(path: Path) -> bool:
    """Return True if there is a checkpoint. All ranks must see it, or some would resume and others start anew."""
    visible: list[bool | None] = [None] * dist.get_world_size()
    dist.all_gather_object(visible, path.exists())
    if any(visible) and not all(visible):
        without = [rank for rank, exists in enumerate(visible) if not exists]
        raise SystemExit(
            f"{path} exists, but ranks {without} do not see it. Let --out be a folder that all nodes share."
        )
    return all(visible)


def run(options: argparse.Namespace, device: torch.device) -> Run:
    training, path, signalled = Run(options, device), Path(options.out, "adapters.pt"), torch.zeros(1)
    for number in STOP:
        signal.signal(number, lambda *_: signalled.fill_(1))
    training.describe()
    training.rehearse()
    if checkpoint_exists(path):
        training.load(path)
    stop = torch.zeros(1)  # on the CPU: reading it waits for no GPU
    while training.step < options.steps and not stop:
        loss = training.train_step()
        if training.step % 10 == 0:
            log(f"step {training.step}: loss {float(loss):.3f}")
        stop = signalled.clone()
        dist.all_reduce(stop, dist.ReduceOp.MAX)  # all stop after the same step, whichever rank got the signal
        if stop or training.step == options.steps or training.step % options.save_every == 0:
            training.save(path)
    log(f"{path} holds step {training.step}")
    if options.model and dist.get_rank() == 0:
        training.ddp.module.save_pretrained(Path(options.out, "adapter"))  # as peft reads it
    return training


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a language model, or its name on the hub (default: a toy)")
    parser.add_argument("--text", help="file with an example per line (default: pieces of the alphabet)")
    parser.add_argument("--out", default="run", help="folder of the checkpoint, seen by all nodes")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapters")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--batch", type=int, default=4, help="per rank and micro-batch")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--length", type=int, default=512, help="most tokens of a line")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, although there are GPUs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    run(options, join(options.cpu))
    dist.destroy_process_group()  # after success only: after an error it would wait for ranks that never join
    sys.stdout.flush()
    os._exit(0)  # at once: a thread of gloo that frees a tensor while Python is being torn down aborts the process
