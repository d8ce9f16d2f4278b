"""When the works of a step run: what they wait for is found once, and then their times for any number of prices."""

from collections.abc import Sequence

from dpbook.overlap.sharding.choices import Sharding, Wires
from dpbook.overlap.sharding.program import Lane, Program
from dpbook.overlap.sharding.units import Sizes, Unit


class Course:
    """The ``works`` of a step of ``units``; see `simulate_sharded`.

    Of ``units`` the numbers of elements make the works, and of ``sharding`` all but the number of shards, which only
    what is sent, and with replicas the bytes between them, depend on.
    """

    def __init__(
        self, units: Sequence[Unit], sharding: Sharding, sizes: Sizes, accumulation: int, no_sync: bool
    ) -> None:
        program = Program(units, sharding, sizes)
        program.step(accumulation, no_sync)
        self.units, self.sharding, self.works = units, sharding, program.works
        # Many works take the same time: each has the number of its own among the different ones.
        keys = [(work.what, work.unit if work.lane == "compute" else work.nbytes) for work in self.works]
        self._different = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._numbers = [self._different[key] for key in keys]
        self._waits = [self._last_of_other_lane(work.lane, work.after) for work in self.works]

    def _last_of_other_lane(self, lane: Lane, after: Sequence[int]) -> int:
        """What a work has to wait for, -1 for nothing: a lane does one at a time, in the order of the list."""
        return max((other for other in after if self.works[other].lane != lane), default=-1)

    def seconds(self, wires: Wires, optimizer: float = 0.0, forward: float = 1.0, backward: float = 1.0) -> list[float]:
        """What each work takes, the units ``forward`` and ``backward`` times as long as they say."""
        shards = self.sharding.shards if self.sharding.stage else 1
        all_reduce = wires.across if self.sharding.stage else wires.all_reduce
        prices = {"all-gather": wires.all_gather, "reduce-scatter": wires.reduce_scatter, "all-reduce": all_reduce}

        def of(what: str, which: int | None) -> float:
            if which is None:
                return optimizer / shards
            if what in prices:
                return prices[what](which)
            unit = self.units[which]
            return unit.backward * backward if what == "backward" else unit.forward * forward

        different = [of(*key) for key in self._different]
        return [different[number] for number in self._numbers]

    def run(self, seconds: Sequence[float]) -> tuple[list[float], list[float]]:
        """When each work starts and ends: when its lane is free, and what it waits for is over."""
        free: dict[Lane, float] = {"compute": 0.0, "communication": 0.0}
        starts: list[float] = []
        ends: list[float] = []
        for work, other, takes in zip(self.works, self._waits, seconds, strict=True):
            start = free[work.lane]
            if other >= 0 and ends[other] > start:
                start = ends[other]
            starts.append(start)
            end = start + takes
            ends.append(end)
            free[work.lane] = end
        return starts, ends

    def busy(self, lane: Lane, seconds: Sequence[float]) -> float:
        """Seconds in which a lane works."""
        return sum(takes for work, takes in zip(self.works, seconds, strict=True) if work.lane == lane)
