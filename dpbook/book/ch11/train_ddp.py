"""A complete script for DDP, to copy and to change. It needs torch alone.

    python train_ddp.py                                       # one process
    torchrun --nproc-per-node=4 train_ddp.py --precision bf16 # four, on GPUs where there are as many

The same command again goes on where the run was ended: after an epoch, or by SIGTERM or SIGUSR1, which is how a
scheduler takes a machine away (torchrun passes USR1 on with `--signals_to_handle=SIGTERM,SIGINT,SIGUSR1`). What it
trains, a few tokens at a time, is a toy: put your data in `Sequences` and your model in `Model`.
"""

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

TOKENS, IGNORED = 31, -100
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
STOP = (signal.SIGTERM, signal.SIGUSR1)
SETTLED = ("examples", "batch", "accumulation", "lr", "precision", "seed")  # what a resumed run must not change
Batch = tuple[torch.Tensor, torch.Tensor]


class Sequences(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch has no types here
    """Sequences of 2 to 17 tokens, each 3 times the one before plus 1, modulo 31."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(self.seed + index)
        row = [int(torch.randint(TOKENS, (), generator=draw))]
        for _ in range(int(torch.randint(1, 17, (), generator=draw))):
            row.append((3 * row[-1] + 1) % TOKENS)
        return torch.tensor(row)


def collate(rows: list[torch.Tensor]) -> Batch:
    """Inputs, and for each the token after it; what only fills up is 0 and `IGNORED`."""
    inputs = pad_sequence([row[:-1] for row in rows], batch_first=True)
    return inputs, pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)


class Model(nn.Sequential):  # type: ignore[misc]
    def __init__(self) -> None:
        hidden = nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1)
        super().__init__(nn.Embedding(TOKENS, 64), *hidden, nn.Linear(128, TOKENS))


@dataclass
class Training:
    """Everything that a checkpoint has to bring back."""

    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    scaler: torch.amp.GradScaler
    device: torch.device
    settings: dict[str, object]
    epoch: int = 0
    step: int = 0  # of the epoch

    def save(self, path: Path) -> None:
        """One file, written by rank 0 under another name first, so that it is whole or not there."""
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, random_state(self.device))  # the one thing that differs between ranks
        if dist.get_rank() == 0:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            place = {"epoch": self.epoch, "step": self.step, "settings": self.settings, "random": everyone}
            torch.save(parts | place, f"{path}.partial")
            os.replace(f"{path}.partial", path)
        dist.barrier()  # nobody leaves, and ends the others, before it is there

    def load(self, path: Path) -> None:
        """Every rank reads it, into memory of the CPU: what was on GPU 0 would else go to GPU 0 once per rank."""
        saved = torch.load(path, map_location="cpu", weights_only=True)
        was = saved["settings"]
        differs = [f"{name} {was[name]}, not {now}" for name, now in self.settings.items() if was[name] != now]
        if differs:
            raise SystemExit(f"{path} is of {'; '.join(differs)}: take the same, or another --out")
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])
        self.epoch, self.step = saved["epoch"], saved["step"]
        state = saved["random"][dist.get_rank()]
        torch.set_rng_state(state["cpu"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state[self.device.type], self.device)
        tell(f"goes on from {path}: epoch {self.epoch}, step {self.step}")

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {
            "model": self.ddp.module, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler
        }  # fmt: skip


def tell(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """What dropout, and whatever else this process draws, draws next; whoever uses `random` or NumPy saves theirs too.

    What loading processes draw is not in it: let augmentation depend on epoch and index alone, as `Sequences` does.
    """
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


def join() -> torch.device:
    """Join the group that torchrun describes, or one of this process alone; a GPU per rank, or none for any."""
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}).items():
        os.environ.setdefault(name, str(value))
    kind = torch.accelerator.current_accelerator(check_available=True)  # whoever made it
    backend = dist.get_default_backend_for_device(kind) if kind else "gloo"  # a Mac's GPU has none of its own
    found, here = torch.accelerator.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    if backend == "gloo" or found < here:
        dist.init_process_group("gloo")
        if backend != "gloo":
            tell(f"a rank sees {found} of the {here} GPUs that its node needs, one per rank: all train on the CPU")
        return torch.device("cpu")
    device = torch.device(kind.type, int(os.environ["LOCAL_RANK"]))
    torch.accelerator.set_device_index(device)
    dist.init_process_group(f"cpu:gloo,{device.type}:{backend}", device_id=device)
    return device


def build(options: argparse.Namespace, device: torch.device) -> Training:
    torch.manual_seed(options.seed)  # one for the weights
    model = Model().to(device)
    ddp = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    torch.manual_seed(options.seed + 1 + dist.get_rank())  # another on each rank for dropout
    optimizer = torch.optim.AdamW(ddp.parameters(), options.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")  # bf16 has fp32's range
    settings = {name: getattr(options, name) for name in SETTLED} | {"ranks": dist.get_world_size()}
    return Training(ddp, optimizer, schedule, scaler, device, settings)


def rehearse(ddp: DistributedDataParallel, device: torch.device) -> None:
    """DDP settles its buckets after its first backward: one that trains nothing, so that the next step has its bits."""
    ddp(torch.zeros(1, 1, dtype=torch.long, device=device)).sum().backward()
    ddp.zero_grad()


def checkpoint_exists(path: Path) -> bool:
    """Return whether there is a checkpoint. All ranks must agree: some would else resume, and others begin anew."""
    seen: list[bool | None] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, path.exists())
    if any(seen) and not all(seen):
        without = [rank for rank, there in enumerate(seen) if not there]
        raise SystemExit(f"{path} exists, but not for ranks {without}: let --out be a folder that all nodes share")
    return all(seen)


def read(data: Sequences, training: Training, options: argparse.Namespace) -> Iterator[list[Batch]]:
    """The micro-batches of each step that is left of the epoch."""
    sampler = DistributedSampler(data, seed=options.seed, drop_last=True)
    sampler.set_epoch(training.epoch)  # else every epoch has the same order
    rows = list(sampler)[training.step * options.accumulation * options.batch :]
    # A loader draws from it when it begins, and its processes take their seeds from that: no two ranks augment alike.
    seeds = torch.Generator().manual_seed(options.seed + training.epoch * dist.get_world_size() + dist.get_rank())
    loader = iter(
        DataLoader(
            Subset(data, rows), options.batch, collate_fn=collate, drop_last=True, num_workers=options.workers,
            pin_memory=training.device.type != "cpu", generator=seeds, worker_init_fn=ignore_stop,
        )
    )  # fmt: skip
    while len(batches := list(islice(loader, options.accumulation))) == options.accumulation:
        yield [(x.to(training.device, non_blocking=True), y.to(training.device, non_blocking=True)) for x, y in batches]


def ignore_stop(worker: int) -> None:
    """The whole job gets the signal: loading processes live on until their rank, which decides, has left the epoch."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)


def train_step(training: Training, batches: list[Batch], options: argparse.Namespace) -> torch.Tensor:
    """One optimizer step; the mean loss of all tokens of the step, over micro-batches and ranks."""
    ddp, optimizer, scaler = training.ddp, training.optimizer, training.scaler
    count = sum((targets != IGNORED).sum() for _, targets in batches)
    dist.all_reduce(count)  # before the first backward: every token weighs the same, wherever it is
    total = torch.zeros((), device=training.device)
    for number, (inputs, targets) in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else ddp.no_sync():  # around forward too
            with torch.autocast(training.device.type, DTYPES[options.precision], options.precision != "fp32"):
                scores = ddp(inputs)
            each = scores.float().flatten(0, 1), targets.flatten()
            summed = cross_entropy(*each, ignore_index=IGNORED, reduction="sum")
            scaler.scale(summed * dist.get_world_size() / count).backward()  # DDP divides by the ranks
        total += summed.detach()
    scaler.unscale_(optimizer)  # gradients are averaged and alike on all ranks: so is what is clipped, or skipped
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    training.schedule.step()
    dist.all_reduce(total)
    return total / count


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(training: Training, data: Sequences, options: argparse.Namespace) -> tuple[float, float]:
    """Loss and accuracy per token: sums of all ranks, divided once.

    Each rank has a share without padding, so that nothing counts twice. Shares may differ in size, and in number of
    batches: the module is called, not DDP.
    """
    model = training.ddp.module.eval()
    rows = range(dist.get_rank(), len(data), dist.get_world_size())
    sums = torch.zeros(3, dtype=torch.float64, device=training.device)
    for batch in DataLoader(Subset(data, rows), options.batch, collate_fn=collate, generator=torch.Generator()):
        inputs, targets = (part.to(training.device) for part in batch)
        scores, real = model(inputs).float(), targets != IGNORED
        loss = cross_entropy(scores[real], targets[real], reduction="sum")
        sums += torch.stack([loss, (scores.argmax(-1) == targets).sum(), real.sum()])
    model.train()
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def run(options: argparse.Namespace, device: torch.device) -> Training:
    """Train to the last epoch, or until some rank is told to stop."""
    training, path = build(options, device), Path(options.out, "checkpoint.pt")
    data, held_out = Sequences(options.examples, seed=0), Sequences(options.examples // 5 + 1, seed=10**6)
    global_batch = dist.get_world_size() * options.accumulation * options.batch
    if len(data) < global_batch:
        raise SystemExit(f"{len(data)} examples do not fill one global batch of {global_batch}: nothing to train on")
    told = torch.zeros(1)  # on the CPU, where asking for it waits for no GPU
    for number in STOP:
        signal.signal(number, lambda *_: told.fill_(1))
    if checkpoint_exists(path):
        rehearse(training.ddp, device)
        training.load(path)
    while training.epoch < options.epochs:
        for batches in read(data, training, options):
            loss = train_step(training, batches, options)
            training.step += 1
            if training.step % 20 == 0:  # a number that is printed makes Python wait
                tell(f"epoch {training.epoch}, step {training.step}: loss {float(loss):.3f}")
            stop = told.clone()
            dist.all_reduce(stop, dist.ReduceOp.MAX)  # all stop after the same step, whoever was told
            if stop:
                training.save(path)
                tell(
                    f"told to stop: {path} is of epoch {training.epoch}, step {training.step}; the same command goes on"
                )
                return training
        training.epoch, training.step = training.epoch + 1, 0
        held_out_loss, accuracy = evaluate(training, held_out, options)
        training.save(path)
        tell(f"epoch {training.epoch} is over: held out, loss {held_out_loss:.3f}, accuracy {accuracy:.0%}")
    return training


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="run", help="folder of the checkpoint, seen by all nodes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8, help="per rank and micro-batch")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--workers", type=int, default=0, help="loading processes per rank")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse(), join())
    dist.destroy_process_group()  # after success only: after an error it would wait for ranks that cannot come
