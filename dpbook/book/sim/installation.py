"""Making the device known to torch, once in a process."""

from typing import Any

import torch

from dpbook.core import DpbookError
from dpbook.ranks import regroup

BOTH = "cpu:gloo,sim:simccl"
"""The backends of a group for tensors of the CPU and of the device, as "cpu:gloo,cuda:nccl" is where there are GPUs."""

_libraries: list[Any] = []  # torch forgets what is registered when its library is gone


def missing() -> str | None:
    """Why this torch cannot have the stand-in; None where it can."""
    from torch.utils import backend_registration

    if not hasattr(torch._C, "_acc") or not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        return f"torch {torch.__version__} lets no device be written in Python; 2.13 does"
    return None


def install() -> None:
    """Give torch the device "sim" and the collectives "simccl", for the rest of this process.

    A second call does nothing. Raises `DpbookError` where torch has not what it takes.
    """
    if _libraries:
        return
    if (reason := missing()) is not None:
        raise DpbookError(f"there is no stand-in accelerator here: {reason}")
    torch.utils.rename_privateuse1_backend("sim")
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from dpbook.book.sim import autocast, collectives, device, hooks, moving, operations
    from dpbook.book.sim.kernels import launch

    _setup_privateuseone_for_python_backend("sim", backend_module=device.module())
    _library("_", "PrivateUse1").fallback(launch)
    operations.register(_library("aten", "PrivateUse1"))
    _library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
    autocast.register(_library("aten", "AutocastPrivateUse1"))
    device.adapt_accelerator()
    hooks.adapt()
    moving.adapt()
    collectives.register(_library("c10d", "PrivateUse1"))


def join(backend: str = BOTH) -> torch.device:
    """In a rank of `dpbook.ranks.start`: take the device, and join a group of all ranks that serves it; the device.

    The group of gloo alone, in which the rank was started, is left. Raises `DpbookError` as `install` does.
    """
    install()
    device = torch.device("sim", 0)
    regroup(device, backend)
    return device


def _library(namespace: str, key: str) -> Any:
    _libraries.append(torch.library.Library(namespace, "IMPL", key))
    return _libraries[-1]
