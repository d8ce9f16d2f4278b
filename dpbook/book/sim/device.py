"""The device as programs see it: `torch.sim`, a module like `torch.cuda`, and what `torch.accelerator` asks of it."""

import contextlib
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from dpbook.book.sim import kernels, streams
from dpbook.book.sim.memory import POOL, TOTAL

NAME = "stand-in accelerator"


def module() -> ModuleType:
    """What `torch.get_device_module("sim")` returns."""
    sim = ModuleType("torch.sim")
    for name, value in (_streams() | _memory() | _random() | _state()).items():
        setattr(sim, name, value)
    return sim


def adapt_accelerator() -> None:
    """Let `torch.accelerator` answer what it would ask of C++: streams and memory of the device."""
    for name, value in (_streams() | _memory()).items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, value)
    torch.Stream, torch.Event = streams.Stream, streams.Event


def _streams() -> dict[str, Any]:
    return {
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
    }


def _memory() -> dict[str, Any]:
    return {
        "memory_allocated": lambda device=None: POOL.allocated,
        "max_memory_allocated": lambda device=None: POOL.peak,
        "memory_reserved": lambda device=None: POOL.reserved,
        "max_memory_reserved": lambda device=None: POOL.peak_reserved,
        "reset_peak_memory_stats": _reset_peak,
        "empty_cache": _empty_cache,
        "get_memory_info": lambda device=None: (TOTAL - POOL.reserved, TOTAL),
    }


def _random() -> dict[str, Any]:
    return {
        "manual_seed": kernels.manual_seed,
        "manual_seed_all": kernels.manual_seed,
        "get_rng_state": kernels.get_rng_state,
        "set_rng_state": kernels.set_rng_state,
    }


def _state() -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: contextlib.nullcontext(),
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: SimpleNamespace(name=NAME, total_memory=TOTAL),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }


def _reset_peak(device: Any = None) -> None:
    POOL.peak, POOL.peak_reserved = POOL.allocated, POOL.reserved


def _empty_cache() -> None:
    streams.synchronize()
    POOL.empty_cache()
