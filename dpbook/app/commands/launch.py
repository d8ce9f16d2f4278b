"""``dpbook launch``"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dpbook.core import handling_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpbook.core import Gpu
    from dpbook.runs.launch import Launch
    from dpbook.runs.trainer import Options

CONTINUED = 128 + signal.SIGUSR1
"""The exit status of a launch whose ranks have saved and left because they were asked to."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, without those of the training program."""
    parser.description = (
        "Start a training run with torchrun. All other options belong to our training program; "
        "`dpbook launch --program-help` lists them. To start your own script, give it and its arguments last, "
        "or -m and a module."
    )
    parser.epilog = """examples:
  dpbook launch --nproc 4 train.py --epochs 1
  dpbook launch --nproc 4 --report train.py --epochs 1
  dpbook launch --nproc 2 --steps 200 --name first"""
    parser.add_argument("--nproc", type=int, help="ranks on this machine (default: one per GPU; without any, 2)")
    parser.add_argument(
        "--spawns", action="store_true", help="for a script that starts these ranks itself, as with "
        "torch.multiprocessing.spawn: run it once, without torchrun",
    )  # fmt: skip
    parser.add_argument("--nnodes", type=int, default=1, help="number of machines (default: %(default)s)")
    parser.add_argument(
        "--rdzv-endpoint", metavar="HOST:PORT", help="with several machines: one of them, and a free port on it"
    )
    parser.add_argument(
        "--max-restarts", type=int, default=0, help="how many times to restart a failed run (default: 0)"
    )
    parser.add_argument(
        "--start-timeout", type=float, default=300, metavar="S",
        help="seconds to wait for all ranks and machines to start (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--check-calls", type=float, nargs="?", default=0, const=60, metavar="S",
        help="before every collective called from Python, check that all ranks make the same call, and name the "
        "rank that is missing after S seconds (default: 60); slow",
    )  # fmt: skip
    parser.add_argument(
        "--hang-timeout", type=float, metavar="S",
        help="stop a run that has hung for S seconds, and show each rank's line. A run hangs if a rank waits in a "
        "collective and no rank calls one, computes, reads or writes (default: 540, before NCCL's timeout of 600, or "
        "the script's own timeout if that is longer; 0: never; on several machines only if given)",
    )  # fmt: skip
    parser.add_argument(
        "--logs", type=Path, metavar="DIR",
        help="write the output of all ranks except rank 0 to a new folder in DIR (default: for our program the run's "
        "folder; for a script runs/logs, only if it fails)",
    )  # fmt: skip
    parser.add_argument(
        "--report", action="store_true", help="for a script: write a page to a new folder in runs/reports: where "
        "each rank's step time goes, and what would shorten it (our program always writes its report)",
    )  # fmt: skip
    parser.add_argument(
        "--report-name", metavar="NAME", help="name of the report's folder (default: the script's name)"
    )
    parser.add_argument(
        "--alone", action=argparse.BooleanOptionalAction, help="add a short run on one process to the report, for "
        "comparison (default: yes for our program; no for a script, because it would write its files again)",
    )  # fmt: skip
    parser.add_argument(
        "--continue-changed", action="store_true", help="resume the run of this name even if its options differ"
    )
    parser.add_argument(
        "--no-preflight", action="store_true", help="start even if a check before the start finds a problem"
    )
    parser.add_argument("--torchrun-report", action="store_true", help="if a run fails, also show torchrun's report")
    parser.add_argument("--program-help", action="store_true", help="list the options of our training program")


def run(args: argparse.Namespace) -> int:
    """Run the preflight, start the ranks, and report; a signal before or after that also ends this process cleanly."""
    signals: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        signals.append(number)  # what is raised here Python may drop, as between two imports: `launch` looks
        sys.exit(128 + number)

    with handling_signals(leave):
        return _run(args, signals)


def _run(args: argparse.Namespace, signals: list[int]) -> int:
    from dpbook.core import machine
    from dpbook.runs.launch import Launch, check_peers, default_processes, gpus_without_torch_build, launch, preflight
    from dpbook.runs.trainer import from_namespace, leaves_size_open, requirements

    if args.program_help:
        _program_parser().print_help()
        return 0
    parsed = _parse(args)
    gpus = machine.gpus()
    findings = gpus_without_torch_build(gpus)
    if findings:
        gpus = []
    nproc = args.nproc if args.nproc is not None else default_processes(gpus)
    if parsed and gpus and leaves_size_open(parsed):
        parsed.preset = _preset_for(parsed, nproc, args.nnodes, gpus)
        args.unknown = ["--preset", parsed.preset, *args.unknown]
    options = from_namespace(parsed) if parsed else None
    program = tuple(args.script or ()) or ("-m", "dpbook.runs.trainer", *args.unknown)
    spec = Launch(
        program, nproc, args.nnodes, args.rdzv_endpoint, args.max_restarts, args.start_timeout, args.check_calls,
        torchrun_report=args.torchrun_report, hang_timeout=args.hang_timeout,
        logs=args.logs or (options.folder / "logs" if options else None), spawns=args.spawns,
    )  # fmt: skip
    findings += preflight(nproc, nnodes=args.nnodes, endpoint=args.rdzv_endpoint, gpus=gpus, is_script=options is None)
    if options is not None:
        findings += requirements(options, nproc, nnodes=args.nnodes, gpus=gpus)
    if min(nproc, len(gpus)) > 1 and not args.no_preflight and all(each.kind == "warning" for each in findings):
        findings += check_peers()
    for finding in sorted(findings, key=lambda finding: finding.kind != "problem"):
        _say(str(finding))
    if any(finding.kind == "problem" for finding in findings) and not args.no_preflight:
        _say("not started; --no-preflight starts the run anyway")
        return 1
    if options is None:
        if args.report:
            return _launch_with_report(spec, signals, name=args.report_name, alone=bool(args.alone))
        return launch(spec, _say, signals).status
    return _train(spec, options, signals, changed=args.continue_changed, alone=args.alone is not False)


