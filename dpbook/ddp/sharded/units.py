"""Which modules are gathered as one, and which parameters are whose."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from dpbook.core import InvalidArgument

Units = Iterable[nn.Module] | Callable[[nn.Module], bool]
"""Modules, or a rule that says of a module whether it is a unit."""


@dataclass(frozen=True)
class Member:
    """A parameter of a unit, with all its names, and all places where modules have it: several if it is tied."""

    names: tuple[str, ...]
    parameter: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


@dataclass(frozen=True)
class Share:
    """A module that is a unit, and the parameters that no unit inside it has."""

    name: str
    module: nn.Module
    members: tuple[Member, ...]


def divide(root: nn.Module, units: Units | None) -> list[Share]:
    """Give every parameter of ``root`` to the innermost unit around it; a tied one to that around all its places.

    ``root`` is a unit of its own, the first in the list; units without a parameter are left out. Raises
    `InvalidArgument` for modules that are no part of ``root``, and for lists of modules: nobody calls their forward.
    """
    chosen = {root, *_chosen(root, units)}
    names: dict[nn.Module, str] = {}
    around: dict[nn.Parameter, tuple[nn.Module, ...]] = {}
    places: dict[nn.Parameter, dict[str, tuple[nn.Module, str]]] = {}
    for name, module, outer in _walk(root, "", (), chosen):
        if module in chosen:
            names.setdefault(module, name)
        for own, parameter in module._parameters.items():
            if parameter is not None:
                around[parameter] = _common(around.get(parameter, outer), outer)
                places.setdefault(parameter, {})[f"{name}.{own}".lstrip(".")] = module, own
    members: dict[nn.Module, list[Member]] = {module: [] for module in names}
    for parameter, where in places.items():
        members[around[parameter][-1]].append(Member(tuple(where), parameter, tuple(dict.fromkeys(where.values()))))
    return [Share(names[module], module, tuple(own)) for module, own in members.items() if own or module is root]


def _chosen(root: nn.Module, units: Units | None) -> list[nn.Module]:
    if units is None:
        return []
    inside = list(root.modules())
    listed = [module for module in inside if units(module)] if callable(units) else list(units)
    for module in listed:
        if not any(module is other for other in inside):
            raise InvalidArgument("units", type(module).__name__, "modules inside the one that is wrapped")
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            expected = "modules whose forward is called; name what is in the list, not the list"
            raise InvalidArgument("units", type(module).__name__, expected)
    return listed


def _walk(
    module: nn.Module, name: str, outer: tuple[nn.Module, ...], chosen: set[nn.Module]
) -> Iterator[tuple[str, nn.Module, tuple[nn.Module, ...]]]:
    """Every module by every way that leads to it, with the units around it from outside to inside."""
    outer = (*outer, module) if module in chosen else outer
    yield name, module, outer
    for own, child in module._modules.items():  # `named_children` leaves out a module that comes again
        if child is not None:
            yield from _walk(child, f"{name}.{own}".lstrip("."), outer, chosen)


def _common(a: tuple[nn.Module, ...], b: tuple[nn.Module, ...]) -> tuple[nn.Module, ...]:
    """The units around both."""
    same = 0
    while same < min(len(a), len(b)) and a[same] is b[same]:
        same += 1
    return a[:same]
