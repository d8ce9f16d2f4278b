"""Complete script for fully sharded training (torch's `fully_shard`), to copy and to change. It needs only torch.

    python train_fully_sharded.py                                            # one process
    torchrun --nproc-per-node=4 train_fully_sharded.py --precision bf16      # four, each on a GPU if there are any
    torchrun --nproc-per-node=8 train_fully_sharded.py --shards 4            # hybrid: two copies in four shards

The same command resumes a run, on any number of ranks. A checkpoint is saved every `--save-every` steps, and on SIGTERM
or SIGUSR1, the signals with which a scheduler takes a machine away (torchrun passes USR1 on with
`--signals_to_handle=SIGTERM,SIGINT,SIGUSR1`). The model and the data are toys: put your data in `sequence`, your model
in `Model`. `python -m torch.distributed.checkpoint.format_utils dcp_to_torch` turns a checkpoint into one file.

Tested on CPUs and on a stand-in accelerator, with torch 2.13, hybrid sharding too; with one rank on an NVIDIA H200,
with torch 2.11. Not tested: several GPUs.
"""

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

TOKENS, LONGEST, IGNORED = 31, 24, -100
CHECKPOINT = "step-" + 8 * "[0-9]"
STOP = (signal.SIGTERM, signal.SIGUSR1)
FIXED_SETTINGS = (
    "width",
    "depth",
    "dropout",
    "examples",
    "batch",
    "lr",
    "precision",
    "seed",
)  # ranks and memory may change
Batch = tuple[torch.Tensor, torch.Tensor]


def sequence(index: int, seed: int) -> torch.Tensor:
    """Return 4 to 24 tokens, each 3 times the one before plus 1, modulo 31."""
    draw = torch.Generator().manual_seed(seed + index)
    row = [int(torch.randint(TOKENS, (), generator=draw))]
    for _ in range(int(torch.randint(3, LONGEST, (), generator=draw))):
        row.append((3 * row[-1] + 1) % TOKENS)
    return torch.tensor(row)


