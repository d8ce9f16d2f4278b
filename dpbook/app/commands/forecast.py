"""``dpbook forecast``"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpbook.runs.forecast import Connection
    from dpbook.runs.launch import Launch


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "dpbook forecast [options] script.py [its arguments]"
    parser.description = (
        "Run a training script, unchanged, on one process, measure some of its "
        "updates, and predict how long they take on more GPUs and with which buckets. With --check also run it on "
        "N ranks, and compare the forecast with the measured time."
    )
    parser.epilog = """examples:
  dpbook forecast --gpus 8,64 --link 8xNVLink4+NDR train.py --batch 32
  dpbook forecast --check 2 --link 1GbE train.py"""
    parser.add_argument(
        "--gpus", default="2,8", metavar="N,…", help="comma-separated numbers of GPUs (default: %(default)s)"
    )
    parser.add_argument(
        "--link", metavar="NAME,…", help="comma-separated links between any two GPUs: 1GbE, 25GbE, 100GbE, HDR, NDR, "
        "XDR, PCIe4, NVLink3, NVLink4, NVLink5, a rate such as 10Gb/s or 500Mb/s+50us, or nodes such as "
        "8xNVLink4+NDR: the GPUs of a node, their link, and each GPU's link to other nodes (default: 25GbE)",
    )  # fmt: skip
    parser.add_argument("--stages", default="0", metavar="S,…", help="0: DDP; 1 to 3: sharded (default: 0)")
    parser.add_argument(
        "--measure", type=int, metavar="N", help="also forecast for the link of this machine, measured with "
        "all-reduces between N ranks as `dpbook bench` does",
    )  # fmt: skip
    parser.add_argument(
        "--check", metavar="N,…", help="also run the script on N ranks of this machine, every second "
        "update over an emulation of the link, and compare",
    )  # fmt: skip
    parser.add_argument(
        "--nproc",
        type=int,
        default=1,
        help="number of processes on which the script is measured (default: %(default)s)",
    )
    parser.add_argument("--spawns", action="store_true", help="as for launch: the script starts its ranks itself")
    parser.add_argument(
        "--updates", type=int, default=12, metavar="K", help="number of updates to measure, after three that do not "
        "count (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--start-timeout", type=float, default=300, metavar="S", help="as for launch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the forecast to FILE as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure the script, simulate the step on more GPUs, and print the forecast."""
    from dpbook.core import DpbookError, InvalidArgument, check_int
    from dpbook.runs.forecast import ScriptStopped, connection
    from dpbook.runs.launch import Launch

    if not args.script:
        raise DpbookError("no script was given; an example: dpbook forecast train.py")
    worlds, stages = _numbers("gpus", args.gpus, 2), _numbers("stages", args.stages, 0, 3)
    ranks = _numbers("check", args.check, 2) if args.check else []
    links = [connection(name) for name in (args.link or ("" if args.measure else "25GbE")).split(",") if name]
    if args.measure is None and not links:
        raise InvalidArgument("link", args.link, "a link, or a comma-separated list of links")
    if args.json and not args.json.parent.is_dir():
        raise InvalidArgument("--json", str(args.json), "a file in a folder that exists")
    if ranks and (over_nodes := [link.name for link in links if link.inside]):
        raise InvalidArgument("link", over_nodes[0], "one link between all ranks: --check cannot emulate nodes")
    updates = check_int("updates", args.updates, 1)
    spec = Launch(tuple(args.script), args.nproc, start_timeout=args.start_timeout, spawns=args.spawns)
    if args.measure is not None:
        links.append(_here(check_int("measure", args.measure, 2)))
    try:
        if ranks:
            text, data = _check(spec, updates, ranks, links)
        else:
            text, data = _forecast(spec, updates, worlds, links, stages)
    except ScriptStopped as stopped:
        _say(str(stopped))
        return stopped.status
    print(text)
    if args.json:
        args.json.write_text(data + "\n", encoding="utf-8")
    return 0


def _forecast(
    spec: Launch, updates: int, worlds: Sequence[int], links: Sequence[Connection], stages: Sequence[int]
) -> tuple[str, str]:
    """Return the forecast as text and as JSON."""
    from dpbook.runs.forecast import as_json, forecast, format_forecast, measure_step

    measured = measure_step(spec, updates, _say)
    if measured.accumulation > 1 and spec.nproc == 1:
        _say(f"{measured.accumulation} micro-batches in an update: checking whether two ranks share them")
        on_two = measure_step(replace(spec, nproc=2), 1, _say)
        measured = replace(measured, divided=2 * on_two.accumulation == measured.accumulation)
    rows = forecast(measured, worlds, links, stages)
    return format_forecast(measured, rows), as_json([measured], rows)


def _check(spec: Launch, updates: int, worlds: Sequence[int], links: Sequence[Connection]) -> tuple[str, str]:
    from dpbook.core import plural
    from dpbook.runs.forecast import as_json, check_forecast, format_checks, measure_step

    runs = []
    for world in worlds:
        for link in links:
            _say(f"{plural(world, 'rank')} over {link.name}")
            emulated = None if link.fits else link.link
            measured = measure_step(replace(spec, nproc=world), updates, _say, check=True, link=emulated)
            runs.append((measured, check_forecast(measured, link)))
    return format_checks(runs), as_json([measured for measured, _ in runs], [row for _, row in runs])


def _here(ranks: int) -> Connection:
    """Measure the link between ranks of this machine and return it."""
    from dpbook.core import machine
    from dpbook.ranks import sweep, sweep_accelerators
    from dpbook.runs.forecast import fit_connection

    _say(f"timing all-reduces between {ranks} ranks")
    return fit_connection((sweep_accelerators if len(machine.gpus()) >= ranks else sweep)(ranks))


def _numbers(name: str, text: str, least: int, most: int | None = None) -> list[int]:
    from dpbook.core import InvalidArgument, check_int

    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidArgument(name, text, "comma-separated numbers") from None
    return [check_int(name, number, least, most) for number in numbers]


def _say(text: str) -> None:
    print(f"dpbook forecast: {text}", file=sys.stderr, flush=True)
