"""Modules and files that move to the device and back, where torch knows how for its own devices alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpbook.book.sim.memory import DEVICE, Block, new_storage
from dpbook.book.sim.streams import synchronize

BEFORE_TORCHS = 19
"""Priorities of torch's own readers of storages begin at 10; that for devices such as this one has 23."""


def adapt() -> None:
    """Let `Module.to` keep each Parameter object, as it does for CUDA, and `torch.load` bring tensors to the device."""
    nn.Module._apply = _swapping(nn.Module._apply)
    torch.UntypedStorage.data_ptr = _with_address(torch.UntypedStorage.data_ptr)
    torch.UntypedStorage.cpu = _copied(torch.UntypedStorage.cpu)
    torch.Tensor.pin_memory = lambda self, device=None: self.clone()  # what is pinned is a copy, here as elsewhere
    torch.UntypedStorage.resize_ = _resized(torch.UntypedStorage.resize_)
    torch.UntypedStorage.size = torch.UntypedStorage.nbytes = _measured(torch.UntypedStorage.nbytes)
    torch.serialization.register_package(BEFORE_TORCHS, _where, _bring)


def _swapping(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Elsewhere torch sets ``parameter.data``, which it refuses here; new Parameters would part those that are tied.

    Only in here: `load_state_dict` would swap too, and lose hooks.
    """
    future = torch.__future__

    def applied(self: nn.Module, function: Callable[..., Any], recurse: bool = True) -> nn.Module:
        before = future.get_swap_module_params_on_conversion()
        future.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, function, recurse)
        finally:
            future.set_swap_module_params_on_conversion(before)

    return applied


def _with_address(data_ptr: Callable[[Any], int]) -> Callable[[Any], int]:
    """`torch.save` asks for the address, to write once what several tensors share."""
    return lambda self: data_ptr(self.block.bytes if _where(self) else self)


def _copied(cpu: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def to_cpu(self: Any) -> Any:
        if not _where(self):
            return cpu(self)
        synchronize()
        return torch.UntypedStorage(self.nbytes()).copy_(self.block.bytes[: self.nbytes()])

    return to_cpu


def _resized(resize: Callable[..., Any]) -> Callable[..., Any]:
    """Memory given back, and taken again, under tensors that stay. Values are lost, which others of torch's keep."""

    def resized(self: Any, nbytes: int) -> Any:
        if not _where(self):
            return resize(self, nbytes)
        self.block = Block(nbytes)
        return self

    return resized


def _measured(nbytes: Callable[[Any], int]) -> Callable[[Any], int]:
    return lambda self: self.block.asked if _where(self) else nbytes(self)


def _where(storage: Any) -> str | None:
    """The name under which a file keeps a storage of the device; None for those of others."""
    return str(DEVICE) if storage.device.type == DEVICE.type else None


def _bring(storage: Any, location: str) -> Any:
    """A storage that was read, on the device; None for one from elsewhere."""
    if not location.startswith(DEVICE.type):
        return None
    new = new_storage(storage.nbytes())
    synchronize()  # its memory may be some that kernels which are queued still use
    new.block.bytes[: storage.nbytes()].copy_(storage)
    return new
