"""Progress bar of a long cell."""

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items`` with a bar that is removed at the end. With ``TQDM_DISABLE`` in the environment there is no bar.

    A cell's stored output is therefore the same with and without it. Jupyter draws the bar with ipywidgets, and tqdm
    reads the variable outside of notebooks only.
    """
    from tqdm.auto import tqdm

    yield from tqdm(items, leave=False, disable=bool(os.environ.get("TQDM_DISABLE")))
