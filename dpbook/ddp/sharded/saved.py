"""Weights that backward has saved: they are gathered when it asks for them, by whatever way it has come.

Backward usually comes to a unit through its output, and the unit has its weights then. A loss of something inside of a
unit, such as a term that a layer keeps aside, comes to them by another way.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from dpbook.ddp.sharded.row import Row
from dpbook.ddp.sharded.unit import Unit


@dataclass(frozen=True)
class _Weight:
    """A weight, or a view of one, of a row that had these ``versions`` in forward."""

    tensor: torch.Tensor
    unit: Unit
    row: Row
    versions: tuple[int, ...]


class SavedWeights:
    """What forward saves for backward inside of `watched`; ``reach`` is called with a unit whose weights are away."""

    def __init__(self, units: Sequence[Unit], reach: Callable[[Unit], None]) -> None:
        self.reach = reach
        self._owners = {row.whole.untyped_storage()._cdata: (unit, row) for unit in units for row in unit.rows}

    def watched(self) -> AbstractContextManager[object]:
        """A forward. Where somebody else watches over what is saved, around it or inside, that holds instead."""
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            return nullcontext()
        watching: AbstractContextManager[object] = torch.autograd.graph.saved_tensors_hooks(self._save, self._give)
        return watching

    def _save(self, tensor: torch.Tensor) -> "torch.Tensor | _Weight":
        strided = tensor.layout == torch.strided
        owner = self._owners.get(tensor.untyped_storage()._cdata) if strided else None
        return tensor if owner is None else _Weight(tensor.detach(), *owner, owner[1].versions)

    def _give(self, saved: "torch.Tensor | _Weight") -> torch.Tensor:
        if not isinstance(saved, _Weight):
            return saved
        if not saved.row.alive or saved.row.handle is not None:
            saved.unit.check_versions([saved.row], [saved.versions])
            self.reach(saved.unit)
        return saved.tensor
