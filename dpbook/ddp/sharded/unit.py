"""A unit during a step: its weights are gathered, used and freed. Every change can be observed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from dpbook.core import DpbookError, InvalidArgument
from dpbook.ddp.sharded.row import Half, Row
from dpbook.ddp.sharded.units import Member, Share


class HiddenParameter:
    """Placeholder of a parameter while its unit does not compute; using it raises an error."""

    def __init__(self, name: str, unit: str, weight: nn.Parameter) -> None:
        self.shape, self.dtype, self.device, self.requires_grad = (
            weight.shape, weight.dtype, weight.device, weight.requires_grad,
        )  # fmt: skip
        self._message = (
            f"{name} is used outside its unit, {unit or 'the whole module'}, where its values are not available: "
            "put it into a unit that contains all modules that use it, or call it through the forward of its unit"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DpbookError(self._message)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, cls):
                raise DpbookError(value._message)
        raise DpbookError("a parameter is used outside its unit")


class UnitEvent(NamedTuple):
    """A change of a unit; ``nbytes`` counts the whole weights or whole gradients that it is about.

    "gather": its weights are being gathered; "gathered": they are available; "forward", "recompute", "backward": it
    begins to compute; "free": its whole weights are freed; "reduce": its gradients are being reduced; "reduced": this
    rank's piece of their sum is available, and the whole gradients are freed. On an accelerator these are times of the
    host: work queued after "gathered" can use the weights.
    """

    kind: str
    unit: str
    nbytes: int


Observer = Callable[[UnitEvent], object]


class Unit:
    """A module whose parameters, those of units inside it left out, are gathered and freed together.

    Modules have as parameters: the shards, outside of a step; while it computes, the whole weights; while others
    compute in a forward, placeholders that raise when they are used.
    """

    def __init__(
        self, share: Share, computing: torch.dtype | None, rank: int, world: int, all_gather: Half,
        observer: Observer | None,
    ) -> None:  # fmt: skip
        self.name, self.module = share.name, share.module
        self.all_gather, self.observer = all_gather, observer
        kinds: dict[tuple[torch.dtype, torch.device, bool], list[Member]] = {}
        for member in share.members:
            p = member.parameter
            kinds.setdefault((p.dtype, p.device, p.requires_grad), []).append(member)
        self.rows = [
            Row(members, computing if computing and dtype.is_floating_point else dtype, rank, world)
            for (dtype, *_), members in kinds.items()
        ]
        self.contains_units = False
        self.running = 0
        """Number of its forwards that have begun and not ended: more than one if it calls itself."""

    def notify(self, kind: str, nbytes: int = 0) -> None:
        """Pass an event to the observer, if there is one."""
        if self.observer is not None:
            self.observer(UnitEvent(kind, self.name, nbytes))

    def begin_to_gather(self) -> None:
        """Begin to gather the rows that have no memory yet."""
        rows = [row for row in self.rows if not row.alive]
        for row in rows:
            row.begin_to_gather(self.all_gather)
        if rows:
            self.notify("gather", sum(row.nbytes for row in rows))

    def gather(self) -> None:
        """Wait until the whole weights are available, and set them as the modules' parameters."""
        self.begin_to_gather()
        under_way = [row for row in self.rows if row.handle is not None]
        for row in under_way:
            row.wait()
        if under_way:
            self.notify("gathered", sum(row.nbytes for row in under_way))
        for row in self.rows:
            self._show(row, row.weights)

    def free(self, rows: list[Row] | None = None) -> None:
        """Free the memory of the whole weights, of all ``rows`` or some, and `hide` them."""
        alive = [row for row in (self.rows if rows is None else rows) if row.alive]
        for row in alive:
            row.free()
            self._hide(row)
        if alive:
            self.notify("free", sum(row.nbytes for row in alive))

    @property
    def versions(self) -> list[tuple[int, ...]]:
        """Version numbers, which change whenever a shard is written."""
        return [row.versions for row in self.rows]

    def check_versions(self, rows: Sequence[Row], versions: Sequence[tuple[int, ...]]) -> None:
        """Raise `DpbookError` if ``rows`` have other versions than in forward: their shards were written since."""
        if [row.versions for row in rows] != list(versions):
            raise DpbookError(
                f"the weights of {self.name or 'the whole module'} changed between forward and backward: "
                "backward would use other weights than forward did"
            )

    def show_shards(self) -> None:
        """Set the shards as the modules' parameters."""
        for row in self.rows:
            self._show(row, [member.parameter for member in row.members])

    def hide(self) -> None:
        """Set placeholders that raise as the modules' parameters, while other units compute."""
        for row in self.rows:
            self._hide(row)

    def _hide(self, row: Row) -> None:
        self._show(row, [HiddenParameter(m.name, self.name, w) for m, w in zip(row.members, row.weights, strict=True)])

    def _show(self, row: Row, parameters: list[Any]) -> None:
        for member, parameter in zip(row.members, parameters, strict=True):
            for module, name in member.places:
                module._parameters[name] = parameter


def check_unchanged(module: nn.Module, units: Sequence[Unit]) -> None:
    """Raise `InvalidArgument` if ``module`` no longer has the parameters that its units sharded."""
    rows = [row for unit in units for row in unit.rows]
    ours = {p for row in rows for p in (*row.weights, *(member.parameter for member in row.members))}
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, HiddenParameter) and parameter not in ours:
            expected = "there when the module is wrapped: `unwrap` it first, and wrap it again"
            raise InvalidArgument(name, "a parameter that was added or replaced later", expected)
    for row in rows:
        row.check()
