"""How fast is `FullySharded` beside torch's `fully_shard`, what does it need, and what does prefetch save?

    python tests/benchmarks/bench_sharded.py [--repeats 15]

A small GPT, two processes over gloo on this machine, one torch thread each. Where it says so the link is emulated.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import sharded_steps
from tests.benchmarks.bench_ddp import on_two_ranks, ratios
from tests.benchmarks.rows import Row, begin, show

NAME = "small GPT, a unit per block, fully sharded: ours / torch's"
LINKED = "emulated link, communication as long as computation"


def main() -> None:
    repeats = begin(__doc__, repeats=15)
    times = on_two_ranks(sharded_steps.steps, repeats)
    show(Row(NAME, ratios(times, "ours", "torch"), "×", at_most=1.15, headline=True))
    show(Row(f"{NAME}, without resharding after forward", ratios(times, "kept", "torch, kept"), "×", at_most=1.15))
    show(Row("    over schedules / over gloo", ratios(times, "schedules", "ours"), "×"))
    show(Row("    fully sharded / bucketed", ratios(times, "ours", "ddp"), "×"))
    peaks = on_two_ranks(sharded_steps.peaks, repeats)
    for name, values in peaks.items():
        show(Row(f"    peak, {name}", values, "MiB"))
    show(Row("peak of two steps of AdamW: ours / torch's", ratios(peaks, "ours", "torch"), "×", at_most=1.1))
    print("peak of forward and backward over an emulated link, shards counted:")
    for depth, found in on_two_ranks(sharded_steps.foreseen, repeats).items():
        show(Row(f"    prefetch {depth}", found["measured"], "MiB"))
        off = [100 * (s / m - 1) for s, m in zip(found["simulated"], found["measured"], strict=True)]
        name = f"peak over an emulated link, prefetch {depth}: simulated beside measured"
        show(Row(name, off, "%", at_least=-10, at_most=10))
    times = on_two_ranks(sharded_steps.over_a_link, repeats)
    print(f"{LINKED}:")
    for name in times:
        show(Row(f"    {name}", [1e3 * t for t in times[name]], "ms"))
    show(Row(f"{LINKED}: no prefetch / prefetch 1", ratios(times, "prefetch 0", "prefetch 1"), "×", at_least=1.2))
    show(Row(f"{LINKED}: no prefetch / prefetch 2", ratios(times, "prefetch 0", "prefetch 2"), "×", at_least=1.2))
    naps = on_two_ranks(sharded_steps.napping, repeats)
    for depth, found in naps.items():
        show(Row(f"    prefetch {depth}", [1e3 * t for t in found["measured"]], "ms"))
        off = [100 * (s / m - 1) for s, m in zip(found["simulated"], found["measured"], strict=True)]
        name = f"computation that needs no core, prefetch {depth}: simulated step beside the measured one"
        show(Row(name, off, "%", at_least=-10, at_most=10))
    saved = [a / b for a, b in zip(naps[0]["measured"], naps[1]["measured"], strict=True)]
    show(Row("computation that needs no core: no prefetch / prefetch 1", saved, "×", at_least=1.2))


if __name__ == "__main__":
    main()
