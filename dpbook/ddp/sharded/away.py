"""What stands in place of a parameter while its values are not there."""

from typing import Any, NoReturn

from torch import nn

from dpbook.core import DpbookError


class Away:
    """In place of a parameter whose unit does not compute: says what it was, and raises when it is computed with."""

    def __init__(self, name: str, unit: str, weight: nn.Parameter) -> None:
        self.shape, self.dtype, self.device, self.requires_grad = (
            weight.shape, weight.dtype, weight.device, weight.requires_grad,
        )  # fmt: skip
        self._message = (
            f"{name} is used outside its unit, {unit or 'the whole module'}, where its values are not there: "
            "let a unit that contains all who use it have it, or call it through the forward of its unit"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DpbookError(self._message)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, cls):
                raise DpbookError(value._message)
        raise DpbookError("a parameter is used outside its unit")
