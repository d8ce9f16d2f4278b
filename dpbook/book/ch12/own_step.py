"""A step of this machine for task 12.4: its parts are measured first, and its updates once there is a forecast."""

import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dpbook.core import InvalidArgument, check_float
from dpbook.ranks import start

RANKS, UPDATES = 2, 20
PART_CALLS = 12
LAYERS, WIDTH, EXAMPLES = 6, 384, 256


def _timed(work: Callable[[], None], calls: int) -> list[float]:
    """Return the seconds of so many calls, to the microsecond; the ranks begin each together. Three go before."""
    seconds = []
    for _ in range(calls + 3):
        dist.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(round(time.perf_counter() - begin, 6))
    return seconds[3:]


def _measure(*parts: str) -> dict[str, list[float]]:
    """Return a rank's seconds of each of these parts: "compute" and "sync", or both as an "update"."""
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model, x = torch.nn.Sequential(*layers), torch.randn(EXAMPLES, WIDTH)
    parameters = list(model.parameters())

    def compute() -> None:
        model(x).square().mean().backward()

    def sync() -> None:
        for parameter in parameters:
            dist.all_reduce(parameter.grad)

    def update() -> None:
        compute()
        sync()

    compute()
    calls = {"compute": (compute, PART_CALLS), "sync": (sync, PART_CALLS), "update": (update, UPDATES)}
    return {part: _timed(*calls[part]) for part in parts}


def _by_rank(*parts: str) -> dict[str, Any]:
    ranks = start(_measure, [parts] * RANKS)
    return {part: [rank[part] for rank in ranks] for part in parts}


def measure_parts() -> dict[str, Any]:
    """Measure, on each of two ranks, the seconds of computation alone and of the all-reduces alone, call by call."""
    return _by_rank("compute", "sync") | {"measured": time.time()}


def measure_updates(parts: dict[str, Any], forecast: float) -> str:
    """Note the forecast, in seconds, measure the updates of two ranks, and return the log of all three as one line.

    ``parts`` is what `measure_parts` returned. Raises `InvalidArgument`.
    """
    forecast, forecast_at = check_float("forecast", forecast, above=0), time.time()
    if not isinstance(parts, dict) or not {"compute", "sync", "measured"} <= parts.keys():
        raise InvalidArgument("parts", parts, "the result of measure_parts")
    log = parts | {"forecast": forecast, "forecast_at": forecast_at} | _by_rank("update")
    return json.dumps(log | {"updated": time.time()})
