"""The parts of a model that sharding would gather and reduce as one each, by their names."""

from collections.abc import Iterator

from torch import nn


def units(root: nn.Module) -> list[str]:
    """The members of the outermost lists and sequences of modules, such as a transformer's blocks; without any, the
    children of ``root``. Those without parameters are left out.
    """
    return list(_members(root, "")) or [name for name, child in root.named_children() if _has_weights(child)]


def _members(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        if not _has_weights(child):
            continue
        if isinstance(module, nn.ModuleList | nn.Sequential):
            yield prefix + name
        else:
            yield from _members(child, f"{prefix}{name}.")


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def frozen(root: nn.Module) -> dict[str, int]:
    """The elements of each parameter that is not trained."""
    return {name: parameter.numel() for name, parameter in root.named_parameters() if not parameter.requires_grad}
