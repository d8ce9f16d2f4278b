"""The training loop on one rank."""

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpbook.core import InvalidArgument
from dpbook.ddp import BucketedDDP, HookDDP, NaiveDDP, ShardedOptimizer, over
from dpbook.overlap import MIB
from dpbook.ranks import moment, now
from dpbook.runs.trainer import checkpoints
from dpbook.runs.trainer.batches import Ahead, Batches, Digits, Text
from dpbook.runs.trainer.metrics import PARTS, Metrics
from dpbook.runs.trainer.models import build
from dpbook.runs.trainer.options import Options
from dpbook.runs.trainer.preemption import Asked
from dpbook.runs.trainer.resume_check import changes, obstacles
from dpbook.runs.trainer.step_clock import Pace

WRAPPERS = {"naive": NaiveDDP, "hook": HookDDP}
ADAMW = {"betas": (0.9, 0.95)}
"""Usual for transformers: with the default of 0.999 an odd batch early on throws the loss back."""
PINS = ("cuda",)
"""Devices, AMD's GPUs among them, that copy by themselves from host memory that is pinned."""
TIMEOUT = timedelta(minutes=10)
"""Of a collective: a rank that has not come by then is lost."""
TRACE_AFTER = 10
"""Steps before a trace begins: the first ones allocate, and settle the buckets."""