class Block(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Causal attention and a hidden layer: the unit that is gathered and freed."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.then = nn.LayerNorm(width), nn.LayerNorm(width)
        self.read, self.write = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.read(self.norm(x)).unflatten(-1, (3, 4, -1))  # each token's query, key and value, of 4 heads
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.drop(self.write(attended.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(gelu(self.up(self.then(x)))))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = options.checkpointing
        self.token, self.place = nn.Embedding(TOKENS, options.width), nn.Embedding(LONGEST, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.dropout) for _ in range(options.depth))
        self.norm, self.head = nn.LayerNorm(options.width), nn.Linear(options.width, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each token's successor, (tokens of the batch, TOKENS)."""
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:  # a block that is recomputed in backward keeps only its input
            recompute = self.recompute and self.training
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return self.head(self.norm(x).flatten(0, 1))


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


def rank_mesh(device: torch.device, shards: int) -> DeviceMesh:
    """Return all ranks in one row; or, for hybrid sharding, a row for each copy of the model, within fast links."""
    ranks = dist.get_world_size()
    if ranks % shards:
        raise SystemExit(f"--shards {shards} does not divide {ranks} ranks.")
    if shards == ranks:
        return init_device_mesh(device.type, (ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (ranks // shards, shards), mesh_dim_names=("replicate", "shard"))


def build(options: argparse.Namespace, device: torch.device) -> FSDPModule:
    """Return the sharded model. Only rank 0 ever has the whole model, on the CPU."""
    with torch.device("meta"):  # shapes without values
        model = Model(options)
    fp32 = options.precision == "fp32"  # bf16 is for gathers and computation; shards and sums stay fp32
    policy = MixedPrecisionPolicy(param_dtype=None if fp32 else torch.bfloat16, reduce_dtype=torch.float32)
    mesh = rank_mesh(device, options.shards or dist.get_world_size())
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not options.keep_gathered)
    fully_shard(model, mesh=mesh, mp_policy=policy)  # last: the unit of all that is in no block
    if lost := sorted(dict(model.named_buffers()).keys() - model.state_dict().keys()):
        raise SystemExit(f"The state dict has no values for the buffers {lost}. Make them persistent.")
    model.to_empty(device=device)
    torch.manual_seed(options.seed)
    whole = Model(options).state_dict() if dist.get_rank() == 0 else {}
    states.set_model_state_dict(
        model, whole, options=states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )
    return model


class Training:
    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.ranks = options, device, dist.get_world_size()
        if options.batch % self.ranks or options.examples < options.batch:
            sizes = f"{options.examples} examples, batches of {options.batch} and {self.ranks} ranks"
            raise SystemExit(f"No step is possible with {sizes}: ranks must divide a batch, and examples fill one.")
        self.model = build(options, device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), options.lr, fused=True)  # after sharding: of shards
        self.settings = {name: getattr(options, name) for name in FIXED_SETTINGS}
        self.step = 0

    def batch(self, indices: list[int], seed: int) -> Batch:
        """Return the inputs, and for each the next token; padding is 0 and `IGNORED`."""
        rows = [sequence(index, seed) for index in indices]
        inputs = pad_sequence([row[:-1] for row in rows], batch_first=True)
        targets = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)
        return inputs.to(self.device), targets.to(self.device)

    def micro_batches(self) -> list[Batch]:
        """Return this rank's part of the step's examples, which are the same for any number of ranks.

        All ranks have equally many micro-batches, because each forward and backward gathers weights from all of them.
        """
        epoch, place = divmod(self.step, self.options.examples // self.options.batch)
        draw = torch.Generator().manual_seed(self.options.seed + epoch)
        order = torch.randperm(self.options.examples, generator=draw)
        mine = order[place * self.options.batch :][: self.options.batch][dist.get_rank() :: self.ranks]
        return [self.batch(micro.tolist(), seed=0) for micro in mine.split(self.options.micro)]

    def gradient(self, batches: list[Batch]) -> torch.Tensor:
        """Compute each shard's gradient of the mean loss of all tokens of the step, and return that loss."""
        count = sum((targets != IGNORED).sum() for _, targets in batches)
        dist.all_reduce(count)  # every token weighs the same, on whichever rank it is
        total = torch.zeros((), device=self.device)
        for number, (inputs, targets) in enumerate(batches, start=1):
            last = number == len(batches)
            # By default each rank keeps the sum of whole gradients, and one reduce-scatter ends the step. With
            # --scatter-each every micro-batch has its own, and shards keep the sum. Copies are always summed once.
            self.model.set_requires_gradient_sync(last or self.options.scatter_each)
            self.model.set_requires_all_reduce(last)
            self.model.set_is_last_backward(last)
            scores = self.model(inputs).float()  # `model(...)` runs the hooks that gather; `model.forward` does not
            summed = cross_entropy(scores, targets.flatten(), ignore_index=IGNORED, reduction="sum")
            (summed * self.ranks / count).backward()  # fully_shard divides by the ranks
            total += summed.detach()
        dist.all_reduce(total)
        return total / count

    def train_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Make one optimizer step; return the loss, and the norm of the whole gradient before clipping."""
        torch.manual_seed(hash((self.options.seed, self.step, dist.get_rank())))  # resumed runs draw the same dropout
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * min(1.0, (self.step + 1) / 20)
        loss = self.gradient(self.micro_batches())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # DTensors: squares are summed over shards
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss, norm.full_tensor()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def evaluate(self, count: int) -> tuple[float, float]:
        """Return loss and accuracy per token of held-out examples, from sums over all ranks.

        Every rank calls the model equally often; padding examples do not count.
        """
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for first in range(dist.get_rank(), count + -count % self.ranks, self.ranks * self.options.micro):
            rows = range(first, first + self.ranks * self.options.micro, self.ranks)
            inputs, targets = self.batch(list(rows), seed=10**6)
            targets[torch.tensor(rows, device=self.device) >= count] = IGNORED
            scores, targets = self.model(inputs).float(), targets.flatten()
            loss = cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
            sums += torch.stack([loss, (scores.argmax(-1) == targets).sum(), (targets != IGNORED).sum()])
        self.model.train()
        self.model.reshard()  # without a backward, the root unit would stay gathered
        dist.all_reduce(sums)
        return float(sums[0] / sums[2]), float(sums[1] / sums[2])

    def save(self, folder: Path) -> None:
        """Let each rank write its shards; the file `.metadata`, written last, completes the checkpoint."""
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer, "step": self.step, "settings": json.dumps(self.settings)}
        path = folder / f"step-{self.step:08}"
        dcp.save(state, checkpoint_id=path)
        if dist.get_rank() == 0:
            for other in folder.glob(CHECKPOINT):
                if other != path:
                    shutil.rmtree(other)

    def load(self, path: Path) -> None:
        """Let each rank read what its shards need, whichever ranks wrote it."""
        about: dict[str, Any] = {"step": 0, "settings": ""}
        dcp.load(about, checkpoint_id=path)
        saved = json.loads(about["settings"])
        differ = [f"{name} {saved[name]}, not {now}" for name, now in self.settings.items() if saved[name] != now]
        if differ:
            raise SystemExit(f"{path} was saved with {'; '.join(differ)}. Use the same settings, or another --out.")
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)  # in place, resharded
        states.set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        self.step = about["step"]
        log(f"resumed from {path}")


def newest(folder: Path) -> Path | None:
    """Return the last complete checkpoint. Rank 0 decides, since other nodes may see a shared disk later."""
    chosen = [max((path.parent for path in folder.glob(f"{CHECKPOINT}/.metadata")), default=None)]
    dist.broadcast_object_list(chosen)
    return chosen[0]


def run(options: argparse.Namespace, device: torch.device) -> Training:
    """Train to the last step, or until some rank gets a signal to stop."""
    training, folder, signalled, stop = Training(options, device), Path(options.out), torch.zeros(1), torch.zeros(1)
    for number in STOP:
        signal.signal(number, lambda *_: signalled.fill_(1))
    if path := newest(folder):
        training.load(path)
    while training.step < options.steps and not stop:
        loss, norm = training.train_step()
        if training.step % 20 == 0:  # printing a number waits for the GPU
            log(f"step {training.step}: loss {float(loss):.3f}, gradient's norm {float(norm):.2f}")
        stop = signalled.clone()  # on the CPU: reading it waits for no GPU
        dist.all_reduce(stop, dist.ReduceOp.MAX)  # all stop after the same step, whichever rank got the signal
        if stop or training.step == options.steps or training.step % options.save_every == 0:
            training.save(folder)
    loss, accuracy = training.evaluate(options.examples // 5 + 1)
    log(f"{folder} holds step {training.step}: held-out loss {loss:.3f}, accuracy {accuracy:.0%}")
    return training


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="run", help="folder of the checkpoints, seen by all nodes")
    parser.add_argument("--width", type=positive, default=64)
    parser.add_argument("--depth", type=positive, default=3, help="blocks, each of them a unit")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--save-every", type=positive, default=100, help="steps")
    parser.add_argument("--examples", type=positive, default=2000)
    parser.add_argument("--batch", type=positive, default=48, help="examples per step, over all ranks")
    parser.add_argument("--micro", type=positive, default=8, help="most examples at once on a rank")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--shards", type=positive, help="ranks that share a copy (default: all)")
    parser.add_argument(
        "--keep-gathered", action="store_true", help="from forward to backward: more memory, one gather"
    )
    parser.add_argument("--scatter-each", action="store_true", help="reduce-scatter each micro-batch: less memory")
    parser.add_argument("--checkpointing", action="store_true", help="recompute each block in backward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, although there are GPUs")
    options = parser.parse_args(arguments)
    if options.width % 4:
        parser.error(f"--width {options.width} is not divisible by 4 heads")
    return options


if __name__ == "__main__":
    options = parse()
    run(options, join(options.cpu))
    dist.destroy_process_group()  # after success only: after an error it would wait for ranks that never join
    sys.stdout.flush()
    os._exit(0)  # at once: a thread of gloo that frees a tensor while Python is being torn down aborts the process
