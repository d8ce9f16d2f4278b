"""Modules whose parameters an optimizer updates, the parameters' names, and the wrappers around the modules."""

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Owners:
    """Modules that have the parameters of an optimizer.

    Attributes:
        roots: outermost modules with some of the parameters, without wrappers.
        wrappers: wrappers around these modules.
        names: name of each parameter by its id.
    """

    roots: tuple[nn.Module, ...]
    wrappers: tuple[nn.Module, ...]
    names: dict[int, str]


def owners(parameters: Sequence[torch.Tensor]) -> Owners:
    """Search all modules of the process for these parameters; this takes some hundredths of a second."""
    wanted = {id(parameter) for parameter in parameters}
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    holding = [each for each in modules if "_parameters" in vars(each) and wanted & _ids(each)]
    wrappers = tuple(each for each in holding if is_wrapper(each))
    bare = [each for each in holding if not is_wrapper(each)]
    inside = {id(child) for each in bare for child in each.modules() if child is not each}
    roots = tuple(each for each in bare if id(each) not in inside)
    return Owners(roots, wrappers, _names(roots, parameters))


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module only changes how the module inside it runs."""
    return isinstance(module, _averaging()) or type(module).__name__ in ("OptimizedModule", "DataParallel")


def _averaging() -> tuple[type, ...]:
    ours = sys.modules.get("dpbook.ddp.wrappers")
    return (nn.parallel.DistributedDataParallel, *([ours.DDP] if ours else []))


def averages(wrapper: nn.Module) -> bool:
    """Whether the wrapper averages gradients over ranks."""
    return isinstance(wrapper, _averaging())


def syncs(wrapper: nn.Module) -> bool:
    """Whether the next backward through the wrapper averages over the ranks."""
    if isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return bool(wrapper.require_backward_grad_sync)
    return bool(wrapper._reducer.enabled)


def ddp_all_reduces(wrapper: nn.Module) -> dict[str, float] | None:
    """Return torch's own record of DDP's last backward, or None for another wrapper.

    ``all_reduces`` is their number, ``begun`` the share of backward after which the first one began.
    """
    if not isinstance(wrapper, nn.parallel.DistributedDataParallel):
        return None
    known: Any = wrapper._get_ddp_logging_data()
    begun, backward = known.get("backward_comm_time_start", 0), known.get("backward_compute_time_start", 0)
    took = known.get("backward_compute_time", 0)
    if not begun or not backward or not took:
        return None
    return {"all_reduces": known["num_buckets_reduced"], "begun": min(1.0, max(0.0, (begun - backward) / took))}


def replicas_of(wrapper: nn.Module) -> int:
    """Return the number of ranks over which a wrapper averages."""
    group: Any = getattr(wrapper, "process_group", None) or getattr(wrapper, "group", None)
    return int(dist.get_world_size(group))


def _names(roots: Sequence[nn.Module], parameters: Sequence[torch.Tensor]) -> dict[int, str]:
    """Return the parameters' names in their modules, with the class in front if two modules share a name."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for module in sorted(roots, key=lambda each: _first(each, parameters)):
        for name, parameter in module.named_parameters():
            if id(parameter) not in names:
                unique = next(each for each in _spellings(type(module).__name__, name) if each not in taken)
                taken.add(unique)
                names[id(parameter)] = unique
    for number, parameter in enumerate(parameters):
        names.setdefault(id(parameter), f"parameter {number} {tuple(parameter.shape)}")
    return names


def _first(module: nn.Module, parameters: Sequence[torch.Tensor]) -> int:
    ids = _ids(module)
    return next(place for place, parameter in enumerate(parameters) if id(parameter) in ids)


def _spellings(module: str, name: str) -> Iterator[str]:
    yield name
    yield f"{module}.{name}"
    number = 2
    while True:
        yield f"{module} {number}.{name}"
        number += 1
