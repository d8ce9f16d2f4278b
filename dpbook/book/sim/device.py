"""Installation of the device, and the device as programs see it: `torch.sim`, `torch.accelerator`, hooks and modules.

torch supports devices written in Python only in part, so `install` also replaces parts of torch.
"""

import contextlib
import functools
import uuid
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from dpbook.book.sim import kernels, streams
from dpbook.book.sim.memory import DEVICE, POOL, TOTAL, StorageBlock, is_on_device, new_storage
from dpbook.book.sim.patches import patch
from dpbook.book.sim.streams import synchronize
from dpbook.core import DpbookError
from dpbook.ranks import regroup

NAME = "stand-in accelerator"


def interface() -> dict[str, Any]:
    """Return the functions of `torch.sim`, which are those of `torch.cuda`."""
    properties = SimpleNamespace(name=NAME, total_memory=TOTAL, uuid=uuid.uuid4())  # each process has its own device
    return {
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
        "memory_allocated": lambda device=None: POOL.allocated,
        "max_memory_allocated": lambda device=None: POOL.peak,
        "memory_reserved": lambda device=None: POOL.reserved,
        "max_memory_reserved": lambda device=None: POOL.peak_reserved,
        "reset_peak_memory_stats": _reset_peak,
        "empty_cache": _empty_cache,
        "get_memory_info": lambda device=None: (TOTAL - POOL.reserved, TOTAL),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: contextlib.nullcontext(),
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: properties,
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "manual_seed": kernels.manual_seed,
        "manual_seed_all": kernels.manual_seed,
        "get_rng_state": kernels.get_rng_state,
        "set_rng_state": kernels.set_rng_state,
    }


def _reset_peak(device: Any = None) -> None:
    POOL.peak, POOL.peak_reserved = POOL.allocated, POOL.reserved


def _empty_cache() -> None:
    streams.synchronize()
    POOL.empty_cache()


def adapt_accelerator(functions: dict[str, Any]) -> None:
    """Let `torch.accelerator` use the streams and the memory of the device, instead of C++."""
    for name in functions.keys() & vars(torch.accelerator).keys():
        setattr(torch.accelerator, name, functions[name])
    torch.Stream, torch.Event = streams.Stream, streams.Event


Hook = Callable[..., Any]
REFUSED = torch.empty(0, device="meta")
"""Tensor that torch accepts from no hook."""
_hook_errors: list[BaseException] = []


def adapt_hooks() -> None:
    """Let backward raise the error of a hook on a tensor of the device, as on other devices.

    torch's guard for devices in Python lets no error pass, and would end the process. The hook therefore returns a
    tensor that torch refuses in C++, which ends backward.
    """
    patch(torch.Tensor, "register_hook", _register_guarded)
    patch(torch.Tensor, "register_post_accumulate_grad_hook", _register_guarded)
    patch(torch.autograd, "_engine_run_backward", _raise_hook_errors)


def _register_guarded(register: Hook, tensor: torch.Tensor, hook: Hook) -> Any:
    @functools.wraps(hook)
    def guarded(*args: Any) -> Any:
        try:
            return hook(*args)
        except BaseException as error:
            _hook_errors.append(error)
            return REFUSED

    return register(tensor, guarded if is_on_device(tensor) else hook)


def _raise_hook_errors(run_backward: Hook, *args: Any, **kwargs: Any) -> Any:
    _hook_errors.clear()
    try:
        return run_backward(*args, **kwargs)
    except Exception:
        if not _hook_errors:
            raise
        raise _hook_errors.pop(0) from None


BEFORE_TORCHS = 19
"""Priority before torch's own reader of storages for such devices, which has 23; other readers begin at 10."""


def adapt_modules_and_storages() -> None:
    """Let `Module.to` keep each Parameter object, as it does for CUDA, and `torch.load` bring tensors to the device."""
    patch(nn.Module, "_apply", _swap_parameters)
    torch.Tensor.pin_memory = lambda self, device=None: self.clone()  # pinning copies, as on other devices
    storage = torch.UntypedStorage
    # With the address of the bytes, `torch.save` writes shared memory once.
    patch(storage, "data_ptr", _for_device(lambda ours: int(ours.block.bytes.data_ptr())))
    patch(storage, "cpu", _for_device(_copied))
    patch(storage, "resize_", _for_device(_resize))
    patch(storage, "nbytes", _for_device(lambda ours: ours.block.requested))
    storage.size = storage.nbytes
    torch.serialization.register_package(BEFORE_TORCHS, _location_tag, _restore_on_device)


def _swap_parameters(apply: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """Call `Module._apply` so that it swaps parameters in place.

    For other devices torch sets ``parameter.data``, which it refuses here. New Parameters would separate tied ones. The
    setting holds only inside the call, since `load_state_dict` would swap too and lose hooks.
    """
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        return apply(*args, **kwargs)
    finally:
        future.set_swap_module_params_on_conversion(before)


def _for_device(ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of a method of storages, which calls ``ours`` for those of this device."""
    return lambda method, storage, *args: (ours if _location_tag(storage) else method)(storage, *args)


def _copied(storage: Any) -> Any:
    synchronize()
    return torch.UntypedStorage(storage.nbytes()).copy_(storage.block.bytes[: storage.nbytes()])


def _resize(storage: Any, nbytes: int) -> Any:
    """Give a storage new memory; its tensors stay. Unlike on other devices, values are lost."""
    storage.block = StorageBlock(nbytes)
    return storage


def _location_tag(storage: Any) -> str | None:
    """Return the tag of a storage of this device in a file; None for storages of other devices."""
    return str(DEVICE) if storage.device.type == DEVICE.type else None


def _restore_on_device(storage: Any, location: str) -> Any:
    """Return a storage from a file on this device; None if its tag is another device's."""
    if not location.startswith(DEVICE.type):
        return None
    new = new_storage(storage.nbytes())
    synchronize()  # queued kernels may still use its memory
    new.block.bytes[: storage.nbytes()].copy_(storage)
    return new


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

    from dpbook.book.sim import collectives

    module, functions = ModuleType("torch.sim"), interface()
    vars(module).update(functions)
    _setup_privateuseone_for_python_backend("sim", backend_module=module)
    _library("_", "PrivateUse1").fallback(kernels.launch)
    kernels.register_operations(_library("aten", "PrivateUse1"))
    _library("_", "AutocastPrivateUse1").fallback(torch.library.fallthrough_kernel)
    kernels.register_autocast(_library("aten", "AutocastPrivateUse1"))
    adapt_accelerator(functions)
    adapt_hooks()
    adapt_modules_and_storages()
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
