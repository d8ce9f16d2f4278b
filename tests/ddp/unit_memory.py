"""Measured bytes of a model's units, in the form that the simulated sharded step reads."""

import gc
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.profiler import profile, record_function, supported_activities

from dpbook.core import InvalidArgument
from dpbook.ddp.reducer import tensors_in
from dpbook.overlap import ROOT

MARK = "dpbook mark"


def measure_memory(
    module: nn.Module, loss: Callable[[], torch.Tensor], units: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Run forward and backward of ``module`` on this rank alone, twice, and return the bytes of its ``units``.

    They are what `overlap.units_of` takes: ``units_of(layers, names, **measure_memory(module, loss, names))``, by unit,
    with "root" for what is in none of them. "activations" are what a forward leaves for backward, its output with it;
    "inputs" are the tensors that the unit is called with; "scratch" is what backward needs beyond the activations of
    the units that it has not left: gradients of activations, and of one parameter at a time. Bytes are those that
    torch's profiler reports of the parameters' device. Gradients are left as they were.

    Args:
        module: not wrapped.
        loss: runs forward and returns the loss, a scalar.
        units: names of modules inside it.

    Raises `InvalidArgument` for a name of no module, and for a unit that the loss does not call.
    """
    inside = dict(module.named_modules())
    for name in units:
        if not name or name not in inside:
            raise InvalidArgument("units", name, "names of modules inside the one that is measured")
    kept = [(p, p.grad) for p in module.parameters()]
    try:
        with _Marks({name: inside[name] for name in units}) as marks, _without_gradients(module), _uncollected():
            for _ in range(2):  # in the first pass libraries take what they keep
                marks.clear()
                with profile(activities=supported_activities(), profile_memory=True) as profiler:
                    marks.set(ROOT, backward=False)
                    value = loss()
                    marks.set(ROOT, backward=True)
                    value.backward()
    finally:
        for p, gradient in kept:
            p.grad = gradient
    if missing := [name for name in units if name not in marks.inputs]:
        raise InvalidArgument("units", missing[0], "modules that the loss calls")
    stretches = list(_stretches(profiler, marks.names, next(module.parameters()).device.type))
    activations = _activations(stretches, [ROOT, *units])
    return {"activations": activations, "inputs": marks.inputs, "scratch": _scratch(stretches, activations)}


class _Stretch(NamedTuple):
    """From one mark to the next: the unit that computes, and the bytes that are there then."""

    unit: str
    backward: bool
    begin: int
    peak: int
    end: int


class _Marks:
    """Marks in the profiler's record where another of the ``units`` begins to compute; bytes of the units' inputs."""

    def __init__(self, units: dict[str, nn.Module]) -> None:
        self.units = units
        self.names: list[tuple[str, bool]] = []
        self.inputs: dict[str, int] = {}
        self._around = [ROOT]

    def clear(self) -> None:
        """Begin again."""
        self.names.clear()
        self._around = [ROOT]

    def set(self, unit: str, *, backward: bool) -> None:
        """From here on ``unit`` computes."""
        self.names.append((unit, backward))
        with record_function(MARK):
            pass

    def __enter__(self) -> "_Marks":
        self._hooks = [
            hook
            for name, unit in self.units.items()
            for hook in (
                unit.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True),
                unit.register_forward_hook(self._leave(name)),
            )
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(unit: nn.Module, args: Any, kwargs: Any) -> None:
            self.inputs[name] = sum(tensor.nbytes for tensor in tensors_in((args, kwargs)))
            self._around.append(name)
            self.set(name, backward=False)

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(unit: nn.Module, args: Any, output: Any) -> None:
            self._around.pop()
            self.set(self._around[-1], backward=False)
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: self.set(name, backward=True))

        return leave


@contextmanager
def _without_gradients(module: nn.Module) -> Iterator[None]:
    """Drop each parameter's gradient when it is there: where it is kept is another question."""

    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    trained = [p for p in module.parameters() if p.requires_grad]
    for p in trained:
        p.grad = None
    hooks = [p.register_post_accumulate_grad_hook(drop) for p in trained]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _uncollected() -> Iterator[None]:
    """No cyclic garbage is collected: what it gives back, such as a model of before, is not of this one."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _stretches(profiler: Any, names: Sequence[tuple[str, bool]], device: str) -> Iterator[_Stretch]:
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    changes = [e for e in events if e.name() == "[memory]" and e.device_type().name == device.upper()]
    allocated = [0, *accumulate(e.nbytes() for e in changes)]
    times = [e.start_ns() for e in changes]
    moments = [e.start_ns() for e in events if e.name() == MARK and e.device_type().name == "CPU"]
    places = [*(bisect(times, moment) for moment in moments), len(changes)]
    for (unit, backward), (first, last) in zip(names, pairwise(places), strict=True):
        yield _Stretch(unit, backward, allocated[first], max(allocated[first : last + 1]), allocated[last])


def _activations(stretches: Sequence[_Stretch], units: Sequence[str]) -> dict[str, int]:
    """Return the bytes that each unit's forward adds, without those that it gives back when it is over."""
    found = dict.fromkeys(units, 0)
    before = ROOT
    for at in stretches:
        if not at.backward:
            found[at.unit if at.end >= at.begin else before] += at.end - at.begin
            before = at.unit
    return {name: max(0, nbytes) for name, nbytes in found.items()}


def _scratch(stretches: Sequence[_Stretch], activations: dict[str, int]) -> dict[str, int]:
    """Return the bytes at the peak of each unit's backward, beyond the ``activations`` that it still needs."""
    found, remaining = dict.fromkeys(activations, 0), dict(activations)
    backward = [at for at in stretches if at.backward]
    for at, after in zip(backward, [*backward[1:], None], strict=True):
        found[at.unit] = max(found[at.unit], at.peak - stretches[0].begin - sum(remaining.values()))
        if at.unit != ROOT and (after is None or after.unit != at.unit):
            remaining[at.unit] = 0
    return found
