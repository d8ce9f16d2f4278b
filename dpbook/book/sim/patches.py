"""Replacement of functions of torch by functions that call them."""

import functools
from collections.abc import Callable
from typing import Any


def patch(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace ``owner.name``: calls go to ``around``, whose first argument is the original function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, call)
