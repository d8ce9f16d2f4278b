"""``dpbook audit``"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbook.runs.audit import Verdict

WITHOUT_GPUS = 3
"""Default number of ranks. With two, sums do not depend on their order, so an audit would prove less."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "dpbook audit [options] script.py [its arguments]"
    parser.description = (
        "Run a training script, unchanged, on several ranks, watch its first updates, "
        "and check whether they are what one process with the whole batch would do. The exit status is 0 if no check "
        "fails, 1 if a check fails, and 2 if no update was seen."
    )
    parser.epilog = """examples:
  dpbook audit --nproc 3 train.py --epochs 1
  dpbook audit --save "--out {folder}" --resume "--resume {folder}" train.py"""
    parser.add_argument("--nproc", type=int, help="ranks on this machine (default: one per GPU; without any, 3)")
    parser.add_argument("--spawns", action="store_true", help="as for launch: the script starts its ranks itself")
    parser.add_argument(
        "--updates", type=int, default=5, metavar="K", help="stop the script after K updates; 0: never "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--every", type=int, default=1, metavar="K", help="watch only every K-th update (default: 1)")
    parser.add_argument(
        "--replay", type=int, default=1, metavar="U", help="the update whose gradient is compared with the big "
        "batch's; 0: none (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--save", default="", metavar="OPTIONS", help='the script\'s options to save, as in "--save-every 5 --out '
        '{folder}"; {folder} is a folder that is deleted afterwards',
    )  # fmt: skip
    parser.add_argument(
        "--resume", metavar="OPTIONS", help='also end the script after --updates and start it again with these, as in '
        '"--resume {folder}"',
    )  # fmt: skip
    parser.add_argument(
        "--whole", metavar="OPTIONS", help="with --resume: the options of the run without a break, for a script that "
        "saves only at its end (default: those of --save)",
    )  # fmt: skip
    parser.add_argument("--start-timeout", type=float, default=300, metavar="S", help="as for launch")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="stop the run if a collective waits for S seconds, "
        "unless the script sets its own timeout (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--read", type=Path, metavar="FOLDER", help="start no ranks: audit the recording that the ranks of another "
        "launcher wrote to FOLDER (python -m dpbook.runs.watching --audit)",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="treat a warning as a failure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the verdict to FILE as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the verdict to FILE as a web page")


def run(args: argparse.Namespace) -> int:
    """Run or read the recording, audit it, print the verdict, and return the exit status."""
    from dpbook.core import DpbookError, InvalidArgument, machine
    from dpbook.runs.audit import Audit, audit, judge_recording
    from dpbook.runs.launch import preflight

    for name, path in (("json", args.json), ("html", args.html)):
        if path and not path.parent.is_dir():
            raise InvalidArgument(f"--{name}", str(path), "a file in a folder that exists")
    if args.read:
        return _tell(judge_recording(args.read, args.replay), args, str(args.read))
    if not args.script:
        raise DpbookError("no script was given; an example: dpbook audit train.py")
    gpus = machine.gpus()
    nproc = args.nproc if args.nproc is not None else max(2, len(gpus)) if gpus else WITHOUT_GPUS
    spec = Audit(
        tuple(args.script), nproc, args.updates, args.every, args.replay, args.save, args.resume, args.whole,
        args.start_timeout, args.timeout, args.spawns,
    )  # fmt: skip
    found = preflight(nproc, gpus=gpus, is_script=True)
    for finding in found:
        _say(str(finding))
    if any(finding.kind == "problem" for finding in found):
        return 1
    return _tell(audit(spec, _say), args, " ".join(args.script))


def _tell(verdict: Verdict, args: argparse.Namespace, name: str) -> int:
    """Print a verdict, write it to the requested files, and return the exit status."""
    print(verdict)
    if args.json:
        args.json.write_text(verdict.as_json() + "\n", encoding="utf-8")
    if args.html:
        from dpbook.runs.report import pages

        args.html.write_text(pages.audit_page(verdict, name), encoding="utf-8")
    warned = args.strict and any(line.result.status == "WARN" for line in verdict.findings)
    return 1 if warned and verdict.status == 0 else verdict.status


def _say(text: str) -> None:
    print(f"dpbook audit: {text}", file=sys.stderr, flush=True)
