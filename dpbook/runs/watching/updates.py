"""Hooks on optimizers: hashes of the gradients before a step, and of the parameters and state after it."""

import functools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import Optimizer

from dpbook.runs.watching.hashing import digests, is_sharded, local_part
from dpbook.runs.watching.hooks import (
    Owners,
    TrainingHooks,
    TrainingListener,
    averages,
    ddp_all_reduces,
    has_own_data,
    is_fully_sharded,
    parameters_of,
    replicas_of,
)
from dpbook.runs.watching.journal import FINAL_PARAMETERS, Recorder, place
from dpbook.runs.watching.local_gradients import LocalGradients


class LocalGradientSums:
    """Sum of the elements of each local gradient, before averaging: a rank's own, and not finite if an element is not.

    Sharded parameters have none.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sums: dict[int, torch.Tensor] = {}
        self._hooked: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of an optimizer's trained parameters from now on."""
        known = {id(each) for each in self._hooked}
        for parameter in parameters:
            if parameter.requires_grad and not is_sharded(parameter) and id(parameter) not in known:
                add = functools.partial(self._add, id(parameter))
                self._recorder.on_close(parameter.register_hook(add).remove)
                self._hooked.add(parameter)

    def _add(self, number: int, gradient: torch.Tensor | None) -> None:
        # DDP with find_unused_parameters gives None for a parameter of an output that the loss does not use
        if gradient is not None and self._recorder.active and gradient.layout == torch.strided:
            self._sums[number] = self._sums.get(number, 0) + gradient.detach().sum(dtype=torch.float32)

    def removed(self, named: Mapping[str, torch.Tensor]) -> list[str]:
        """Return the parameters that got a gradient since the last call of `take`, and have none any more."""
        return [name for name, each in named.items() if each.grad is None and id(each) in self._sums]

    def take(self, named: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the sums of the parameters that got a gradient since the last call, and reset them."""
        known = {name: self._sums.pop(id(each)) for name, each in named.items() if id(each) in self._sums}
        totals = torch.stack([total.cpu() for total in known.values()]).tolist() if known else []
        return dict(zip(known, totals, strict=True))


_REPLAY_UPDATES = 5
"""Updates after the replayed one, in which other optimizers may still make theirs."""


@dataclass
class WatchedOptimizer:
    """An optimizer (kept alive, so that no id is used twice), its number, its parameters by name, and its updates.

    ``frozen`` are the parameters of the same modules that are not trained. Those of which each rank has a part are left
    out, and those that a forward changes or DDP ignores, which may be a rank's own.
    """

    optimizer: Optimizer
    number: int
    named: dict[str, torch.Tensor]
    frozen: dict[str, torch.Tensor]
    updates: int = 0


class Updates(TrainingListener):
    """Records every optimizer of the process."""

    def __init__(self, recorder: Recorder, hooks: TrainingHooks, gradients: LocalGradients, world: int) -> None:
        self._recorder, self._hooks, self._gradients, self._world = recorder, hooks, gradients, world
        self._local_sums = LocalGradientSums(recorder)
        self._watched: dict[int, WatchedOptimizer] = {}
        self._created = self._saved = 0
        self._versions: list[tuple[torch.Tensor, int]] = []  # of frozen parameters, as a forward begins
        self._state_of_forwards: set[int] = set()  # frozen parameters that a forward has changed
        self._sent: int | None = None  # collectives before the last step; None after the next pass has begun
        self._sent_after: set[int] = set()  # optimizers after whose last step the script has sent something
        hooks.listeners.append(self)

    def optimizer_created(self, optimizer: Optimizer, owners: Owners) -> None:
        self._created += 1
        self._gradients.follow(parameters_of(optimizer))
        self._local_sums.follow(parameters_of(optimizer))

    def forward_begins(self, module: nn.Module, arguments: list[Any]) -> None:
        self._look_for_collectives()
        with self._recorder.watching():
            # inference tensors have no version
            self._versions = [(each, each._version) for each in _frozen(module) if not each.is_inference()]

    def forward_ends(self, module: nn.Module) -> None:
        with self._recorder.watching():
            self._state_of_forwards |= {id(each) for each, version in self._versions if each._version != version}
            self._versions = []

    def backward_begins(self, tensors: Any, grad_tensors: Any) -> None:
        self._look_for_collectives()

    def _look_for_collectives(self) -> None:
        """Look whether the script has sent something since the last step: it may have been parameters."""
        if self._sent is not None and self._recorder.collectives > self._sent:
            self._sent_after = {each.number for each in self._watched.values()}
        self._sent = None

    def step_begins(self, optimizer: Optimizer) -> None:
        """Write the gradients with which the optimizer steps."""
        with self._recorder.watching():
            if id(optimizer) not in self._watched:
                self._register(optimizer)
            watched, options = self._watched[id(optimizer)], self._recorder.options
            watched.updates += 1
            number, update, named = watched.number, watched.updates, watched.named
            if options.saving and update > options.updates > 0:
                self._recorder.finish(self._world)
            if not self._recorder.active:
                return
            gradients = {name: each.grad for name, each in named.items() if each.grad is not None}
            removed, own = self._local_sums.removed(named), self._local_sums.take(named)
            if update == options.replay:
                self._gradients.save(self._recorder.folder, self._recorder.rank, number, named)
                self._saved += 1
            if self._gradients.enabled and (self._saved == self._created or update > options.replay + _REPLAY_UPDATES):
                self._gradients.stop()
            self._recorder.note(
                "step",
                optimizer=number,
                update=update,
                gradients=digests(gradients),
                infinite=_infinite(gradients),
                removed=removed,
                own=hash(tuple(own.values())) if any(own.values()) else None,
                own_infinite=[name for name, total in own.items() if not math.isfinite(total)],
                missing=[name for name, each in named.items() if each.grad is None and each.requires_grad],
                rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
                before=digests(named) if update == 1 or number in self._sent_after else None,
                frozen=digests(watched.frozen) if update == 1 else None,
                state_before=self._state(optimizer) if update == 1 else None,
                place=place(),
            )
            self._sent_after.discard(number)

    def step_ends(self, optimizer: Optimizer) -> None:
        """Write the parameters after the step; end the script after its last update."""
        watched, options = self._watched[id(optimizer)], self._recorder.options
        number, update, named = watched.number, watched.updates, watched.named
        with self._recorder.watching():
            if self._recorder.active:
                wrappers = () if self._hooks.in_backward else self._hooks.wrappers.values()  # DDP is locked in backward
                self._recorder.note(
                    "stepped",
                    optimizer=number,
                    update=update,
                    parameters=digests(named),
                    state=self._state(optimizer),
                    sent=next(filter(None, map(ddp_all_reduces, wrappers)), None),
                )
            if update == options.keep:
                arrays = {name: local_part(each).detach().double().cpu().numpy() for name, each in named.items()}
                np.savez(self._recorder.folder / FINAL_PARAMETERS.format(self._recorder.rank, number), **arrays)
            self._gradients.forget(list(named.values()))
        self._sent = self._recorder.collectives
        if number == 0:
            self._recorder.end_update(update)
        if update >= options.updates > 0 and not options.saving:
            self._recorder.finish(self._world)

    def _register(self, optimizer: Optimizer) -> None:
        parameters, number = parameters_of(optimizer), len(self._watched)
        self._local_sums.follow(parameters)
        modules = self._hooks.watch(optimizer)
        named = {modules.names[id(each)]: each for each in parameters}
        fixed = (each for root in modules.roots for each in _frozen(root) if id(each) not in self._state_of_forwards)
        frozen = {name: each for each in fixed if (name := modules.names[id(each)]) not in named}
        self._watched[id(optimizer)] = WatchedOptimizer(optimizer, number, named, frozen)
        averaging = [wrapper for wrapper in modules.wrappers if averages(wrapper)]
        wrapped = {id(each) for wrapper in averaging for each in wrapper.parameters()}
        sharded = [name for name, each in named.items() if is_sharded(each)]
        own_data = not sharded or (
            any(map(is_fully_sharded, modules.roots)) and all(has_own_data(each, self._world) for each in parameters)
        )
        hooks: list[Any] = [hook for wrapper in averaging for hook, _ in getattr(wrapper, "_comm_hooks", ())]
        self._recorder.note(
            "optimizer",
            optimizer=number,
            id=id(optimizer),
            name=type(optimizer).__name__,
            names=list(named),
            group=dist.get_world_size() if dist.is_initialized() else 0,
            roots=[id(root) for root in modules.roots],
            wrappers=sorted({type(wrapper).__name__ for wrapper in modules.wrappers}),
            comm_hooks=[getattr(hook, "__name__", type(hook).__name__) for hook in hooks],
            replicas=min(map(replicas_of, averaging), default=self._world if own_data else 1),
            sharded=sharded,
            devices=sorted({str(each.device) for each in parameters}),
            unwrapped=[name for name, each in named.items() if id(each) not in wrapped and each.requires_grad],
        )

    def _state(self, optimizer: Optimizer) -> dict[str, str] | None:
        if not self._recorder.options.state:
            return None
        tensors = {
            f"{place}.{key}": value
            for place, parameter in enumerate(parameters_of(optimizer))
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
        return digests(tensors)


def _frozen(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that are not trained, of which each rank has a whole replica that DDP has made equal."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    named = ((name, each) for name, each in module.named_parameters() if name not in ignored)
    return [each for _, each in named if not each.requires_grad and not is_sharded(each)]


def _infinite(gradients: dict[str, torch.Tensor]) -> list[str]:
    """Return the gradients with a NaN or an infinity."""
    dense = {name: local_part(each).detach() for name, each in gradients.items() if each.layout == torch.strided}
    if not dense:
        return []
    norms = torch.stack([norm.to("cpu", torch.float64) for norm in torch._foreach_norm(list(dense.values()))])
    suspects = [name for name, finite in zip(dense, torch.isfinite(norms).tolist(), strict=True) if not finite]
    # a finite gradient may have an infinite norm
    return [name for name in suspects if not bool(torch.isfinite(dense[name]).all())]
