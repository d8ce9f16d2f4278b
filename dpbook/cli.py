"""The command ``dpbook``. Each subcommand imports what it needs only when it runs, so that ``--help`` is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dpbook import __version__
from dpbook.errors import DpbookError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    own, script = _split(sys.argv[1:] if argv is None else list(argv))
    args, unknown = _parser().parse_known_args(own)
    if unknown and args.command != "launch":
        _parser().error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown, args.script = unknown, script
    try:
        status: int = args.run(args)
    except DpbookError as error:
        print(f"dpbook {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those after the first "--" of a launch: somebody's script with its own."""
    if argv[:1] != ["launch"] or "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dpbook", description="A book on data-parallel training that runs.")
    parser.add_argument("--version", action="version", version=f"dpbook {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    lab = commands.add_parser("lab", help="copy the notebooks to workbook/ and open JupyterLab there")
    lab.add_argument("--ip", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    lab.add_argument("--port", type=int, default=8888, help="first port to try (default: %(default)s)")
    lab.add_argument("--no-browser", action="store_true", help="print the address instead of opening it")
    lab.add_argument("--allow-root", action="store_true", help="run as root all the same")
    lab.set_defaults(run=_lab)

    doctor = commands.add_parser("doctor", help="say what this machine can run, and what is missing")
    doctor.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    doctor.set_defaults(run=_doctor)

    validate = commands.add_parser("validate", help="run notebooks and compare every output with the stored one")
    validate.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="notebooks or folders (default: chapters and solutions)"
    )
    validate.add_argument("--write", action="store_true", help="run the notebooks and store their outputs instead")
    validate.add_argument("-n", "--jobs", type=int, default=2, help="notebooks checked at once (default: %(default)s)")
    validate.set_defaults(run=_validate)

    bench = commands.add_parser("bench", help="time all-reduces between processes, over a range of message sizes")
    bench.add_argument("--nproc", type=int, default=2, help="number of ranks (default: %(default)s)")
    bench.add_argument("--algorithms", default="dist.all_reduce,ring", help="names, with commas (default: %(default)s)")
    bench.add_argument("--smallest", type=int, default=10, help="smallest size: 2 to this power bytes (default: 10)")
    bench.add_argument("--largest", type=int, default=24, help="largest size: 2 to this power bytes (default: 24)")
    bench.add_argument("--repeats", type=int, default=25, help="timed calls per size (default: %(default)s)")
    bench.add_argument("--out", type=Path, help="folder to write bench.json and bench.png into")
    bench.set_defaults(run=_bench)

    launch = commands.add_parser(
        "launch",
        help="train on several processes: our program, or a script of your own after --",
        description="Start a training run with torchrun. Options that are not listed here are the program's; "
        "`dpbook launch --program-help` lists those. A script of your own comes after --, with its arguments.",
    )
    launch.add_argument("--nproc", type=int, help="ranks on this machine (default: one per GPU; without any, 2)")
    launch.add_argument("--nnodes", type=int, default=1, help="number of machines (default: %(default)s)")
    launch.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where several machines meet: one of them")
    launch.add_argument(
        "--max-restarts", type=int, default=0, help="how often a failed run is started again (default: 0)"
    )
    launch.add_argument(
        "--start-timeout", type=float, default=300, metavar="S",
        help="seconds for which ranks and machines wait for each other to start (default: %(default)s)",
    )  # fmt: skip
    launch.add_argument(
        "--check-calls", type=float, nargs="?", default=0, const=60, metavar="S",
        help="slow: before every collective that Python code calls, see that all ranks make the same call, and name "
        "the one that has not come after S seconds (default: 60)",
    )  # fmt: skip
    launch.add_argument(
        "--no-alone", action="store_true", help="leave out the short run on one process that the report compares with"
    )
    launch.add_argument("--no-preflight", action="store_true", help="start even where a problem is foreseen")
    launch.add_argument("--program-help", action="store_true", help="list the options of our training program")
    launch.set_defaults(run=_launch)

    report = commands.add_parser("report", help="write the report of a run once more")
    report.add_argument("folder", type=Path, help="folder of the run, such as runs/run")
    report.add_argument("--baseline", type=Path, help="folder of the same training on one process, to compare with")
    report.set_defaults(run=_report)
    return parser


def _lab(args: argparse.Namespace) -> int:
    from dpbook.jupyter import open_lab

    open_lab(ip=args.ip, port=args.port, browser=not args.no_browser, allow_root=args.allow_root)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from dpbook.doctor import diagnose

    diagnosis = diagnose()
    print(diagnosis.to_json() if args.json else diagnosis)
    return 0 if diagnosis.ok else 1


def _validate(args: argparse.Namespace) -> int:
    from dpbook import validate

    if args.write:
        return validate.write(args.paths)
    return validate.compare(args.paths, jobs=args.jobs)


def _bench(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from dpbook import bench
    from dpbook.errors import check_int

    check_int("--smallest", args.smallest, 2, 32)
    check_int("--largest", args.largest, args.smallest, 32)
    sizes = [2**power for power in range(args.smallest, args.largest + 1)]
    names = args.algorithms.split(",")
    found = bench.run(args.nproc, names, sizes, args.repeats, lambda each: tqdm(each, unit="algorithm"))
    print(found)
    for path in bench.write(found, args.out) if args.out else ():
        print(f"written: {path}")
    return 0


def _launch(args: argparse.Namespace) -> int:
    from dpbook import machine
    from dpbook.distributed import launch, preflight
    from dpbook.distributed.program.options import add_options, from_namespace

    program = argparse.ArgumentParser(prog="dpbook launch", usage="dpbook launch [launch options] [options below]")
    add_options(program)
    if args.program_help:
        program.print_help()
        return 0
    if args.script and args.unknown:
        program.error(f"unrecognized arguments before --: {' '.join(args.unknown)}")
    for word in args.unknown:
        if word.endswith(".py"):
            program.error(f"a script of your own comes after --, as in `dpbook launch -- {word}`")
    options = None if args.script else from_namespace(program.parse_args(args.unknown))
    gpus = machine.accelerators()
    nproc = args.nproc if args.nproc is not None else launch.default_processes(gpus)
    ours = ("-m", "dpbook.distributed.program", *args.unknown)
    started = launch.Launch(
        tuple(args.script) or ours, nproc, args.nnodes, args.rdzv_endpoint, args.max_restarts,
        args.start_timeout, args.check_calls,
    )  # fmt: skip
    found = preflight.preflight(nproc, nnodes=args.nnodes, endpoint=args.rdzv_endpoint, options=options, gpus=gpus)

    def say(text: str) -> None:
        print(f"dpbook launch: {text}", file=sys.stderr, flush=True)

    for finding in found:
        say(str(finding))
    if any(finding.kind == "problem" for finding in found) and not args.no_preflight:
        say("not started (--no-preflight starts all the same)")
        return 1
    ended = launch.run(started, say)
    if ended.status == 0 and ended.had_rank_0 and options is not None:
        from dpbook import report
        from dpbook.distributed import baseline

        if started.nnodes * nproc > 1 and not args.no_alone:
            say(f"{baseline.STEPS} steps on one process, to compare with (--no-alone leaves them out)")
            baseline.train_alone(options, nproc, say)
        print(f"report: {report.write(options.folder)}")
    return ended.status


def _report(args: argparse.Namespace) -> int:
    from dpbook import report

    print(report.write(args.folder, args.baseline))
    return 0
