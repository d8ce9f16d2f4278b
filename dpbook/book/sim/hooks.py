"""Gradient hooks that raise: torch would end the process, whose guard for devices in Python lets no error pass."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from dpbook.book.sim.memory import is_on_device

Hook = Callable[..., Any]
_raised: list[BaseException] = []


def adapt() -> None:
    """Let backward raise what a hook on a tensor of the device has raised, as on other devices.

    What the hook returns in its place is refused by torch, in C++, and that ends backward.
    """
    refused = torch.empty(0, device="meta")
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        setattr(torch.Tensor, name, _guarding(getattr(torch.Tensor, name), refused))
    torch.autograd._engine_run_backward = _telling(torch.autograd._engine_run_backward)


def _guarding(register: Callable[..., Any], refused: torch.Tensor) -> Callable[..., Any]:
    @functools.wraps(register)
    def registered(self: torch.Tensor, hook: Hook) -> Any:
        return register(self, _guarded(hook, refused) if is_on_device(self) else hook)

    return registered


def _guarded(hook: Hook, refused: torch.Tensor) -> Hook:
    @functools.wraps(hook)
    def guarded(*args: Any) -> Any:
        try:
            return hook(*args)
        except BaseException as error:
            _raised.append(error)
            return refused

    return guarded


def _telling(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_backward)
    def run(*args: Any, **kwargs: Any) -> Any:
        _raised.clear()
        try:
            return run_backward(*args, **kwargs)
        except Exception:
            if not _raised:
                raise
            raise _raised.pop(0) from None

    return run
