"""Moments of each update: forward and backward begin, each gradient is ready, the optimizer steps.

The communication is the script's own, or goes over an emulated link.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim.optimizer import Optimizer

from dpbook.collectives import Link
from dpbook.ddp import BucketedDDP, SlowLink, specification, tensors_in
from dpbook.overlap import CAP, FIRST_CAP
from dpbook.ranks import DeviceMoment, device_name, moment, peak_memory
from dpbook.runs.watching.hashing import is_sharded
from dpbook.runs.watching.hooks import Owners, TrainingHooks, TrainingListener, parameters_of
from dpbook.runs.watching.journal import MOMENTS_FORMAT, MomentOptions, Recorder
from dpbook.runs.watching.step_spans import CommunicationSpans, LoaderSpans, OpenSpan, StepSpans


def units(root: nn.Module) -> list[str]:
    """Return the names of the modules that sharding would gather as one, such as a transformer's blocks.

    They are the members of the outermost `ModuleList` and `Sequential` modules, or else the children of ``root``.
    Modules without parameters are left out.
    """

    def children(module: nn.Module) -> list[tuple[str, nn.Module]]:
        return [(name, child) for name, child in module.named_children() if any(True for _ in child.parameters())]

    def members(module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in children(module):
            if isinstance(module, nn.ModuleList | nn.Sequential):
                yield prefix + name
            else:
                yield from members(child, f"{prefix}{name}.")

    return list(members(root, "")) or [name for name, _ in children(root)]


# The annotations must not be deferred: torch compares those of a communication hook with its own types.
Future: TypeAlias = torch.futures.Future[torch.Tensor]


class BucketHooks:
    """Communication hooks on the DDP wrappers of a script, so that the time of each bucket is seen.

    Attributes:
        emulating: whether the link is emulated in the current update; without a link it has no effect.
    """

    def __init__(self, hooks: TrainingHooks, communication: CommunicationSpans, link: Link | None) -> None:
        self.emulating = False
        self._hooks, self._communication, self._link = hooks, communication, link
        self._hooked: set[int] = set()

    @property
    def wrappers(self) -> list[DistributedDataParallel]:
        """Wrappers that the script created, of torch's own class."""
        return [each for each in self._hooks.wrappers.values() if isinstance(each, DistributedDataParallel)]

    @property
    def own_hook(self) -> bool:
        """Whether the script registered a communication hook of its own."""
        return any(wrapper._comm_hooks and id(wrapper) not in self._hooked for wrapper in self.wrappers)

    def prepare(self) -> None:
        """Register hooks before a backward, when a script has already registered its own."""
        for wrapper in self.wrappers:
            several = dist.get_world_size(wrapper.process_group) > 1
            if several and id(wrapper) not in self._hooked and not wrapper._comm_hooks:
                wrapper.register_comm_hook(None, self._hook(wrapper.process_group))
                self._hooked.add(id(wrapper))

    def _hook(self, group: dist.ProcessGroup) -> Callable[[Any, dist.GradBucket], Future]:
        slow = SlowLink(self._link, group) if self._link else None
        scale = 1 / dist.get_world_size(group)  # a product, as DDP without a hook: a quotient has other bits

        def carry(state: Any, bucket: dist.GradBucket) -> Future:
            if slow and self.emulating:
                return slow.hook(state, bucket)
            work = self._communication.sum_bucket(bucket.buffer().mul_(scale), group)
            return work.get_future().then(lambda summed: summed.value()[0])

        return carry


@dataclass
class UpdateRecord:
    """Update of a rank before its moments are written; the package's docstring lists the fields.

    ``begun`` is the end of the update before, or the creation of the first optimizer; ``n_spans`` and ``loaded`` are
    those until the last step. Where inputs are no token ids, ``tokens`` is 0.
    """

    detailed: bool = True
    marks: list[tuple[str | int, DeviceMoment]] = field(default_factory=list)
    synced: list[bool] = field(default_factory=list)
    models: set[int] = field(default_factory=set)
    stepped: list[int] = field(default_factory=list)
    examples: int = 0
    tokens: int = 0
    n_spans: int = 0
    loaded: int = 0
    number: int = 0
    begun: DeviceMoment = field(default_factory=DeviceMoment)
    spans: list[OpenSpan] = field(default_factory=list)
    workers: int | None = None
    emulated: bool = False
    own_hook: bool = False

    def last_events(self) -> Iterator[torch.Event]:
        """Yield the events after which a device has reached all moments; collectives may end on another stream."""
        ends = [span.ended for span in self.spans]
        yield from (at.event for at in (self.marks[-1][1], *ends) if at and at.event is not None)

    def to_data(self) -> dict[str, Any]:
        """Return the fields of the journal's event; the device must have reached all moments."""
        since, end = self.begun.until, self.marks[-1][1]
        plain = {name: value for name, value in vars(self).items() if name not in ("begun", "n_spans")}
        return plain | {
            "models": len(self.models),
            "marks": [("begun", 0.0), *((kind, since(at)) for kind, at in self.marks)],
            "spans": [
                (span.kind, since(span.begun), since(span.ended or end), span.name, span.nbytes, span.place)
                for span in self.spans
            ],
        }


