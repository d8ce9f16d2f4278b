"""``dpbook bench``"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--nproc", type=int, default=2, help="number of ranks (default: %(default)s)")
    parser.add_argument(
        "--algorithms",
        help="comma-separated names; `accelerators` is dist.all_reduce between GPUs over NCCL (default: "
        "dist.all_reduce,ring, and accelerators if there is one for each rank)",
    )
    parser.add_argument("--smallest", type=int, default=10, help="log2 of the smallest size in bytes (default: 10)")
    parser.add_argument(
        "--largest", type=int, help="log2 of the largest size in bytes (default: 24; between accelerators 30)"
    )
    parser.add_argument("--repeats", type=int, default=25, help="timed calls per size (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder to write bench.json and bench.svg into")


def run(args: argparse.Namespace) -> int:
    """Run the sweep and print its results."""
    from dpbook.core import check_int
    from dpbook.runs.report import benchmark

    check_int("--nproc", args.nproc, 1)
    check_int("--smallest", args.smallest, 2, 32)
    sizes = None
    if args.largest is not None or args.smallest != 10:
        largest = check_int("--largest", args.largest if args.largest is not None else 24, args.smallest, 32)
        sizes = [2**power for power in range(args.smallest, largest + 1)]
    names = args.algorithms.split(",") if args.algorithms else benchmark.names_here(args.nproc)
    if args.out:
        import matplotlib  # noqa: F401, before the measurement: it draws the figure
    found = benchmark.run(args.nproc, names, sizes, args.repeats, _announced)
    print(found)
    for path in benchmark.write(found, args.out) if args.out else ():
        print(f"written: {path}")
    return 0


def _announced(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        yield name
