"""How fast are our wrappers beside torch's DDP, what does overlap save on a slow link, and is the simulator right?

    python tests/benchmarks/bench_ddp.py [--repeats 15]

Two processes over gloo on this machine, one torch thread each. Where it says so the link is emulated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpbook.collectives import Link
from dpbook.ranks import start
from tests.benchmarks import ddp_steps
from tests.benchmarks.rows import Row, begin, show

LINK = Link.gigabits(0.5, latency=1e-4)


def on_two_ranks(function, *args):
    """Times that rank 0 measured."""
    return start(function, [(rank, *args) for rank in range(2)], timeout=900)[0]


def ratios(times: dict, above: str, below: str) -> list[float]:
    """Ratios of neighbours in time, so that other work of the machine counts little."""
    return [a / b for a, b in zip(times[above], times[below], strict=True)]


def main() -> None:
    repeats = begin(__doc__, repeats=15)
    times = on_two_ranks(ddp_steps.rings, repeats)
    show(
        Row(
            "ring of 2, 25 MB: speed beside dist.all_reduce",
            ratios(times, "gloo", "ring"),
            "×",
            at_least=0.9,
            headline=True,
        )
    )
    for name, times in on_two_ranks(ddp_steps.against_torch, repeats).items():
        ours = ratios(times, "bucketed", "torch")
        show(Row(f"{name}: bucketed / torch's DDP", ours, "×", at_most=1.0, headline=True))
        show(Row("    no sync / torch's DDP", ratios(times, "local", "torch"), "×"))
    times = on_two_ranks(ddp_steps.over_a_schedule, repeats)
    what = "small GPT, bucketed: gloo's ring as a schedule / dist.all_reduce"
    show(Row(what, ratios(times, "schedule", "gloo"), "×", at_most=1.15))
    times = on_two_ranks(ddp_steps.over_a_link, repeats, LINK)
    print(f"small GPT over an emulated link, {LINK}:")
    for name in times:
        show(Row(f"    {name}", [1e3 * t for t in times[name]], "ms"))
    slower = ratios(times, "flat", "bucketed")
    show(Row("small GPT over an emulated link: flat / bucketed", slower, "×", at_least=1.3, headline=True))
    for cap, found in on_two_ranks(ddp_steps.predicted_and_measured, repeats, LINK).items():
        off = median(found["predicted"]) / median(found["measured"]) - 1
        show(Row(f"    cap {cap:2} MiB: measured", [1e3 * t for t in found["measured"]], "ms"))
        name = f"small GPT over an emulated link, cap {cap} MiB: predicted step beside the measured one"
        show(Row(name, [100 * off], "%", at_least=-10, at_most=10))


if __name__ == "__main__":
    main()
