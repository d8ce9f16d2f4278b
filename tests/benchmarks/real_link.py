"""An emulated link beside a real one of the same speed, for the same steps. Linux, root, `ip` and `tc`.

    sudo .venv/bin/python tests/benchmarks/real_link.py [--repeats 15] [--write FILE]

Two network namespaces are joined by a veth pair whose ends are limited by a token bucket; each holds one rank. They are
deleted in the end. --write stores what was measured, with machine, versions and date, as JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pickle
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from dpbook.collectives import Link  # noqa: E402
from dpbook.core import machine  # noqa: E402
from dpbook.ranks import start  # noqa: E402
from tests.benchmarks import ddp_steps  # noqa: E402
from tests.benchmarks.rows import Row  # noqa: E402

SPEED = 500  # Mbit/s
LINK = Link.gigabits(SPEED / 1000, latency=1e-4)
PORT = 29561
# With packets of 1,500 bytes the cost of each would eat what overlap gains.
SETUP = """
ip netns add dpbook0 && ip netns add dpbook1
ip link add dpbook0 netns dpbook0 type veth peer name dpbook1 netns dpbook1
""" + "".join(
    f"""
ip -n dpbook{rank} addr add 10.98.76.{rank + 1}/30 dev dpbook{rank}
ip -n dpbook{rank} link set dpbook{rank} mtu 65000 up
ip -n dpbook{rank} link set lo up
ip netns exec dpbook{rank} tc qdisc add dev dpbook{rank} root tbf rate {SPEED}mbit burst 256kb latency 400ms
"""
    for rank in range(2)
)


def over_the_real_link(repeats: int) -> dict[str, list[float]]:
    """Times that rank 0 measured, between the two namespaces."""
    subprocess.run(["bash", "-ec", SETUP], check=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen(command(rank, repeats, folder), env=environment(rank)) for rank in range(2)]
            if max(rank.wait() for rank in ranks):
                raise SystemExit("a rank failed")
            return pickle.loads((Path(folder) / "times").read_bytes())  # our own child wrote it
    finally:
        for rank in range(2):
            subprocess.run(["ip", "netns", "del", f"dpbook{rank}"], check=False)


def command(rank: int, repeats: int, folder: str) -> list[str]:
    return [
        "ip",
        "netns",
        "exec",
        f"dpbook{rank}",
        sys.executable,
        __file__,
        "--rank",
        folder,
        "--repeats",
        str(repeats),
    ]


def environment(rank: int) -> dict[str, str]:
    where = {"MASTER_ADDR": "10.98.76.1", "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": f"dpbook{rank}"}
    return {**os.environ, **machine.MALLOC_SETTINGS, **where, "RANK": str(rank), "WORLD_SIZE": "2"}


def one_rank(folder: str, repeats: int) -> None:
    dist.init_process_group("gloo")
    try:
        times = ddp_steps.over_a_link(dist.get_rank(), repeats, None)
        if dist.get_rank() == 0:
            (Path(folder) / "times").write_bytes(pickle.dumps(times))
    finally:
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads may still hold tensors: see dpbook/ranks/worker.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="steps of each wrapper that count")
    parser.add_argument("--write", type=Path, help="store what was measured in this file")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        one_rank(options.rank, options.repeats)
    emulated = start(ddp_steps.over_a_link, [(rank, options.repeats, LINK) for rank in range(2)], timeout=900)[0]
    real = over_the_real_link(options.repeats)
    steps = start(ddp_steps.predicted_and_measured, [(r, options.repeats, LINK) for r in range(2)], timeout=900)[0]
    for name in emulated:
        for kind, times in (("emulated", emulated), ("real", real)):
            print(Row(f"{name}, {kind} link", [1e3 * t for t in times[name]], "ms"))
    for cap, found in steps.items():
        off = 100 * (median(found["predicted"]) / median(found["measured"]) - 1)
        print(Row(f"cap {cap} MiB: predicted, off by percent", [off], "%", at_least=-10, at_most=10))
    if options.write:
        options.write.write_text(json.dumps(record(options.repeats, emulated, real, steps), indent=1) + "\n")


def record(repeats: int, emulated: dict, real: dict, steps: dict) -> dict:
    """All times in milliseconds."""

    def ms(times: list[float]) -> list[float]:
        return [round(1e3 * t, 1) for t in times]

    return {
        "what": "step times of a small GPT (19.5 MB of gradients) on 2 ranks, interleaved; milliseconds, rank 0",
        "link": {"gigabits_per_second": SPEED / 1000, "latency_seconds": LINK.latency},
        "cap_mib": ddp_steps.CAP,
        "emulated": {name: ms(times) for name, times in emulated.items()},
        "real": {name: ms(times) for name, times in real.items()},
        "real_link": "veth pair between two network namespaces, token bucket on both ends, MTU 65000",
        "caps_mib": list(steps),
        "predicted": [ms(found["predicted"]) for found in steps.values()],
        "measured": [ms(found["measured"]) for found in steps.values()],
        "predicted_from": "backward times measured in turn with the steps, the closed form of a ring, the bucket rule",
        "repeats": repeats,
        "machine": f"{machine.processor()}, {os.cpu_count()} cores, one torch thread per rank, gloo",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "date": str(datetime.date.today()),
    }


if __name__ == "__main__":
    main()
