"""``dpbook audit``"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbook.audit import Line, Verdict

WIDTH = 66
WITHOUT_GPUS = 3
"""Ranks: sums of two numbers do not depend on their order, so two prove less."""


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.usage = "dpbook audit [options] -- script.py [its arguments]"
    parser.description = (
        "Start a training script, which comes after -- and is not changed, on several ranks, watch its first updates, "
        "and say whether it is what one process with the whole batch would do. The exit status is 0 where nothing "
        "fails, 1 where something does, 2 where no update was seen."
    )
    parser.add_argument("--nproc", type=int, help="ranks on this machine (default: one per GPU; without any, 3)")
    parser.add_argument(
        "--updates", type=int, default=5, metavar="K", help="end the script after so many updates; 0: let it end "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--every", type=int, default=1, metavar="K", help="watch each K-th update only (default: 1)")
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
    parser.add_argument("--start-timeout", type=float, default=300, metavar="S", help="as for launch")
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="S", help="seconds after which a collective that waits ends the "
        "run, unless the script says it (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="let a warning count as a failure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the verdict there, for programs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write it as a page")


def run(args: argparse.Namespace) -> int:
    """Watch, judge, and tell."""
    from dpbook.audit import Audit, audit
    from dpbook.core import InvalidArgument, machine
    from dpbook.ranks import preflight

    if not args.script:
        raise InvalidArgument("script", "nothing", "given after --, as in `dpbook audit -- train.py`")
    gpus = machine.gpus()
    nproc = args.nproc if args.nproc is not None else max(2, len(gpus)) if gpus else WITHOUT_GPUS
    what = Audit(
        tuple(args.script),
        nproc,
        args.updates,
        args.every,
        args.replay,
        args.save,
        args.resume,
        args.start_timeout,
        args.timeout,
    )
    found = preflight(nproc, gpus=gpus)
    for finding in found:
        _say(str(finding))
    if any(finding.kind == "problem" for finding in found):
        return 1
    verdict = audit(what, _say)
    print(in_words(verdict, resume=args.resume is not None))
    if args.json:
        args.json.write_text(verdict.as_json() + "\n", encoding="utf-8")
    if args.html:
        from dpbook.app.audit_page import page

        args.html.write_text(page(verdict, " ".join(args.script)), encoding="utf-8")
    warned = args.strict and any(line.found.status == "WARN" for line in verdict.lines)
    return 1 if warned and verdict.status == 0 else verdict.status


def in_words(verdict: "Verdict", *, resume: bool) -> str:
    """The verdict as it is printed."""
    from dpbook.core import plural

    told = [text for line in verdict.lines for text in _in_words(line)]
    if not verdict.updates:
        told.append(f"{'----':6}{'an update was seen':{WIDTH}}none: is it an optimizer of torch.optim that steps?")
    if not resume:
        told.append(f"{'----':6}{'a run that is ended goes on exactly':{WIDTH}}not tested: --resume says how")
    failed = [line for line in verdict.lines if line.failed and line.because is None]
    warned = sum(line.found.status == "WARN" for line in verdict.lines)
    seen = plural(verdict.updates, "update")
    sums = f"{plural(len(failed), 'cause')} of failure, {plural(warned, 'warning')}; {seen} seen"
    cost = "" if verdict.cost is None else f"; watching cost {verdict.cost:.1%} of an update"
    return "\n".join([*told, f"{sums}{cost}"])


def _in_words(line: "Line") -> list[str]:
    found = line.found
    where = [
        f"rank {found.rank}" if found.rank is not None else "",
        found.tensor or "",
        f"update {found.update}" if found.update else "",
    ]
    indent = "  " if line.because else ""
    told = [f"{indent}{found.status:6}{line.claim:{WIDTH}}{found.told}"]
    if found.status in ("FAIL", "WARN"):
        follows = f"follows from: {line.because}" if line.because else ""
        at = f"{found.place[0]}:{found.place[1]}  {found.place[2]}" if found.place else ""
        more = [", ".join(filter(None, where)), follows, at, line.book]
        told.append(indent + " " * 6 + "   ".join(filter(None, more)))
    return told


def _say(text: str) -> None:
    print(f"dpbook audit: {text}", file=sys.stderr, flush=True)
