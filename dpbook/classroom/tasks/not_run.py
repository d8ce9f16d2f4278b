"""Stand-ins for answers whose cells have not been run, so that a check can say so in place of a NameError."""

from typing import Any, NoReturn

from dpbook.core import DpbookError

RUN_FIRST = "run the cell with your answer first"


class NotRun:
    """Value of an answer's name until its cell has been run. Using it raises `DpbookError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"{self._name} is not there yet: {RUN_FIRST}"

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise DpbookError(repr(self))

    __call__ = __getitem__ = __iter__ = _refuse
