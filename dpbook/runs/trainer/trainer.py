"""Training loop of one rank."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices as fused_devices

from dpbook.core import InvalidArgument
from dpbook.ddp import BucketedDDP, HookDDP, NaiveDDP, ShardedOptimizer, over
from dpbook.overlap import MIB
from dpbook.ranks import moment, now, own_device, peak_memory
from dpbook.runs.trainer import checkpoints
from dpbook.runs.trainer.metrics import Metrics
from dpbook.runs.trainer.options import GROUP_TIMEOUT, Options
from dpbook.runs.trainer.preemption import PreemptionListener
from dpbook.runs.trainer.run_folder import changes, obstacles
from dpbook.runs.trainer.workloads import Batches, Digits, PrefetchedBatches, Text, build

WRAPPERS = {"naive": NaiveDDP, "hook": HookDDP}
ADAMW = {"betas": (0.9, 0.95)}
"""Usual for transformers: with the default of 0.999 an unusual batch early in training raises the loss again."""
PINS = ("cuda",)
"""Types of devices, including AMD's GPUs, that copy asynchronously from pinned host memory."""
TIMEOUT = timedelta(seconds=GROUP_TIMEOUT)
TRACE_AFTER = 10
"""Steps before a trace begins: the first ones allocate memory and settle the buckets."""


