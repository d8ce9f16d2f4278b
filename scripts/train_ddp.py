"""Complete training script for DDP, to copy and to change. It needs only torch.

    python train_ddp.py                                       # one process
    torchrun --nproc-per-node=4 train_ddp.py --precision bf16 # four, each on a GPU if there are any

The same command resumes a run. A checkpoint is saved after every epoch, and on SIGTERM or SIGUSR1, the signals with
which a scheduler takes a machine away (torchrun passes USR1 on with `--signals_to_handle=SIGTERM,SIGINT,SIGUSR1`). The
model and the data are toys: put your data in `Sequences` and your model in `Model`.

Tested on CPUs and on a stand-in accelerator, with torch 2.13; with one rank on an NVIDIA H200, with
torch 2.11. Not tested: several GPUs.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

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
FIXED_SETTINGS = ("examples", "batch", "accumulation", "lr", "precision", "seed")  # what a resumed run must not change
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
    """Return the inputs, and for each the next token; padding is 0 and `IGNORED`."""
    inputs = pad_sequence([row[:-1] for row in rows], batch_first=True)
    return inputs, pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)


class Model(nn.Sequential):  # type: ignore[misc]
    def __init__(self) -> None:
        hidden = nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1)
        super().__init__(nn.Embedding(TOKENS, 64), *hidden, nn.Linear(128, TOKENS))


@dataclass
class Training:
    """Everything that a checkpoint has to restore."""

    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    scaler: torch.amp.GradScaler
    device: torch.device
    settings: dict[str, object]
    epoch: int = 0
    step: int = 0  # of the epoch

    def save(self, path: Path) -> None:
        """Write one file, on rank 0."""
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, random_state(self.device))  # nothing else differs between ranks
        if dist.get_rank() == 0:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            place = {"epoch": self.epoch, "step": self.step, "settings": self.settings, "random": states}
            write(parts | place, path)
        dist.barrier()  # a rank that left earlier would end the others before the file is complete

    def load(self, path: Path) -> None:
        """Let every rank read the file into CPU memory: otherwise all ranks would load GPU 0's tensors onto GPU 0."""
        saved = torch.load(path, map_location="cpu", weights_only=True)
        before = saved["settings"]
        differ = [f"{name} {before[name]}, not {now}" for name, now in self.settings.items() if before[name] != now]
        if differ:
            raise SystemExit(f"{path} was saved with {'; '.join(differ)}. Use the same settings, or another --out.")
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])
        self.epoch, self.step = saved["epoch"], saved["step"]
        state = saved["random"][dist.get_rank()]
        torch.set_rng_state(state["cpu"])
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_rng_state(state[self.device.type], self.device)
        log(f"resumed from {path}: epoch {self.epoch}, step {self.step}")

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {
            "model": self.ddp.module, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler
        }  # fmt: skip


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


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's random generators in this process. If you use `random` or NumPy, save theirs too.

    The generators of loading processes are not saved: let augmentation depend only on epoch and index, as `Sequences`
    does.
    """
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    return state


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


def build(options: argparse.Namespace, device: torch.device) -> Training:
    if options.tf32:  # torch may warn that this name is old; after the new one torch 2.9 and 2.10 cannot compile
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)  # one for the weights
    model = Model().to(device)
    if options.compile:  # in place, so that a checkpoint has the same names with and without it
        model.compile(backend=options.compile)
    devices = None if device.type == "cpu" else [device.index]
    # With views a gradient is its place in a bucket, and not a second copy of it.
    ddp = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    torch.manual_seed(options.seed + 1 + dist.get_rank())  # another on each rank for dropout
    optimizer = torch.optim.AdamW(ddp.parameters(), options.lr, fused=True)  # one kernel for many parameters
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    scaler = torch.amp.GradScaler(device.type, enabled=options.precision == "fp16")  # bf16 has fp32's range
    settings = {name: getattr(options, name) for name in FIXED_SETTINGS} | {"ranks": dist.get_world_size()}
    return Training(ddp, optimizer, schedule, scaler, device, settings)


def rehearse(ddp: DistributedDataParallel, device: torch.device) -> None:
    """Run a backward that trains nothing: DDP rebuilds its buckets after the first, and a resumed run needs them."""
    ddp(torch.zeros(1, 1, dtype=torch.long, device=device)).sum().backward()
    ddp.zero_grad()


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


def read(data: Sequences, training: Training, options: argparse.Namespace) -> Iterator[list[Batch]]:
    """Yield the micro-batches of each remaining step of the epoch."""
    sampler = DistributedSampler(data, seed=options.seed, drop_last=True)
    sampler.set_epoch(training.epoch)  # otherwise every epoch has the same order
    rows = list(sampler)[training.step * options.accumulation * options.batch :]
    # The loader draws the seeds of its processes from this generator, so no two ranks augment alike.
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
    """Ignore the signals, which the whole job gets: loading processes run until their rank leaves the epoch."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)


