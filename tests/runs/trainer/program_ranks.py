"""Work of each rank for test_program.py: runs of the training program, in one start per world."""

import dataclasses
import io
import json
import os
from contextlib import redirect_stderr
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from dpbook.core.errors import DpbookError
from dpbook.runs.trainer import checkpoints
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.trainer import Trainer, train

CPU = torch.device("cpu")
STEPS = 6
SMALL = {"width": 32, "depth": 1, "context": 16, "batch": 2, "warmup": 3, "save_every": 2, "lr": 0.01}


def weights(trainer):
    return [p.detach().numpy().tobytes() for p in trainer.module.parameters()]


def losses(options, steps):
    """The losses of some steps, and the weights after each."""
    trainer = Trainer(options, CPU)
    found = [(trainer.train_step(), weights(trainer)) for _ in range(steps)]
    return [values for values, _ in found], [w for _, w in found]


def strategies(folder):
    """Every strategy, with accumulation: values per step, and the weights at the end."""
    return {
        name: losses(Options(name=name, out=folder, strategy=name, accumulation=2, cap=0.01, **SMALL), 4)
        for name in ("torch", "naive", "hook", "bucketed", "zero1")
    }


def over_schedules(folder):
    """Every strategy once more, over gloo's ring as a schedule; with the number of its messages."""
    found, isend = {}, dist.isend
    for name in ("torch", "naive", "hook", "bucketed", "zero1"):
        options = Options(
            name=name, out=folder, strategy=name, all_reduce="gloo_ring", accumulation=2, cap=0.01, **SMALL
        )
        with patch.object(dist, "isend", side_effect=isend) as counted:
            found[name] = losses(options, 4), counted.call_count
    return found


def resumed(folder):
    """For each strategy: the weights of six steps in one go, and of three, an end, and three more."""
    found = {}
    for name in ("torch", "naive", "hook", "bucketed", "zero1"):
        options = Options(name=f"resumed-{name}", out=folder, strategy=name, cap=0.01, **SMALL)
        whole = losses(dataclasses.replace(options, name="whole"), 6)[1][-1]
        first = Trainer(options, CPU)
        for _ in range(3):
            first.train_step()
        first.save()
        first.train_step()  # lost: it was never saved
        again = Trainer(options, CPU)
        output = again.resume()
        for _ in range(3):
            again.train_step()
        found[name] = weights(again) == whole, output["step"], output["world"]
    for name, before in (("zero1", "bucketed"), ("bucketed", "zero1")):
        options = Options(name=f"resumed-{before}", out=folder, strategy=name, **SMALL)
        found[f"{name} after {before}"] = refusal(Trainer(options, CPU).resume)
    options = Options(name="resumed-bucketed", out=folder, **{**SMALL, "depth": 2})
    found["another depth"] = refusal(Trainer(options, CPU).resume)
    return found


def empty(path):
    path.write_bytes(b"")


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def garble(path):
    path.write_bytes(os.urandom(path.stat().st_size))