@dataclass
class Trainer:
    """Model with its wrapper and optimizer on one rank, after ``step`` steps, the last at learning rate ``rate``.

    ``ending``: whether a rank has been asked to end; `report` sets it on all ranks.
    """

    options: Options
    device: torch.device
    step: int = 0
    preemption: PreemptionListener = field(default_factory=PreemptionListener)
    ending: bool = False
    source: Text | Digits = field(init=False)
    rate: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        options = self.options
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.source = Text(options.context) if options.model == "gpt" else Digits()
        batches = Batches(self.source, options, self.rank, self.world)
        on_cpu = self.device.type == "cpu"
        self.batches = batches if on_cpu else PrefetchedBatches(batches, pinned=self.device.type in PINS)
        self.module = build(options).to(self.device)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        if options.compile:  # part by part: a model compiled as a whole has all its gradients at the end of backward
            for part in getattr(self.module, "blocks", [self.module]):
                part.compile()
        self.model = _wrap(self.module, options, self.world)
        adamw = ADAMW | ({"fused": True} if options.fused and self.device.type in fused_devices() else {})
        if options.strategy == "zero1":
            self.optimizer: torch.optim.Optimizer = ShardedOptimizer(self.trained, torch.optim.AdamW, **adamw)
        else:
            self.optimizer = torch.optim.AdamW(self.trained, **adamw)

    def resume(self) -> dict[str, Any] | None:
        """Resume from the newest checkpoint; return its shared part, or None if there is no checkpoint.

        The buckets are restored too, because with other buckets the next sum would have other bits. With another number
        of ranks the moments of a sharded optimizer begin at zero. Raises `InvalidArgument` for another model, and if
        only one of the two optimizers is sharded.
        """
        loaded = checkpoints.load(self.options.folder)
        if loaded is None:
            return None
        shared, shard = loaded
        changed = changes(shared["options"], self.world, self.options, self.world)
        for name in obstacles(changed):
            before, now = changed[name]
            raise InvalidArgument(name, now, f"as in the checkpoint ({before}), or --name another")
        if self.options.strategy == "torch":
            self.loss_of(next(self.batches(0))).backward()  # DDP rebuilds its buckets in the forward after the first
        elif shared.get("order"):
            self.model.resume_order(shared["order"])
        self.module.load_state_dict(shared["model"])
        state = shard if self.options.strategy == "zero1" else shared
        if state is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.step = shared["step"]
        return shared

    def loss_of(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Run forward in the precision of the options, and return the loss of a micro-batch on this rank, a scalar."""
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        with torch.autocast(self.device.type, torch.bfloat16, self.options.precision == "bf16"):
            loss: torch.Tensor = self.model(inputs, targets)
        return loss

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        order = None if self.options.strategy == "torch" else self.model.ready_order
        shared = {"model": self.module.state_dict(), "options": asdict(self.options), "order": order}
        state = {"optimizer": self.optimizer.state_dict()}
        if self.options.strategy == "zero1":
            checkpoints.save(self.options.folder, self.step, shared, state)
        else:
            checkpoints.save(self.options.folder, self.step, shared | state, None)

    def train_step(self) -> dict[str, float]:
        """Run one optimizer step, and return its `report`."""
        self.advance()
        return self.report()

    def advance(self) -> None:
        """Run one optimizer step. On an accelerator all of it is queued, and the host does not wait."""
        options = self.options
        self.rate = options.lr * min(1.0, (self.step + 1) / max(options.warmup, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(self.batches(self.step), start=1):
            last = number == options.accumulation  # gradients accumulate on each rank until then
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.loss_of(batch) / options.accumulation
                loss.backward()
            total += loss.detach()
        self.loss, self.norm = total, nn.utils.clip_grad_norm_(self.trained, options.clip or float("inf"))
        self.optimizer.step()
        self.step += 1

    def report(self) -> dict[str, float]:
        """Return the loss of the global batch in the last step, the norm of its gradient, and the learning rate.

        Every rank calls it, because the loss is averaged over ranks. The same all-reduce says whether a rank was asked
        to end.
        """
        shared = torch.stack([self.loss, self.loss.new_full((), float(self.preemption.requested.is_set()))])
        dist.all_reduce(shared)
        total, requested = shared.tolist()
        self.ending = requested > 0
        return {"loss": float(total / self.world), "gradient_norm": float(self.norm), "lr": self.rate}

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens, or of images, in a global batch."""
        examples: int = self.world * self.options.batch * self.options.accumulation
        return examples * self.source.tokens

    @property
    def payload(self) -> int:
        """Number of bytes of gradients that a step averages."""
        return int(sum(p.numel() * p.element_size() for p in self.trained))


def train(trainer: Trainer, metrics: Metrics | None, progress: Any) -> None:
    """Train to the last step; write metrics (on rank 0), checkpoints, and a trace of some steps if options ask for it.

    ``progress``: a bar of tqdm, or None. The seconds of a line are those of one step: the mean since the previous line,
    timed on the device. If a rank is asked to end, all ranks save after the report in which they learn of it, and stop.
    """
    options = trainer.options
    trainer.preemption.training = True
    with _trace(trainer) as traced:
        while trainer.step < options.steps:
            step = trainer.step  # the next line of metrics or checkpoint comes after ``count`` steps
            intervals = filter(None, (options.report_every, options.save_every))
            count = min(options.steps - step, *(every - step % every for every in intervals))
            begun = moment(trainer.device)
            for remaining in reversed(range(count)):
                trainer.advance()
                if remaining:
                    traced()
            values = trainer.report()
            ended = moment(trainer.device)
            now(trainer.device)
            traced()
            seconds = begun.until(ended) / count
            if metrics is not None:
                rate = trainer.tokens_per_step / seconds
                metrics.append(
                    step=trainer.step, steps=count, seconds=seconds, tokens_per_second=rate,
                    memory=peak_memory(trainer.device), **values,
                )  # fmt: skip
            if progress is not None:
                progress.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
                progress.update(count)
            if trainer.ending:
                trainer.preemption.acknowledged.set()
                trainer.save()
                break
            if trainer.step == options.steps or (options.save_every and trainer.step % options.save_every == 0):
                trainer.save()
    trainer.preemption.training = False


@contextlib.contextmanager
def _trace(trainer: Trainer) -> Iterator[Any]:
    """Yield a function to call after each step; it writes a trace of ``options.profile`` steps for this rank."""
    if not trainer.options.profile:
        yield lambda: None
        return
    path = trainer.options.folder / f"trace-rank{trainer.rank}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=TRACE_AFTER - 1, warmup=1, active=trainer.options.profile, repeat=1)
    write = torch.profiler.profile(schedule=schedule, on_trace_ready=lambda p: p.export_chrome_trace(str(path)))
    with write as profiler:
        yield profiler.step


def bucket_limits(options: Options) -> tuple[int, int | None]:
    """Return the caps of a bucket and of the first bucket in bytes, as arguments of `dpbook.overlap.plan`."""
    if options.strategy in WRAPPERS:
        return 0, None  # a message per tensor
    cap = max(1, round(options.cap * MIB))
    return cap, None if options.strategy == "torch" else min(cap, MIB)


def _wrap(module: nn.Module, options: Options, world: int) -> nn.Module:
    schedule = options.schedule(world)
    all_reduce = None if schedule is None else over(schedule, dist.new_group(timeout=TIMEOUT, backend=own_device()[1]))
    if options.strategy in WRAPPERS:
        return WRAPPERS[options.strategy](module, all_reduce=all_reduce)
    cap, first = bucket_limits(options)
    if options.strategy != "torch":
        return BucketedDDP(module, cap=cap, first=first, all_reduce=all_reduce)
    wrapped = DistributedDataParallel(module, bucket_cap_mb=cap / MIB, gradient_as_bucket_view=True)
    if all_reduce is not None:
        wrapped.register_comm_hook(None, all_reduce.hook)
    return wrapped
