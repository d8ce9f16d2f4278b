"""Hooks on optimizers: hashes of the gradients that a step is given, and of the parameters and state that it leaves."""

import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dpbook.runs.watching.hashing import digests, local_part
from dpbook.runs.watching.journal import FINAL_PARAMETERS, Recorder, place
from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.modules import averages, owners, replicas_of, sent
from dpbook.runs.watching.passes import Forwards


class OwnSums:
    """Of each gradient its sum, before it is averaged: one number, which is none where the gradient has one.

    Of parameters that are spread over ranks nothing is known.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sums: dict[int, torch.Tensor] = {}
        self._hooked: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Those of an optimizer that are trained."""
        known = {id(each) for each in self._hooked}
        for parameter in parameters:
            if parameter.requires_grad and not hasattr(parameter, "to_local") and id(parameter) not in known:
                self._recorder.later(parameter.register_hook(self._hook(id(parameter))).remove)
                self._hooked.add(parameter)

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            if self._recorder.active and gradient.layout == torch.strided:
                total = gradient.detach().sum(dtype=torch.float32)
                self._sums[number] = self._sums[number] + total if number in self._sums else total

        return add

    def infinite(self, named: Mapping[str, torch.Tensor]) -> list[str]:
        """The parameters of which some gradient was not finite since this was asked; they begin anew."""
        known = {name: self._sums.pop(id(each)) for name, each in named.items() if id(each) in self._sums}
        if not known:
            return []
        finite = torch.isfinite(torch.stack([total.cpu() for total in known.values()]))
        return [name for name, good in zip(known, finite.tolist(), strict=True) if not good]


_LATE = 5
"""Updates for which a replay waits for the other optimizers."""


class Updates:
    """Watches every optimizer of the process."""

    def __init__(self, recorder: Recorder, forwards: Forwards, gradients: LocalGradients, world: int) -> None:
        self._recorder, self._forwards, self._gradients, self._world = recorder, forwards, gradients, world
        self._own = OwnSums(recorder)
        self._numbers: dict[int, int] = {}
        self._names: dict[int, dict[str, torch.Tensor]] = {}
        self._updates: dict[int, int] = {}
        self._made_ones = self._kept = 0
        self._optimizers: list[Optimizer] = []  # so that no id is used twice
        recorder.replace(Optimizer, "__init__", self._made)
        recorder.later(register_optimizer_step_pre_hook(self._before).remove)
        recorder.later(register_optimizer_step_post_hook(self._after).remove)

    def _made(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._made_ones += 1
            with self._recorder.watching():
                self._forwards.watch(owners(_parameters(optimizer)))
                self._gradients.follow(_parameters(optimizer))
                self._own.follow(_parameters(optimizer))

        return __init__

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with self._recorder.watching():
            number = self._numbers.get(id(optimizer))
            if number is None:
                number = self._meet(optimizer)
            update = self._updates[number] = self._updates[number] + 1
            wanted = self._recorder.wanted
            if wanted.saving and update > wanted.updates > 0:
                self._recorder.enough(self._world)
            if not self._recorder.active:
                return
            named = self._names[number]
            gradients = {name: each.grad for name, each in named.items() if each.grad is not None}
            if update == wanted.replay:
                self._gradients.keep(self._recorder.folder, self._recorder.rank, number, named)
                self._kept += 1
            if self._gradients.wanted and (self._kept == self._made_ones or update > wanted.replay + _LATE):
                self._gradients.stop()
            self._recorder.note(
                "step",
                optimizer=number,
                update=update,
                gradients=digests(gradients),
                infinite=_infinite(gradients),
                own_infinite=self._own.infinite(named),
                missing=[name for name, each in named.items() if each.grad is None and each.requires_grad],
                rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
                before=digests(named) if update == 1 else None,
                held=self._state(optimizer) if update == 1 else None,
                place=place(),
            )

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        number = self._numbers[id(optimizer)]
        update, wanted = self._updates[number], self._recorder.wanted
        with self._recorder.watching():
            if self._recorder.active:
                parameters = digests(self._names[number])
                self._recorder.note(
                    "stepped",
                    optimizer=number,
                    update=update,
                    parameters=parameters,
                    state=self._state(optimizer),
                    sent=next(filter(None, map(sent, self._forwards.wrappers.values())), None),
                )
            if update == wanted.keep:
                self._keep(number)
            self._gradients.forget(list(self._names[number].values()))
        if number == 0:
            self._recorder.end_update(update)
            self._recorder.begin_update(update + 1)
        if update >= wanted.updates > 0 and not wanted.saving:
            self._recorder.enough(self._world)

    def _meet(self, optimizer: Optimizer) -> int:
        number = self._numbers[id(optimizer)] = len(self._optimizers)
        self._optimizers.append(optimizer)
        self._updates[number] = 0
        parameters = _parameters(optimizer)
        self._own.follow(parameters)
        found = owners(parameters)
        self._forwards.watch(found)
        named = self._names[number] = {found.names[id(each)]: each for each in parameters}
        wrapped = {id(each) for wrapper in found.wrappers if averages(wrapper) for each in wrapper.parameters()}
        worlds = [replicas_of(wrapper) for wrapper in found.wrappers if averages(wrapper)]
        sharded = [name for name, each in named.items() if hasattr(each, "to_local")]
        self._recorder.note(
            "optimizer",
            optimizer=number,
            name=type(optimizer).__name__,
            names=list(named),
            group=dist.get_world_size() if dist.is_initialized() else 0,
            wrappers=sorted({type(wrapper).__name__ for wrapper in found.wrappers}),
            replicas=min(worlds, default=self._world),
            sharded=sharded,
            devices=sorted({str(each.device) for each in parameters}),
            unwrapped=[name for name, each in named.items() if id(each) not in wrapped and each.requires_grad],
        )  # fmt: skip
        return number

    def _state(self, optimizer: Optimizer) -> dict[str, str] | None:
        if not self._recorder.wanted.state:
            return None
        tensors = {
            f"{place}.{key}": value
            for place, parameter in enumerate(_parameters(optimizer))
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
        return digests(tensors)

    def _keep(self, number: int) -> None:
        arrays = {name: local_part(each).detach().double().cpu().numpy() for name, each in self._names[number].items()}
        np.savez(self._recorder.folder / FINAL_PARAMETERS.format(self._recorder.rank, number), **arrays)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))


def _infinite(gradients: dict[str, torch.Tensor]) -> list[str]:
    """The gradients with a NaN or an infinity."""
    dense = {name: local_part(each).detach() for name, each in gradients.items() if each.layout == torch.strided}
    if not dense:
        return []
    norms = torch.stack([norm.to("cpu", torch.float64) for norm in torch._foreach_norm(list(dense.values()))])
    suspects = [name for name, finite in zip(dense, torch.isfinite(norms).tolist(), strict=True) if not finite]
    return [name for name in suspects if not bool(torch.isfinite(dense[name]).all())]  # a norm may be too large