def train_step(training: Training, batches: list[Batch], options: argparse.Namespace) -> torch.Tensor:
    """Make one optimizer step, and return the mean loss of all its tokens, over micro-batches and ranks."""
    ddp, optimizer, scaler = training.ddp, training.optimizer, training.scaler
    count = sum((targets != IGNORED).sum() for _, targets in batches)
    dist.all_reduce(count)  # before the first backward: every token weighs the same, wherever it is
    total = torch.zeros((), device=training.device)
    for number, (inputs, targets) in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else ddp.no_sync():  # around forward too
            with torch.autocast(training.device.type, DTYPES[options.precision], options.precision != "fp32"):
                scores = ddp(inputs)
            flat = scores.float().flatten(0, 1)
            summed = cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
            scaler.scale(summed * dist.get_world_size() / count).backward()  # DDP divides by the ranks
        total += summed.detach()
    scaler.unscale_(optimizer)  # averaged gradients are equal on all ranks, so all clip, or skip, alike
    nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if scaler.get_scale() >= scale:  # otherwise gradients overflowed, and the scaler skipped the step
        training.schedule.step()
    dist.all_reduce(total)
    return total / count


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(training: Training, data: Sequences, options: argparse.Namespace) -> tuple[float, float]:
    """Return loss and accuracy per token, from sums over all ranks.

    Each rank has a share without padding, so that nothing counts twice. Ranks may have different numbers of batches:
    the module is called, not DDP.
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
    """Train to the last epoch, or until some rank gets a signal to stop."""
    training, path = build(options, device), Path(options.out, "checkpoint.pt")
    data, held_out = Sequences(options.examples, seed=0), Sequences(options.examples // 5 + 1, seed=10**6)
    global_batch = dist.get_world_size() * options.accumulation * options.batch
    if len(data) < global_batch:
        raise SystemExit(f"{len(data)} examples do not fill one global batch of {global_batch}.")
    signalled = torch.zeros(1)  # on the CPU: reading it waits for no GPU
    for number in STOP:
        signal.signal(number, lambda *_: signalled.fill_(1))
    if checkpoint_exists(path):
        rehearse(training.ddp, device)
        training.load(path)
    while training.epoch < options.epochs:
        for batches in read(data, training, options):
            loss = train_step(training, batches, options)
            training.step += 1
            if training.step % 20 == 0:  # printing a number waits for the GPU
                log(f"epoch {training.epoch}, step {training.step}: loss {float(loss):.3f}")
            stop = signalled.clone()
            dist.all_reduce(stop, dist.ReduceOp.MAX)  # all stop after the same step, whichever rank got the signal
            if stop:
                training.save(path)
                log(f"stopped by a signal: {path} holds epoch {training.epoch}, step {training.step}")
                return training
        training.epoch, training.step = training.epoch + 1, 0
        held_out_loss, accuracy = evaluate(training, held_out, options)
        training.save(path)
        log(f"epoch {training.epoch} done: held-out loss {held_out_loss:.3f}, accuracy {accuracy:.0%}")
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
    parser.add_argument("--tf32", action="store_true", help="products of fp32 matrices with TF32's digits, on GPUs")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile the model")
    parser.add_argument("--workers", type=int, default=0, help="loading processes per rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, although there are GPUs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    run(options, join(options.cpu))
    dist.destroy_process_group()  # after success only: after an error it would wait for ranks that never join
    sys.stdout.flush()
    os._exit(0)  # at once: a thread of gloo that frees a tensor while Python is being torn down aborts the process
