"""Races of task 16.4, of methods over a link: which reaches the goal first."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Method: TypeAlias = dict[str, float | bool]
Race: TypeAlias = tuple[dict[str, Method], float, float, float, str]
MARGIN, CASES_EACH = 1.04, 3
"""Least ratio of the second method's seconds to the first's; and cases for each winner and each shortcut."""


def seconds_to_goal(method: Mapping[str, Any], compute: float, alpha: float, beta: float) -> float:
    """Return the seconds until a method reaches the goal."""
    work = method["every"] * compute + method["extra"]
    meeting = method["rounds"] * alpha + method["bytes"] * beta
    period = max(work, meeting) if method["hidden"] else work + meeting
    return float(method["steps"] / method["every"] * period)


def _methods(rng: np.random.Generator, compute: float, hides: bool) -> dict[str, Method]:
    """Draw methods in random order. Their bytes are those of a ring, or of an all-gather of a few indexed numbers."""
    ranks, steps = int(rng.choice([4, 8, 16, 64])), int(rng.integers(4000, 9000))
    parameters = 10**6 * int(rng.integers(5, 500))
    rounds, ring = 2 * (ranks - 1), 8 * (ranks - 1) * parameters // ranks
    few = int(8 * parameters * rng.uniform(0.002, 0.01)) * (ranks - 1)

    def method(slower: float, nbytes: int, every: int = 1, extra: float = 0.0, **other: float | bool) -> Method:
        factor = float(rng.uniform(1, slower))
        costs = {"rounds": rounds, "bytes": nbytes, "extra": float(f"{extra * compute * rng.uniform(0.5, 1):.3g}")}
        return {"steps": int(factor * steps), "every": every, **costs, "hidden": False, **other}

    methods = {
        "exact": method(1.0, ring),
        "bf16": method(1.1, ring // 2, extra=0.2),
        "top-k": method(1.8, few, extra=0.6) | {"rounds": ranks - 1},
        "local SGD": method(2.5, ring, every=int(rng.choice([4, 8, 16, 32]))),
        "DiLoCo": method(3.0, ring, every=int(rng.choice([50, 100])), extra=0.6),
    }
    if hides:
        methods["stale"] = method(1.8, ring, hidden=True)
        methods["stale and local"] = method(3.5, ring, every=int(rng.choice([2, 4])), extra=0.6, hidden=True)
    return {name: methods[name] for name in rng.permutation(list(methods)).tolist()}


def _shortcuts(methods: Mapping[str, Method], compute: float, alpha: float, beta: float, hides: bool) -> dict[str, str]:
    """Return, for each shortcut in the calculation, the method that it would name first."""

    def seconds(method: Method, **changed: float) -> float:
        return seconds_to_goal({**method, **changed}, compute, alpha, beta)

    shortcuts: dict[str, Callable[[Method], float]] = {
        "latency": lambda m: seconds_to_goal(m, compute, 0.0, beta),
        "bandwidth": lambda m: seconds_to_goal(m, compute, alpha, 0.0),
        "compression": lambda m: seconds(m, extra=0.0),
        "periods": lambda m: seconds(m, every=1),
        "steps": lambda m: seconds(m, steps=1),
    }
    if hides:
        shortcuts |= {
            "hidden": lambda m: seconds(m, hidden=False),
            "a step hides": lambda m: seconds(m, every=1) / m["every"] + (1 - 1 / m["every"]) * m["steps"] * compute,
            "compression hides": lambda m: seconds(m, extra=0.0) + m["steps"] / m["every"] * m["extra"],
            "compression is hidden": lambda m: seconds(m, extra=0.0, bytes=m["bytes"] + m["extra"] / beta),
        }
    return {name: min(methods, key=lambda method: of(methods[method])) for name, of in shortcuts.items()}


EXACT: Method = {"steps": 1000, "every": 1, "rounds": 2, "bytes": 50_000_000, "extra": 0.0, "hidden": False}
SELDOM: Method = EXACT | {"every": 1000, "bytes": 10_000_000_000}
FRACTIONS: list[Race] = [
    ({"exact": EXACT, "seldom": SELDOM | {"steps": 1100}}, 0.1, 1e-6, 1e-9, "seldom"),
    ({"exact": EXACT, "seldom": SELDOM | {"steps": 1900}}, 0.1, 1e-6, 1e-9, "exact"),
]
"""Races in which it matters that a part of a period counts as a part."""


@lru_cache(maxsize=16)
def drawn_races(seed: int, hides: bool) -> list[Race]:
    """Draw races: methods, seconds of computation, alpha, beta, and the name of the fastest method.

    The fastest wins by a margin. Each method wins several times, and each shortcut is wrong several times.
    """
    rng, races = np.random.default_rng(seed), list[Race]()
    missing: dict[str, int] = {}
    while not missing or any(missing.values()):
        compute = float(f"{rng.uniform(0.02, 0.5):.3g}")
        methods = _methods(rng, compute, hides)
        alpha = float(f"{compute * 10 ** rng.uniform(-5, 0):.3g}")
        beta = float(f"{compute / methods['exact']['bytes'] * 10 ** rng.uniform(-2, 2):.3g}")
        times = {name: seconds_to_goal(method, compute, alpha, beta) for name, method in methods.items()}
        first, second = sorted(times, key=lambda name: times[name])[:2]
        wrong = _shortcuts(methods, compute, alpha, beta, hides)
        missing = missing or dict.fromkeys([*methods, *wrong], CASES_EACH)
        covers = [first, *(shortcut for shortcut, winner in wrong.items() if winner != first)]
        if times[second] >= MARGIN * times[first] and any(missing[name] for name in covers):
            missing |= {name: max(0, missing[name] - 1) for name in covers}
            races.append((methods, compute, alpha, beta, first))
    return [*FRACTIONS, *(races[place] for place in rng.permutation(len(races)))]