TOKEN_DTYPES = (torch.int64, torch.int32)
SAMPLED_IN_A_ROW = 20
DETAILED_UPDATES = 25
"""Updates in which an accelerator records an event for every gradient; in later ones, for the last gradient alone."""


def bucket_caps(wrapper: nn.Module | None) -> tuple[int | None, int | None]:
    """Return the caps in bytes of a wrapper's buckets and of its first one; None for torch's default."""
    if isinstance(wrapper, BucketedDDP):
        return (None, None) if (wrapper.cap, wrapper.first) == (CAP, FIRST_CAP) else (wrapper.cap, wrapper.first)
    if not isinstance(wrapper, DistributedDataParallel) or wrapper.bucket_bytes_cap_default:
        return None, None
    return wrapper.bucket_bytes_cap, None


class UpdateMarks(TrainingListener):
    """Records the moments of the updates of a rank.

    An update ends with the last step before the next forward or backward. Its moments are written when a device has
    reached them, for which the host does not wait. With the option ``check`` the link is emulated in every second
    update. With ``sampled``, ever fewer updates are recorded: the first 200, then 20 of every 200, from 2,000 on 20 of
    every 2,000, and so on.
    """

    def __init__(self, recorder: Recorder, world: int, options: MomentOptions) -> None:
        self._recorder, self._hooks, self._spans = recorder, TrainingHooks(recorder), StepSpans()
        self._communication = CommunicationSpans(recorder, self._hooks, self._spans)
        self._loader = LoaderSpans(recorder, self._spans)
        for name in ("clip_grad_norm_", "clip_grad_value_"):  # counted as the optimizer's
            recorder.replace_everywhere((clip_grad, nn.utils), name, self._spans.during("optimizer"))
        link = Link(*options.link) if options.link else None
        self._buckets = BucketHooks(self._hooks, self._communication, link)
        self._world, self._check, self._sampled = world, options.check, options.sampled
        self._known: set[int] = set()  # ids of the parameters in `_tensors`
        self._tensors: list[dict[str, Any]] = []
        self._roots: list[nn.Module] = []
        self._optimizers: dict[int, int] = {}
        self._optimizer_names: list[str] = []
        self._updates = 0
        self._record = UpdateRecord()
        self._previous_end: DeviceMoment | None = None
        self._ready_gradients = self._expected_gradients = 0
        self._open: dict[str, OpenSpan | None] = {}
        self._steps: list[OpenSpan | None] = []
        self._pending: deque[UpdateRecord] = deque()
        self._described = 0
        recorder.on_close(self._finish)
        self._hooks.listeners.append(self)

    def optimizer_created(self, optimizer: Optimizer, owners: Owners) -> None:
        """Mark the moment at which each of its gradients is ready, from now on."""
        parameters = parameters_of(optimizer)
        self._optimizer_names.append(type(optimizer).__name__)
        self._roots += [root for root in owners.roots if not any(root is known for known in self._roots)]
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._known:
                ready = functools.partial(self._ready, len(self._tensors))
                self._recorder.on_close(parameter.register_post_accumulate_grad_hook(ready).remove)
                self._tensors.append(asdict(specification(owners.names[id(parameter)], parameter)))
                self._known.add(id(parameter))
        if self._previous_end is None and parameters:
            self._spans.begin(parameters[0].device)
            self._previous_end = moment(self._spans.device)

    def _mark(self, kind: str | int, at: DeviceMoment | None = None) -> None:
        """Mark the moment ``at``, by default this one: on an accelerator each is an event."""
        if self._spans.active:
            self._record.marks.append((kind, at or moment(self._spans.device)))

    def _ready(self, number: int, parameter: torch.Tensor) -> None:
        self._ready_gradients += 1
        if self._record.detailed or self._ready_gradients == self._expected_gradients:
            self._mark(number)

    def forward_begins(self, module: nn.Module, arguments: list[Any]) -> None:
        self._begin("forward")
        if self._spans.active:
            self._record.models.add(id(module))
            first = next(tensors_in(arguments), None)
            if first is not None and first.dim():
                self._record.examples += len(first)
                self._record.tokens += first.numel() if first.dtype in TOKEN_DTYPES and first.dim() == 2 else 0

    def forward_ends(self, module: nn.Module) -> None:
        self._spans.close(self._open.pop("forward", None))

    def backward_begins(self, tensors: Any, grad_tensors: Any) -> None:
        if self._tensors:
            self._buckets.prepare()
            self._begin("backward")
            self._record.synced.append(bool(self._hooks.sync()))
            self._ready_gradients = 0

    def backward_ends(self) -> None:
        if self._tensors:
            span = self._open.pop("backward", None)
            self._spans.close(span)
            self._mark("returned", span.ended if span else None)
            if self._record.detailed:
                self._expected_gradients = self._ready_gradients

    def step_begins(self, optimizer: Optimizer) -> None:
        self._steps.append(self._spans.open("optimizer"))

    def step_ends(self, optimizer: Optimizer) -> None:
        """Mark it; it may be the last one of the update, and what follows then belongs to the next one."""
        span = self._steps.pop() if self._steps else None
        self._spans.close(span)
        self._record.stepped.append(self._optimizers.setdefault(id(optimizer), len(self._optimizers)))
        self._record.marks.append(("stepped", (span and span.ended) or moment(self._spans.device)))
        self._record.n_spans, self._record.loaded = len(self._spans.spans), self._loader.examples
        self._spans.active = self._spans.active or self._is_recorded(self._updates + 1)

    def _is_recorded(self, update: int) -> bool:
        """Return True for all updates, or if they are sampled for the first 200 and 20 in a row of ever more later."""
        block = update // SAMPLED_IN_A_ROW
        return not self._sampled or block % 10 ** (len(str(block)) - 1) == 0

    def _begin(self, kind: str) -> None:
        if self._record.stepped:
            self._end()
            if 0 < self._recorder.options.updates <= self._updates:
                self._recorder.finish(self._world)
        span = self._open[kind] = self._spans.open(kind)
        self._mark(kind, span.begun if span else None)

    def _end(self) -> None:
        """End the update at its last step."""
        record, spans = self._record, self._spans.spans
        assert self._previous_end is not None
        if self._is_recorded(self._updates):
            record.number, record.begun, record.spans = self._updates, self._previous_end, spans[: record.n_spans]
            record.emulated, record.workers = self._buckets.emulating, self._loader.workers
            record.own_hook = self._buckets.own_hook
            self._pending.append(record)
        self._previous_end = record.marks[-1][1]
        self._updates += 1
        self._describe()
        self._write()
        on_cpu = self._spans.device.type == "cpu"
        self._record = UpdateRecord(detailed=on_cpu or not self._sampled or self._updates < DETAILED_UPDATES)
        self._spans.spans, self._spans.active = spans[record.n_spans :], self._is_recorded(self._updates)
        self._loader.examples -= record.loaded
        self._communication.forget()
        self._buckets.emulating = self._check and self._updates % 2 == 1

    def _write(self, *, wait: bool = False) -> None:
        """Write the updates that the device has finished; with ``wait`` all of them."""
        while self._pending:
            for event in self._pending[0].last_events():
                if not event.query():
                    if not wait:
                        return
                    event.synchronize()
            with self._recorder.watching():
                self._recorder.note("update", **self._pending[0].to_data(), memory=peak_memory(self._spans.device))
            self._pending.popleft()

    def _describe(self) -> None:
        """Write the model anew whenever there are more tensors, so that a rank that is killed has left it."""
        if self._described == len(self._tensors):
            return
        self._described = len(self._tensors)
        wrapper = next(iter(self._hooks.wrappers.values()), None)
        by_torch = isinstance(wrapper, DistributedDataParallel)
        cap, first = bucket_caps(wrapper)
        self._recorder.note(
            "model",
            format=MOMENTS_FORMAT,
            device=self._spans.device.type,
            name=device_name(self._spans.device),
            world=self._world,
            tensors=self._tensors,
            units=[name for root in self._roots for name in units(root)],
            frozen={n: p.numel() for root in self._roots for n, p in root.named_parameters() if not p.requires_grad},
            sharded=any(is_sharded(p) for root in self._roots for p in root.parameters()),
            wrapped=by_torch,
            wrapper=type(wrapper).__name__ if wrapper is not None else None,
            bucketed=isinstance(wrapper, BucketedDDP) or (by_torch and not self._buckets.own_hook),
            own_hook=self._buckets.own_hook,
            buffers=sum(1 for root in self._roots for _ in root.buffers()),
            cap=cap,
            first=first,
            bucket_view=bool(getattr(wrapper, "gradient_as_bucket_view", True)),
            optimizers=self._optimizer_names,
        )

    def _finish(self) -> None:
        if self._record.stepped:
            self._end()
        self._write(wait=True)