@dataclass
class Trainer:
    """A model with its wrapper and optimizer on this rank's ``device``, at ``step`` of the run in ``options``.

    ``parts`` are those of the last step, `PARTS` by name: seconds of each rank, alike on all. ``pace`` has this rank's.
    ``ending`` is True on all ranks after the first step before whose end one of them was ``asked`` to end.
    """

    options: Options
    device: torch.device
    step: int = 0
    asked: Asked = field(default_factory=Asked)
    ending: bool = False
    source: Text | Digits = field(init=False)
    parts: dict[str, list[float]] = field(init=False, default_factory=dict)
    rate: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        options = self.options
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.source = Text(options.context) if options.model == "gpt" else Digits()
        batches = Batches(self.source, options, self.rank, self.world)
        on_cpu = self.device.type == "cpu"
        self.batches = batches if on_cpu else Ahead(batches, pinned=self.device.type in PINS)
        self.module = build(options).to(self.device)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        if options.compile:  # part by part: what is compiled whole has no gradient before the end of backward
            for part in getattr(self.module, "blocks", [self.module]):
                part.compile()
        self.model = _wrap(self.module, options, self.world)
        adamw = ADAMW | ({"fused": True} if options.fused and self.device.type in fused_devices() else {})
        if options.strategy == "zero1":
            self.optimizer: torch.optim.Optimizer = ShardedOptimizer(self.trained, torch.optim.AdamW, **adamw)
        else:
            self.optimizer = torch.optim.AdamW(self.trained, **adamw)
        self.pace = Pace(self.trained, self.device)

    def resume(self) -> dict[str, Any] | None:
        """Continue from the newest checkpoint; what it says of itself, or None where there is none.

        The buckets too are those of the run that was ended: with others the next sum would have other bits. A sharded
        optimizer continues only in a world of the same size: in another its moments begin at zero. Raises
        `InvalidArgument` for another model, and for a sharded optimizer where the checkpoint's was not, or the other
        way round.
        """
        found = checkpoints.load(self.options.folder)
        if found is None:
            return None
        shared, own = found
        self._check_fits(shared["options"])
        if self.options.strategy == "torch":
            self._rehearse()
        elif shared.get("order"):
            self.model.resume_order(shared["order"])
        self.module.load_state_dict(shared["model"])
        state = own if self.options.strategy == "zero1" else shared
        if state is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.step = shared["step"]
        return shared

    def _check_fits(self, before: dict[str, Any]) -> None:
        """Whether weights of a run with other options have these shapes, and its optimizer is kept like this one."""
        found = changes(before, self.world, self.options, self.world)
        for name in obstacles(found):
            change = next(one for one in found if one.name == name)
            raise InvalidArgument(name, change.now, f"as in the checkpoint ({change.before}), or --name another")

    def _rehearse(self) -> None:
        """One backward that trains nothing: torch's DDP cuts its buckets anew in the forward that follows its first."""
        inputs, targets = (part.to(self.device) for part in next(self.batches(0)))
        with torch.autocast(self.device.type, torch.bfloat16, self.options.precision == "bf16"):
            self.model(inputs, targets).backward()

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        order = None if self.options.strategy == "torch" else self.model.ready_order
        shared = {"model": self.module.state_dict(), "options": self.options.to_data(), "order": order}
        own = None
        if self.options.strategy == "zero1":
            own = {"optimizer": self.optimizer.state_dict()}
        else:
            shared["optimizer"] = self.optimizer.state_dict()
        checkpoints.save(self.options.folder, self.step, shared, own)

    def train_step(self) -> dict[str, float]:
        """One optimizer step, and what `report` says of it."""
        self.advance()
        return self.report()

    def advance(self) -> None:
        """One optimizer step. On an accelerator all of it is queued, and nothing waits."""
        options = self.options
        self.pace.begin()
        self.rate = options.lr * min(1.0, (self.step + 1) / max(options.warmup, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.zero_grad()
        total, bf16 = torch.zeros((), device=self.device), options.precision == "bf16"
        for number, batch in enumerate(self.batches(self.step), start=1):
            inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
            last = number == options.accumulation  # gradients are averaged there; till then they add up on each rank
            syncing = contextlib.nullcontext() if last else self.model.no_sync()
            with syncing, torch.autocast(self.device.type, torch.bfloat16, bf16):
                loss = self.model(inputs, targets) / options.accumulation
                loss.backward()
            total += loss.detach()
        self.pace.summed()
        self.loss, self.norm = total, nn.utils.clip_grad_norm_(self.trained, options.clip or float("inf"))
        self.optimizer.step()
        self.pace.updated()
        self.step += 1

    def report(self) -> dict[str, float]:
        """Of the last step: the loss of the whole global batch, the norm of its gradient, the learning rate.

        Every rank calls it: one rank's loss is not the batch's. The same call tells `parts` to all, and whether one of
        them was asked to end.
        """
        shared = torch.zeros(2 + self.world * len(PARTS), device=self.device)
        shared[0], shared[1] = self.loss, self.asked.came.is_set()
        mine = 2 + self.rank * len(PARTS)
        shared[mine : mine + len(PARTS)] = torch.tensor(self.pace.seconds(), device=self.device)
        dist.all_reduce(shared)
        total, asked, *seconds = shared.tolist()
        self.ending = asked > 0
        self.parts = {name: seconds[k :: len(PARTS)] for k, name in enumerate(PARTS)}
        return {"loss": float(total / self.world), "gradient_norm": float(self.norm), "lr": self.rate}

    @property
    def tokens_per_step(self) -> int:
        """Tokens, or images, of a global batch."""
        examples: int = self.world * self.options.batch * self.options.accumulation
        return examples * self.source.tokens

    @property
    def payload(self) -> int:
        """Bytes of gradients that a step averages."""
        return int(sum(p.numel() * p.element_size() for p in self.trained))

    def memory(self) -> int:
        """Peak bytes: of the accelerator where there is one, else of the process."""
        if self.device.type != "cpu":
            return int(torch.accelerator.max_memory_allocated(self.device))
        peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, Linux KiB


def train(trainer: Trainer, metrics: Metrics | None, progress: Any) -> None:
    """Train to the last step: metrics by rank 0, checkpoints, and a trace of some steps if asked for.

    The seconds of a line are those of a step, the mean since the line before, from one moment on the device to another.
    Ranks that are asked to end save after the report in which all know of it, and go no further.
    """
    options = trainer.options
    trainer.asked.training = True
    with _trace(trainer) as traced:
        while trainer.step < options.steps:
            count = _steps_until_told(trainer)
            begun = moment(trainer.device)
            for left in reversed(range(count)):
                trainer.advance()
                if left:
                    traced()
            values = trainer.report()
            ended = moment(trainer.device)
            now(trainer.device)
            traced()
            seconds = begun.until(ended) / count
            if metrics is not None:
                rate = trainer.tokens_per_step / seconds
                metrics.append(
                    step=trainer.step, steps=count, seconds=seconds, tokens_per_second=rate, memory=trainer.memory(),
                    **values, **trainer.parts,
                )  # fmt: skip
                progress.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
                progress.update(count)
            if trainer.ending:
                trainer.asked.heeded.set()
                trainer.save()
                break
            if _saves(trainer):
                trainer.save()
    trainer.asked.training = False


def _saves(trainer: Trainer) -> bool:
    every = trainer.options.save_every
    return trainer.step == trainer.options.steps or bool(every and trainer.step % every == 0)


def _steps_until_told(trainer: Trainer) -> int:
    """How many steps are taken until there is a line of metrics, or a checkpoint."""
    options, step = trainer.options, trainer.step
    intervals = filter(None, (options.report_every, options.save_every))
    return min(options.steps - step, *(every - step % every for every in intervals))


@contextlib.contextmanager
def _trace(trainer: Trainer) -> Iterator[Any]:
    """A function to be called after each step, which writes a trace of ``options.profile`` of them per rank."""
    if not trainer.options.profile:
        yield lambda: None
        return
    path = trainer.options.folder / f"trace-rank{trainer.rank}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=TRACE_AFTER - 1, warmup=1, active=trainer.options.profile, repeat=1)
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(str(path))
    ) as profiler:
        yield profiler.step


def fused_devices() -> list[str]:
    """The types of devices on which torch has optimizers of one kernel."""
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    return list(_get_fused_kernels_supported_devices())


def bucket_limits(options: Options) -> tuple[int, int | None]:
    """Bytes at which a bucket closes, and the first one, as `dpbook.overlap.plan` takes them."""
    if options.strategy in WRAPPERS:
        return 0, None  # a message per tensor
    cap = max(1, round(options.cap * MIB))
    return cap, None if options.strategy == "torch" else min(cap, MIB)


def _wrap(module: nn.Module, options: Options, world: int) -> nn.Module:
    schedule = options.schedule(world)
    all_reduce = None if schedule is None else over(schedule, dist.new_group(timeout=TIMEOUT, backend="gloo"))
    if options.strategy in WRAPPERS:
        return WRAPPERS[options.strategy](module, all_reduce=all_reduce)
    cap, first = bucket_limits(options)
    if options.strategy != "torch":
        return BucketedDDP(module, cap=cap, first=first, all_reduce=all_reduce)
    wrapped = DistributedDataParallel(module, bucket_cap_mb=cap / MIB, gradient_as_bucket_view=True)
    if all_reduce is not None:
        wrapped.register_comm_hook(None, all_reduce.hook)
    return wrapped
