"""What tests and the book may ask of the device: to be slower, and to tell which kernels ran when."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """A kernel that ran: seconds of `time.perf_counter`, ``launched`` by the host, begun and ended on its stream."""

    name: str
    stream: int
    launched: float
    begin: float
    end: float


@dataclass
class Settings:
    """Of the device: seconds that kernels take besides, a list of those that ran, and what one of them has raised."""

    slowness: float = 0.0
    spans: list[Span] | None = None
    error: BaseException | None = None


SETTINGS = Settings()


@contextlib.contextmanager
def slower(seconds: float) -> Iterator[None]:
    """Let every kernel that is launched in the block take so many seconds more."""
    before, SETTINGS.slowness = SETTINGS.slowness, seconds
    try:
        yield
    finally:
        SETTINGS.slowness = before


@contextlib.contextmanager
def watch() -> Iterator[list[Span]]:
    """A list of the kernels that are launched in the block, in the order in which they end."""
    before, SETTINGS.spans = SETTINGS.spans, []
    try:
        yield SETTINGS.spans
    finally:
        SETTINGS.spans = before
