"""``dpbook mystery``"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpbook.book.ch15 import Mystery

SCRIPT = "train.py"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Write a training script with a mistake drawn from --seed. Run, audit and read it; then submit your diagnosis "
        "with --cause, --rank and --line. The exit status is 0 if all three are right, else 1."
    )
    parser.add_argument(
        "--seed", type=int, required=True, metavar="N", help="any number, such as 7; the same N gives the same script"
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder for the script (default: mystery-N)")
    parser.add_argument("--cause", metavar="LETTER", help="your diagnosis: the letter of one of the listed causes")
    parser.add_argument("--rank", metavar="R", help="your diagnosis: the rank that differs from the others, or all")
    parser.add_argument(
        "--line", type=int, metavar="L", help="your diagnosis: the line of the script that must be changed"
    )


def run(args: argparse.Namespace) -> int:
    """Write the script, or grade a diagnosis of it."""
    from dpbook.book.ch15 import draw
    from dpbook.core import DpbookError, InvalidArgument

    case, guess = draw(args.seed), (args.cause, args.rank, args.line)
    if all(each is None for each in guess):
        return _write(case, args.folder or Path(f"mystery-{args.seed}"), args.seed)
    if any(each is None for each in guess):
        raise DpbookError("a diagnosis needs --cause, --rank and --line together")
    if args.rank != "all" and not args.rank.isdecimal():
        raise InvalidArgument("--rank", args.rank, "a rank number, or all")
    rank = None if args.rank == "all" else int(args.rank)
    graded = case.graded(args.cause.lower(), rank, args.line)
    for part, right in graded.items():
        print(f"  {part:6} {'right' if right else 'wrong'}")
    if not all(graded.values()):
        return 1
    print(f"\n{case.exhibit.why} (chapter {case.exhibit.chapter:02})")
    return 0


def _write(case: Mystery, folder: Path, seed: int) -> int:
    from dpbook.core import InvalidArgument

    path = folder / SCRIPT
    if path.exists() and path.read_text(encoding="utf-8") != case.script:
        raise InvalidArgument("folder", folder, f"a folder without another {SCRIPT}; choose one with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(case.script, encoding="utf-8")
    print(f"{path}, for {case.world} ranks. Its user says: {case.exhibit.symptom}\n")
    for tool in ("launch", "audit"):
        print(f"    dpbook {tool} --nproc {case.world} {path}")
    print("\nWhat is wrong with it?\n")
    for letter, cause in case.causes.items():
        print(f"  {letter}  {cause}")
    print(
        f"\n    dpbook mystery --seed {seed} --cause LETTER --rank R --line L\n\n"
        "R is the rank that does what the others do not (all: every rank does the same), L a line that is to be "
        "changed, or beside which one is missing."
    )
    return 0
