"""Small things that every room says in words."""

from __future__ import annotations


def plural(number: int, noun: str, style: str = "") -> str:
    """``1 round``, ``2 rounds``; ``style`` is the number's format, such as "," for groups of thousands."""
    return f"{number:{style}} {noun}" if number == 1 else f"{number:{style}} {noun}s"
