"""Which of a rank's own gradients have a NaN or an infinity: after the averaging all ranks have them."""

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch

from dpbook.runs.watching.recorder import Recorder


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
