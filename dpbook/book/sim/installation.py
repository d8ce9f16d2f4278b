"""Installation of the stand-in accelerator in torch, once in a process."""

from typing import Any

import torch

from dpbook.core import DpbookError
from dpbook.ranks import regroup

CPU_AND_SIM = "cpu:gloo,sim:simccl"
"""Backends of a group for tensors of the CPU and of the device, as "cpu:gloo,cuda:nccl" is for GPUs."""

_libraries: list[Any] = []  # torch forgets what is registered when its library is gone


def missing() -> str | None:
    """Return the reason why this torch cannot have the stand-in accelerator; None if it can."""
    from torch.utils import backend_registration

    if not hasattr(torch._C, "_acc") or not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"torch {torch.__version__} does not support devices written in Python; 2.13 does"
    return None


def install() -> None:
    """Give torch the device "sim" and the collectives "simccl", for the rest of this process.

    A second call does nothing. Raises `DpbookError` if this torch cannot have them; see `missing`.
    """
    if _libraries:
        return
    if (reason := missing()) is not None:
        raise DpbookError(f"there is no stand-in accelerator here: {reason}")
    torch.utils.rename_privateuse1_backend("sim")
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from dpbook.book.sim import collectives, device, kernels

    _setup_privateuseone_for_python_backend("sim", backend_module=device.module())
    _library("_", "PrivateUse1").fallback(kernels.launch)
    kernels.register_operations(_library("aten", "PrivateUse1"))
    _library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
    kernels.register_autocast(_library("aten", "AutocastPrivateUse1"))
    device.adapt_accelerator()
    device.adapt_hooks()
    device.adapt_modules_and_storages()
    collectives.register(_library("c10d", "PrivateUse1"))


def join(backend: str = CPU_AND_SIM) -> torch.device:
    """Install the device in a rank of `dpbook.ranks.start`, join a group of all ranks that serves it, and return it.

    The rank leaves the group that it was started in, which serves only the CPU. Raises `DpbookError` as `install` does.
    """
    install()
    device = torch.device("sim", 0)
    regroup(device, backend)
    return device


def _library(namespace: str, key: str) -> Any:
    _libraries.append(torch.library.Library(namespace, "IMPL", key))
    return _libraries[-1]
