"""Forwards and backwards of the script in its journal: random state, examples, losses, the wrapper's flags."""

import functools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer

from dpbook.ddp import tensors_in
from dpbook.runs.watching.calls import GatheredCopies, Loaders
from dpbook.runs.watching.coupling import describe_coupling, mark_hooks
from dpbook.runs.watching.hashing import digests, is_sharded, random_state, rows
from dpbook.runs.watching.hooks import TrainingHooks, TrainingListener
from dpbook.runs.watching.journal import Recorder, place
from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.loss_graph import Reduction, nodes, reductions

_MAX_TENSORS = 8
_LOOKED_AT = 3
"""Gradients of a module that are looked at to see whether they have been set to zero."""
_COMPILED = "_orig_mod."
"""Prefix that torch.compile adds to the names in a module."""
_KEPT_STEPS = 10
"""Steps of optimizers after which a forward that no backward has used is forgotten: a critic may make five in a row."""


class _Forward(NamedTuple):
    """A forward by number, its nodes in autograd's numbering (``first`` to before ``end``), and the steps before it."""

    number: int
    first: int
    end: int
    steps: int


class PassRecorder(TrainingListener):
    """Records every forward in training mode and every backward."""

    def __init__(
        self, recorder: Recorder, hooks: TrainingHooks, gradients: LocalGradients, copies: GatheredCopies
    ) -> None:
        self._recorder, self._hooks, self._gradients, self._copies = recorder, hooks, gradients, copies
        self._loaders = Loaders(recorder)
        self._begun: dict[str, Any] | None = None
        self._batch = self._backwards = 0
        self._leaves_gradients = False  # whether the latest backward did: a script may keep them elsewhere
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._forward: dict[str, Any] = {"object": None, "module": None, "sync": None, "part": None}  # the latest one
        self._lines: dict[str, str] = {}
        self._losses: dict[Any, tuple[str, bool | None]] = {}
        self._drawn = self._losses_of_update = 0
        self._forwards = self._first_node = self._steps = 0
        self._unused: list[_Forward] = []
        self._parts: dict[int, set[int]] = {}  # offsets of an update's inputs, by the storage that they are part of
        hooks.listeners.append(self)
        recorder.replace(torch.autograd, "grad", self._watch_grad)
        if gradients.enabled:
            recorder.replace(torch.Tensor, "register_hook", mark_hooks)

    def forward_begins(self, module: nn.Module, arguments: list[Any]) -> None:
        self._begun = None
        if not self._recorder.active or not module.training:
            return
        with self._recorder.watching():
            tensors = list(tensors_in(arguments))[:_MAX_TENSORS]
            self._forwards += 1
            self._begun = {
                "number": self._forwards,
                "random": random_state(_device(module)),
                "loader": self._loaders.current.get("loader"),
                "object": self._loaders.current.get("object"),
                "batch": self._loaders.position,
                "rows": rows(tensors),
                "part": _part_of_storage(tensors),
                "buffers": digests({name.replace(_COMPILED, ""): each for name, each in module.named_buffers()}),
                "sync": self._hooks.sync(),
                "infinite": _infinite(tensors),
                "batch_norm": any(map(_normalizes_batch, module.modules())),
                "module": id(module),
                "place": place(),
            }
            self._first_node = _next_node()

    def forward_ends(self, module: nn.Module) -> None:
        state, self._begun = self._begun, None
        if state is not None:
            with self._recorder.watching():
                self._unused.append(_Forward(state["number"], self._first_node, _next_node(), self._steps))
                drawn = random_state(_device(module)) != state["random"]
                self._recorder.note("forward", drawn=drawn, wrapped=self._hooks.through_wrapper, **state)
                self._batch, self._backwards = len(state["rows"]), 0
                self._forward = state
                self._modules.add(module)

    def backward_begins(self, tensors: Any, grad_tensors: Any) -> None:
        if self._recorder.active:
            with self._recorder.watching():
                self._note_backward([tensors] if isinstance(tensors, torch.Tensor) else list(tensors), grad_tensors)

    def backward_ends(self) -> None:
        with self._recorder.watching():
            self._gradients.end()
            parameters = (each for module in self._modules for each in module.parameters())
            self._leaves_gradients = any(each.grad is not None for each in parameters)

    def _note_backward(self, roots: list[torch.Tensor], grad_tensors: Any) -> None:
        plain = len(roots) == 1 and roots[0].numel() == 1 and grad_tensors is None
        losses = reductions(roots[0]) if plain else None
        self._note_used(roots)
        source, sync = place(), self._hooks.sync()
        if self._begun is not None:  # inside the forward, as in a Lightning module that calls manual_backward
            self._begun["sync"] = sync
        nth, self._backwards = self._backwards, self._backwards + 1
        line = f"{source[0]}:{source[1]}" if source else ""
        if losses and not nth:
            line = self._line_of_loss(line, losses)
        line = f"{line} {nth}" if nth else line
        self._gradients.begin(losses, line)
        self._recorder.note(
            "backward",
            losses=None if losses is None else [asdict(each) for each in losses],
            value=float(roots[0].detach()) if plain else None,
            sync=sync,
            line=line,
            cleared=self._leaves_gradients and all(map(_has_no_gradient, self._modules)),
            gathered=self._copies.used_by(roots[0]),
            coupled=describe_coupling(roots[0], self._batch) if self._gradients.enabled else "",
            place=source,
        )

    def _watch_grad(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(grad)
        def watched(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = inputs if isinstance(inputs, torch.Tensor | tuple | list) else tuple(inputs)  # `m.parameters()`
            # a gradient with respect to an input, as of a gradient penalty, trains nothing by itself
            if self._recorder.active and any(isinstance(each, nn.Parameter) for each in tensors_in(inputs)):
                with self._recorder.watching():
                    self._note_used(list(tensors_in(outputs)))
            return grad(outputs, inputs, *args, **kwargs)

        return watched

    def _note_used(self, roots: Sequence[torch.Tensor]) -> None:
        """Note the forwards with a node in the graph of ``roots``: autograd numbers the nodes of a thread in order."""
        waiting = [each for each in self._unused if each.steps > self._steps - _KEPT_STEPS]
        used = [self._begun["number"]] if self._begun else []  # inside the forward, as Lightning's manual_backward
        graph = (node._sequence_nr() for root in roots for node in nodes(root))
        while waiting and (node := next(graph, None)) is not None:
            index = bisect_right(waiting, node, key=attrgetter("first")) - 1
            if index >= 0 and node < waiting[index].end:
                used.append(waiting.pop(index).number)
        self._unused = waiting
        self._recorder.note("used", forwards=used)

    def step_begins(self, optimizer: Optimizer) -> None:
        """Start counting batches, losses and backwards for the next update, which may have no forward that is seen."""
        self._drawn, self._losses_of_update, self._backwards = self._loaders.batches, 0, 0
        self._parts.clear()
        self._steps += 1

    def _line_of_loss(self, line: str, losses: Sequence[Reduction]) -> str:
        """Return the line that stands for the loss: that of an `if` with `no_sync` for its `else`, too.

        Two lines have micro-batches of one loss if the same loader and module made them in the same way, one alone is
        synced, and there are at least as many batches as losses (of two losses of one batch there are fewer), or their
        inputs are two parts of one batch.
        """
        self._losses_of_update += 1
        storage, offset = self._forward["part"] or (0, 0)
        offsets = self._parts.setdefault(storage, set())
        offsets.add(offset)
        loader, module, sync = (self._forward[name] for name in ("object", "module", "sync"))
        loss = (loader, module, *((each.node, each.mean) for each in losses))
        first, synced = self._losses.setdefault(loss, (line, sync))
        if line not in self._lines:
            enough = self._losses_of_update <= self._loaders.batches - self._drawn
            one = loader is not None and (enough or len(offsets) > 1) and sync is not synced
            self._lines[line] = first if one else line
        return self._lines[line]


def _part_of_storage(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Return the storage of a forward's first input and where it begins there; None if it is no slice of a batch."""
    first: Any = next(iter(tensors), None)
    if type(first) is torch.Tensor and first.layout == torch.strided and first.is_contiguous():
        storage = first.untyped_storage()
        if storage.nbytes() > first.nbytes:
            return storage.data_ptr(), first.storage_offset()
    return None


def _next_node() -> int:
    """Return the number of a new node: those made later have higher ones."""
    with torch.enable_grad():
        return int(torch.ones((), requires_grad=True).neg().grad_fn._sequence_nr())


def _device(module: nn.Module) -> torch.device:
    return next((each.device for each in module.parameters()), torch.device("cpu"))


def _infinite(tensors: Sequence[torch.Tensor]) -> str:
    """Return in words which of a forward's inputs is the first with a NaN or an infinity, or ""."""
    for number, each in enumerate(tensors, 1):
        if each.is_floating_point() and each.layout == torch.strided and not bool(torch.isfinite(each).all()):
            value = "a NaN" if bool(each.isnan().any()) else "an infinity"
            return f"input {number}, of shape {tuple(each.shape)}, has {value}"
    return ""


def _has_no_gradient(module: nn.Module) -> bool:
    """Whether all gradients of a module are missing or, as far as the first ones show, zero.

    A sharding wrapper keeps gradients elsewhere while it does not average them: then it is not known.
    """
    if any(is_sharded(each) for each in module.parameters()):
        return False
    gradients = (each.grad for each in module.parameters() if each.grad is not None)
    return not any(bool(each.any()) for each in islice(gradients, _LOOKED_AT))


def _normalizes_batch(module: nn.Module) -> bool:
    """Whether it takes mean and variance over the examples of its own rank alone."""
    over_batch = isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    return over_batch and module.training
