"""Quantities in words: lists, numbers of things, units with decimal (1 MB is 1,000,000 bytes) or binary prefixes."""

import math
from collections.abc import Iterable, Sequence

PREFIXES = {1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "µ", 1e-9: "n", 1e-12: "p"}


def plural(number: int, noun: str, style: str = "") -> str:
    """Return a number with its noun, ``1 round`` or ``2 rounds``; ``style`` is a format such as "," for thousands."""
    return f"{number:{style}} {noun}" if number == 1 else f"{number:{style}} {noun}s"


def shortened(text: str, most: int = 80) -> str:
    """Return ``text``, cut to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(items: Iterable[object], most: int = 8) -> str:
    """Return items as text, ``a, b, c``; a list of more than ``most`` is cut: ``a, b, … (12 in all)``."""
    texts = list(map(str, items))
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])}, … ({len(texts)} in all)"


def ranks_in_words(ranks: Iterable[int], most: int = 8) -> str:
    """Return ranks as text, ``rank 3`` or ``ranks 0, 2, 5``, in their order; a long list is cut."""
    numbers = sorted(ranks)
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed(numbers, most)}"


def aligned(rows: Sequence[Sequence[str]], gap: int) -> list[str]:
    """Return a line for each row of a table, with ``gap`` spaces between its columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [(" " * gap).join(cells).rstrip() for cells in padded]


def in_words(value: float, unit: str) -> str:
    """Return ``value`` to three digits with a fitting prefix: ``in_words(5e-6, "s")`` is "5 µs"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    rounded = abs(float(f"{value:.3g}"))  # 999.9 is 1 k
    scale = next((scale for scale in PREFIXES if rounded >= scale), min(PREFIXES))
    if rounded >= 1000 * scale:  # beyond the largest prefix
        return f"{value:.3g} {unit}"
    return f"{value / scale:.3g} {PREFIXES[scale]}{unit}"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds to three significant digits, such as ``135 ms``."""
    return f"{1000 * seconds:,.0f} ms" if seconds >= 0.9995 else f"{1000 * seconds:.3g} ms"


def bytes_in_words(nbytes: float) -> str:
    """Return bytes exactly below 100,000, and otherwise in decimal units: 1 MB is a million bytes."""
    if nbytes < 100_000:
        return f"{nbytes:,.0f} B"
    units = ("kB", "MB", "GB", "TB")
    power = next((p for p in range(1, len(units)) if nbytes < 999.95 * 1000**p), len(units))
    value = nbytes / 1000**power
    return f"{value:,.3g} {units[power - 1]}" if value < 999.5 else f"{value:,.0f} {units[power - 1]}"


def gibibytes(nbytes: int | None) -> str:
    """Return bytes in GiB, such as ``15.6 GiB``; "unknown" for None."""
    return "unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"


def in_binary(nbytes: float) -> str:
    """Return ``nbytes`` to four digits in units of 1,024: ``in_binary(25 * 2**20)`` is "25 MiB"."""
    power = min(max(int(math.log2(nbytes)) // 10, 0), 4) if nbytes >= 1 else 0
    return f"{nbytes / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