def change_a_weight(path):
    """One bit of a tensor, of which torch's own reader takes no notice."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_weights(path):
    torch.save({"weight": torch.zeros(3)}, path)


DAMAGES = {
    "empty": empty, "cut": cut, "garbled": garble, "a bit": change_a_weight, "other content": replace_by_weights,
    "missing": Path.unlink,
}  # fmt: skip


def of_two(folder, name, strategy="zero1"):
    """A run with checkpoints of steps 1 and 2; its folder."""
    trainer = Trainer(Options(name=name, out=folder, strategy=strategy, **SMALL), CPU)
    for _ in range(2):
        trainer.train_step()
        trainer.save()
    return trainer.options


def damaged(rank, folder):
    """Resume runs with damaged files: the newest of rank 0, a shard of rank 2, both newest."""
    found = {}
    for name, damage in DAMAGES.items():
        for part in ("pt", "rank2"):
            if (name, part) == ("missing", "pt"):
                continue
            options = of_two(folder, f"damaged-{part}-{name}".replace(" ", "-"))
            if rank == 0:
                damage(options.folder / f"checkpoint-00000002.{part}")
            dist.barrier()
            with redirect_stderr(io.StringIO()) as output:
                again = Trainer(options, CPU)
                step = again.resume()["step"]
            again.train_step()
            again.save()
            aside = (options.folder / "checkpoint-00000002.pt.damaged").exists()
            found[f"{part} {name}"] = step, output.getvalue(), aside, checkpoints.steps(options.folder)
    options = of_two(folder, "both")
    if rank == 0:
        cut(options.folder / "checkpoint-00000001.pt")
        empty(options.folder / "checkpoint-00000002.pt")
    dist.barrier()
    found["both"] = refusal(Trainer(options, CPU).resume), checkpoints.steps(options.folder)
    return found


def preempted(rank, folder):
    """Rank 2 alone is asked to end, before its second step: after which step each rank has saved, and which next."""
    trainer = Trainer(Options(name="asked", out=folder, steps=5, **{**SMALL, "save_every": 0}), CPU)
    trainer.train_step()
    if rank == 2:
        trainer.preemption.requested.set()
    train(trainer, None, None)
    kept = checkpoints.steps(trainer.options.folder)
    return trainer.step, kept, trainer.preemption.acknowledged.is_set()


def big_batch(folder, world):
    """The losses of this world, and those of one process whose batch is as large: they see the same examples."""
    options = Options(name="batch", out=folder, **SMALL)
    many = losses(options, 3)[0]
    return many, one_process(dataclasses.replace(options, batch=options.batch * world))


def one_process(options):
    """The same training by hand: no wrapper, no process group."""
    from dpbook.runs.trainer.workloads import Batches, Text, build

    model, batches = build(options), Batches(Text(options.context), options, 0, 1)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    found = []
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * (step + 1) / options.warmup
        optimizer.zero_grad()
        (batch,) = batches(step)
        loss = model(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        found.append(float(loss))
    return found


def variants(folder):
    """Options that change what is computed or sent: the losses, the payload and what was really sent."""
    found = {}
    for name, options in {
        "lora": {"lora": 4},
        "bf16": {"precision": "bf16"},
        "checkpointing": {"checkpointing": True},
        "plain": {},
        "cnn": {"model": "cnn", "batch": 64, "lr": 0.01},
    }.items():
        trainer = Trainer(Options(name=name, out=folder, **{**SMALL, **options}), CPU)
        values = [trainer.train_step() for _ in range(STEPS)]
        traffic = trainer.model.sent
        dtypes = sorted({str(p.grad.dtype) for p in trainer.trained})
        frozen = [p for p in trainer.module.parameters() if not p.requires_grad]
        found[name] = {
            "losses": [v["loss"] for v in values],
            "payload": trainer.payload,
            "sent per step": traffic.nbytes / STEPS,
            "dtypes": dtypes,
            "frozen without gradient": all(p.grad is None for p in frozen),
            "trained": sum(p.numel() for p in trainer.trained),
        }
    return found


def refusals(folder):
    options = Options(name="cnn", out=folder, model="cnn", batch=1000)
    return {"too large": refusal(lambda: Trainer(options, CPU).train_step())}


def refusal(call):
    try:
        call()
    except DpbookError as error:
        return str(error)
    return "accepted"


def everything(rank, world, folder):
    torch.set_num_threads(1)
    return json.loads(
        json.dumps(
            {
                "strategies": strategies(folder),
                "over schedules": over_schedules(folder),
                "resumed": resumed(folder),
                "damaged": damaged(rank, folder),
                "preempted": preempted(rank, folder),
                "big batch": big_batch(folder, world),
                "variants": variants(folder),
                "refusals": refusals(folder),
            },
            default=lambda value: value.hex(),
        )
    )
