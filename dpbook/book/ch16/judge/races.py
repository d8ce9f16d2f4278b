"""Races to one loss: methods with what each of them sends and needs, on a link, and who is there first."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Method: TypeAlias = dict[str, float | bool]
MARGIN, EACH = 1.04, 3


def seconds_to_goal(method: Mapping[str, Any], compute: float, alpha: float, beta: float) -> float:
    """Until the goal."""
    work = method["every"] * compute + method["extra"]
    meeting = method["rounds"] * alpha + method["bytes"] * beta
    period = max(work, meeting) if method["hidden"] else work + meeting
    return float(method["steps"] / method["every"] * period)


def _methods(rng: np.random.Generator, compute: float, hides: bool) -> dict[str, Method]:
    """In any order. Bytes are those of a ring, or of an all-gather of a few numbers with their places."""
    ranks, steps = int(rng.choice([4, 8, 16, 64])), int(rng.integers(4000, 9000))
    parameters = 10**6 * int(rng.integers(5, 500))
    rounds, ring = 2 * (ranks - 1), 8 * (ranks - 1) * parameters // ranks
    few = int(8 * parameters * rng.uniform(0.002, 0.01)) * (ranks - 1)

    def made(slower: float, nbytes: int, every: int = 1, extra: float = 0.0, **other: float | bool) -> Method:
        more = float(rng.uniform(1, slower))
        counted = {"rounds": rounds, "bytes": nbytes, "extra": float(f"{extra * compute * rng.uniform(0.5, 1):.3g}")}
        return {"steps": int(more * steps), "every": every, **counted, "hidden": False, **other}

    found = {
        "exact": made(1.0, ring),
        "bf16": made(1.1, ring // 2, extra=0.2),
        "top-k": made(1.8, few, extra=0.6) | {"rounds": ranks - 1},
        "local SGD": made(2.5, ring, every=int(rng.choice([4, 8, 16, 32]))),
        "DiLoCo": made(3.0, ring, every=int(rng.choice([50, 100])), extra=0.6),
    }
    if hides:
        found["stale"] = made(1.8, ring, hidden=True)
        found["stale and local"] = made(3.5, ring, every=int(rng.choice([2, 4])), extra=0.6, hidden=True)
    return {name: found[name] for name in rng.permutation(list(found)).tolist()}


def _shortcuts(methods: Mapping[str, Method], compute: float, alpha: float, beta: float, hides: bool) -> dict[str, str]:
    """Who would be first if something were left out or counted elsewhere, by what."""

    def first(seconds: Callable[[Method], float]) -> str:
        return min(methods, key=lambda name: seconds(methods[name]))

    def with_all(method: Method, **changed: float) -> float:
        return seconds_to_goal({**method, **changed}, compute, alpha, beta)

    found = {
        "latency": first(lambda method: seconds_to_goal(method, compute, 0.0, beta)),
        "bandwidth": first(lambda method: seconds_to_goal(method, compute, alpha, 0.0)),
        "compression": first(lambda method: with_all(method, extra=0.0)),
        "periods": first(lambda method: with_all(method, every=1)),
        "steps": first(lambda method: with_all(method, steps=1)),
    }
    if hides:
        found["hidden"] = first(lambda method: with_all(method, hidden=False))
        found["a step hides"] = first(
            lambda m: with_all(m, every=1) / m["every"] + (1 - 1 / m["every"]) * m["steps"] * compute
        )
        found["compression hides"] = first(lambda m: with_all(m, extra=0.0) + m["steps"] / m["every"] * m["extra"])
        found["compression is hidden"] = first(lambda m: with_all(m, extra=0.0, bytes=m["bytes"] + m["extra"] / beta))
    return found


Race: TypeAlias = tuple[dict[str, Method], float, float, float, str]


@lru_cache(maxsize=16)
def drawn_races(seed: int, hides: bool) -> list[Race]:
    """Methods, seconds of computing, alpha, beta, and who is first, by a margin.

    Each method is first some times, and each shortcut is wrong some times.
    """
    rng, races = np.random.default_rng(seed), list[Race]()
    left: dict[str, int] = {}
    while not left or any(left.values()):
        compute = float(f"{rng.uniform(0.02, 0.5):.3g}")
        methods = _methods(rng, compute, hides)
        alpha = float(f"{compute * 10 ** rng.uniform(-5, 0):.3g}")
        beta = float(f"{compute / methods['exact']['bytes'] * 10 ** rng.uniform(-2, 2):.3g}")
        times = {name: seconds_to_goal(method, compute, alpha, beta) for name, method in methods.items()}
        first, second = sorted(times, key=lambda name: times[name])[:2]
        wrong = _shortcuts(methods, compute, alpha, beta, hides)
        left = left or dict.fromkeys([*methods, *wrong], EACH)
        tells = [first, *(what for what, who in wrong.items() if who != first)]
        if times[second] >= MARGIN * times[first] and any(left[what] for what in tells):
            left |= {what: max(0, left[what] - 1) for what in tells}
            races.append((methods, compute, alpha, beta, first))
    return [races[place] for place in rng.permutation(len(races))]