def _launch_with_report(spec: Launch, signals: list[int], *, name: str | None, alone: bool) -> int:
    """Start a script with hooks, and write its report in any case; the status is the script's."""
    from dpbook.runs.report import pages, script_report

    folder = script_report.new_report_folder(spec.name, name)
    status, report = script_report.launch_with_report(spec, folder, signals, _say, alone=alone)
    print(f"{report.headline()}\nreport: {pages.write_script(report, folder)}")
    return status


def _train(spec: Launch, options: Options, signals: list[int], *, changed: bool, alone: bool) -> int:
    """Start our program where its folder is free and holds no other run, and say what can be done with it then."""
    from dpbook.runs.launch import launch
    from dpbook.runs.trainer import is_finished, locked, metrics, refuse_to_mix, saved_steps
    from dpbook.runs.watching import with_hooks

    page = options.folder / metrics.REPORT
    with locked(options.folder, spec.endpoint if spec.nnodes > 1 else None, _say):
        refuse_to_mix(options, spec.nnodes * spec.nproc, changed=changed)
        if is_finished(options) and page.exists():
            _say(
                f"{options.folder} is finished: it has its {options.steps:,} steps; more --steps continue it, "
                "--name another begins a new run"
            )
            print(f"report: {page}")
            return 0
        page.unlink(missing_ok=True)
        ended = launch(with_hooks(spec, options.folder, {"sampled": True}, moments=True), _say, signals)
        if ended.status == 0 and not ended.had_rank_0:  # a disk may be slow to show this node what rank 0 has written
            return 0
        done = saved_steps(options.folder)[-1:]
        if ended.status in (0, CONTINUED) and done == [options.steps]:
            if ended.had_rank_0:
                _report(spec, options, alone=alone)
            return 0
        if done:
            _say(f"checkpoint of step {done[0]:,} saved; the same command resumes from it")
        return ended.status or CONTINUED


def _program_parser() -> argparse.ArgumentParser:
    from dpbook.runs.trainer import GROUP_TIMEOUT, add_options

    parser = argparse.ArgumentParser(prog="dpbook launch", usage="dpbook launch [launch options] [options below]")
    parser.description = (
        f"Our training program. A collective of its process group may take {GROUP_TIMEOUT:g} s. `dpbook launch` stops "
        "a run that hangs before that, unless --hang-timeout is longer."
    )
    add_options(parser)
    return parser


def _preset_for(parsed: argparse.Namespace, nproc: int, nnodes: int, gpus: Sequence[Gpu]) -> str:
    """Return the preset of a launch on GPUs that is given none, and say it."""
    from dpbook.runs.trainer import fits, from_namespace

    options = from_namespace(argparse.Namespace(**vars(parsed) | {"preset": "gpu"}))
    if not fits(options, nproc, nnodes=nnodes, gpus=gpus):
        _say("the GPUs have too little memory for --preset gpu: using the model of the CPU")
        return "none"
    size = f"{options.depth} layers of width {options.width:,} in {options.precision}"
    _say(f"there are GPUs, so --preset gpu is the default: {size} (--preset none: the small model of the CPU)")
    return "gpu"


def _parse(args: argparse.Namespace) -> argparse.Namespace | None:
    """Return the parsed options of our program; None where a user's script is to be started."""
    parser = _program_parser()
    if args.script is not None and not any(args.script):
        parser.error("expected a script after --, got nothing or an empty string (is a shell variable unset?)")
    if args.script and args.report and args.nnodes > 1:
        parser.error("--report works on one machine only: ranks on other machines write their journals there")
    if args.script and not args.report and (args.report_name or args.alone):
        parser.error("--report-name and --alone need --report")
    if args.spawns and (not args.script or args.alone):
        parser.error("--spawns needs a script, and --alone cannot be used with it: the script sets the number of ranks")
    if args.script and args.unknown:
        parser.error(f"unrecognized arguments before the script: {' '.join(args.unknown)}")
    return None if args.script else parser.parse_args(args.unknown)


def _report(spec: Launch, options: Options, *, alone: bool) -> None:
    from dpbook.runs.report import pages
    from dpbook.runs.trainer import STEPS_ALONE, train_alone

    if alone and spec.nnodes * spec.nproc > 1:
        _say(f"{STEPS_ALONE} steps on one process, to compare with (--no-alone leaves them out)")
        train_alone(options, spec.nproc, _say)
    path = pages.write(options.folder)
    print(f"{pages.headline(options.folder)}\nreport: {path}")


def _say(text: str) -> None:
    print(f"dpbook launch: {text}", file=sys.stderr, flush=True)
