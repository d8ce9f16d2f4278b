"""A rank's own gradients of one update, before they are averaged: what a replay needs of it.

Of each parameter four sums over the backwards of the update are kept: the gradients times what the loss was divided by
(``weighted``: the gradient of the plain sum over examples), the sizes of these terms (for the bound of rounding), the
gradients as they are (``plain``), and the last backward's alone (``last``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from dpbook.audit.recording.divisors import Reduced
from dpbook.audit.recording.digests import local_part

SUMS = ("weighted", "sizes", "plain", "last")
FILE = "replay-{}-{}.npz"
"""By rank and optimizer."""


@dataclass
class Sums:
    """Of one parameter, in float64."""

    weighted: torch.Tensor
    sizes: torch.Tensor
    plain: torch.Tensor
    last: torch.Tensor
    backward: int = field(default=0)

    @classmethod
    def zero(cls, parameter: torch.Tensor) -> "Sums":
        """Before any backward."""
        zeros = [torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device) for _ in SUMS]
        return cls(*zeros)


class LocalGradients:
    """Hooks on parameters, only while a replay is wanted. They come last, after the script's own."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._sums: dict[int, Sums] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._divisor = 1.0
        self._number = 0

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """The parameters of an optimizer."""
        if self.wanted:
            self._parameters.update({id(each): each for each in parameters if each.requires_grad})

    def begin(self, losses: list[Reduced] | None) -> None:
        """A backward of a loss with these divisors begins."""
        if not self.wanted:
            return
        self._number += 1
        self._divisor = losses[0].divisor if losses else 1.0
        if len(self._hooks) < len(self._parameters):
            self.forget_hooks()
            self._hooks = [each.register_hook(self._hook(each)) for each in self._parameters.values()]

    def _hook(self, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            if gradient.layout != torch.strided:
                gradient = gradient.to_dense()
            if id(parameter) not in self._sums or _fresh(parameter, self._sums[id(parameter)], self._number):
                self._sums[id(parameter)] = Sums.zero(parameter)
            sums, mine = self._sums[id(parameter)], gradient.detach().double()
            sums.weighted += mine * self._divisor
            sums.sizes += (mine * self._divisor).abs()
            sums.plain += mine
            sums.last = sums.last + mine if sums.backward == self._number else mine.clone()
            sums.backward = self._number

        return add

    def keep(self, folder: Path, rank: int, optimizer: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Write what was added up, and the gradients with which the optimizer steps, by the parameters' names."""
        arrays: dict[str, np.ndarray] = {}
        for name, parameter in gradients.items():
            sums = self._sums.get(id(parameter))
            if sums is not None and parameter.grad is not None:
                arrays |= {f"{kind}/{name}": getattr(sums, kind).cpu().numpy() for kind in SUMS}
                applied = local_part(parameter.grad).detach()
                applied = applied.to_dense() if applied.layout != torch.strided else applied
                exact = torch.float64 if applied.dtype == torch.float64 else torch.float32
                arrays[f"applied/{name}"] = applied.to(exact).cpu().numpy()
        np.savez(folder / FILE.format(rank, optimizer), **arrays)  # type: ignore[arg-type]  # names are free

    def stop(self) -> None:
        """No more is kept."""
        self.wanted = False
        self.forget_hooks()
        self._sums.clear()

    def forget_hooks(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _fresh(parameter: torch.Tensor, sums: Sums, number: int) -> bool:
    """Whether the gradient was cleared since the last backward."""
    return sums.backward != number and (parameter.grad is None or not bool(parameter.grad.any()))
