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
    """Return the seconds of each of so many calls, which the ranks begin together; the first three do not count."""
    seconds = []
    for _ in range(calls + 3):
        dist.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds[3:]


def _measure(updates: bool) -> dict[str, list[float]]:
    """Return the seconds of a rank: of its updates, or of computation alone and of the all-reduces alone."""
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
    if updates:
        return {"update": _timed(update, UPDATES)}
    return {"compute": _timed(compute, PART_CALLS), "sync": _timed(sync, PART_CALLS)}


def measure_parts() -> dict[str, Any]:
    """Measure, on each of two ranks, the seconds of computation alone and of the all-reduces alone, call by call."""
    ranks = start(_measure, [(False,)] * RANKS)
    return {"compute": [r["compute"] for r in ranks], "sync": [r["sync"] for r in ranks], "measured": time.time()}


def measure_updates(parts: dict[str, Any], forecast: float) -> str:
    """Note the forecast, in seconds, measure the updates of two ranks, and return the log of all three as one line.

    ``parts`` is what `measure_parts` returned. Raises `InvalidArgument`.
    """
    forecast, forecast_at = check_float("forecast", forecast, above=0), time.time()
    if not isinstance(parts, dict) or not {"compute", "sync", "measured"} <= parts.keys():
        raise InvalidArgument("parts", parts, "the result of measure_parts")
    ranks = start(_measure, [(True,)] * RANKS)
    log = parts | {"forecast": forecast, "forecast_at": forecast_at}
    log |= {"update": [rank["update"] for rank in ranks], "updated": time.time()}
    rounded = {name: _rounded(value) for name, value in log.items()}
    return json.dumps(rounded)


def _rounded(value: Any) -> Any:
    return [[round(s, 6) for s in rank] for rank in value] if isinstance(value, list) else value
