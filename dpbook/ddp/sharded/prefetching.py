"""Gather the weights of a unit when it is about to compute, and those of the next ones ahead of it."""

from collections.abc import Sequence

from dpbook.ddp.sharded.unit import Unit


class Prefetching:
    """When the weights of ``units`` are gathered: ``depth`` units before they compute.

    Forward is expected to go as the last one went, the first one in the order of the modules; backward goes the way of
    its forward back. Where a guess was wrong a unit is gathered too early, and used when its turn comes.
    """

    def __init__(self, units: Sequence[Unit], depth: int) -> None:
        self.units, self.depth = units, depth
        self.expected: list[Unit] = list(units)
        self.entered: list[Unit] = []
        self.left: list[Unit] = []

    def begin(self) -> None:
        """A forward begins."""
        if self.entered:
            self.expected = self.entered
        self.entered, self.left = [], []

    def enter(self, unit: Unit) -> None:
        """Let ``unit`` have its weights: forward is about to compute it."""
        here = len(self.entered)
        self.entered.append(unit)
        as_expected = self.expected[here : here + 1] == [unit]
        self._gather(unit, self.expected[here + 1 : here + 1 + self.depth] if as_expected else [])

    def leave(self, unit: Unit) -> tuple[list[Unit], int]:
        """Note that forward has computed ``unit``; the way it has come, for `come_back`."""
        self.left.append(unit)
        return self.left, len(self.left) - 1

    def come_back(self, way: list[Unit], here: int) -> None:
        """Let ``way[here]`` have its weights: backward is about to compute it."""
        self._gather(way[here], way[max(0, here - self.depth) : here][::-1])

    def _gather(self, unit: Unit, ahead: Sequence[Unit]) -> None:
        """The next ones are asked for before this one is waited for, so that they travel while it computes."""
        for each in (unit, *ahead):
            each.begin_to_gather()
        unit.gather()
