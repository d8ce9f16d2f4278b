"""Schedules as JSON, with a format version."""

import json
import operator
from collections.abc import Callable
from typing import Any

from dpbook.collectives.schedule.bounds import Bounds, EvenSplit, FixedBounds, GlooBounds
from dpbook.collectives.schedule.placement import Holding, Placement, complete_everywhere, everyone, partial
from dpbook.collectives.schedule.rounds import Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, check_one_of, parse

FORMAT = "dpbook.schedule"
VERSION = 1
RULES: dict[str, Callable[..., Bounds]] = {"even": EvenSplit, "fixed": FixedBounds, "gloo": GlooBounds}
"""How chunk bounds are called; their fields stand beside."""


def to_json(schedule: Schedule) -> str:
    """Write a schedule out, every round of it. Raises `InvalidArgument` for chunk bounds of an unknown rule."""
    check_schedule(schedule)
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "name": schedule.name,
            "world": schedule.world,
            "n_chunks": schedule.n_chunks,
            "bounds": _bounds_to_data(schedule.bounds),
            "before": [_holding_to_data(h, schedule.world) for h in schedule.before],
            "after": [_holding_to_data(h, schedule.world) for h in schedule.after],
            "rounds": [
                {
                    "source": r.source.tolist(),
                    "dest": r.dest.tolist(),
                    "chunk": r.chunk.tolist(),
                    "reduce": r.reduce if isinstance(r.reduce, bool) else r.reduce.tolist(),
                }
                for r in schedule.walk()
            ],
        }
    )


def from_json(text: str) -> Schedule:
    """Read what `to_json` wrote. Raises `InvalidArgument` for anything else, `ScheduleError` for illegal rounds."""
    data = parse(text, FORMAT, VERSION)
    try:
        world = data["world"]
        schedule = Schedule(
            world,
            data["n_chunks"],
            [Round.of(r["source"], r["dest"], r["chunk"], r["reduce"]) for r in data["rounds"]],
            _bounds_from_data(data["bounds"]),
            _placement_from_data(data["before"], world),
            _placement_from_data(data["after"], world),
            str(data["name"]),
        )
    except InvalidArgument:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            "text", repr(error), "a complete schedule; a field is missing or of a wrong type"
        ) from None
    for index, round_ in enumerate(schedule.rounds):
        round_.check(index, schedule.world, schedule.n_chunks)
    return schedule


def _bounds_to_data(bounds: Bounds) -> dict[str, Any]:
    for rule, kind in RULES.items():
        if type(bounds) is kind:
            return {"rule": rule, **vars(bounds)}
    raise InvalidArgument("bounds", bounds, "EvenSplit, FixedBounds or GlooBounds to be written as JSON")


def _bounds_from_data(data: dict[str, Any]) -> Bounds:
    check_one_of("rule of the bounds", data["rule"], RULES)
    return RULES[data["rule"]](**{name: value for name, value in data.items() if name != "rule"})


def _holding_to_data(holding: Holding, world: int) -> str | dict[str, str | list[int]]:
    if holding == complete_everywhere(world):
        return "complete"
    if holding == partial(world):
        return "partial"
    return {str(rank): "all" if whose == everyone(world) else sorted(whose) for rank, whose in holding.items()}


def _placement_from_data(data: list[Any], world: int) -> Placement:
    shorthand = {"complete": complete_everywhere(world), "partial": partial(world)}

    def holding(entry: str | dict[str, Any]) -> Holding:
        if isinstance(entry, str):
            return shorthand[entry]
        return {int(r): everyone(world) if w == "all" else frozenset(map(operator.index, w)) for r, w in entry.items()}

    return tuple(map(holding, data))
