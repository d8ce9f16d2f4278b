"""``dpbook slides``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Make slides of chapters from their notebooks: title, questions with their answers on the next slide, the runs "
        "that show them, pictures and players, summary, exercise. A deck is one HTML file that needs no network. Use "
        "the arrow keys to change slides and N to show the speaker's notes; the browser can print the deck."
    )
    parser.add_argument(
        "chapters", nargs="*", metavar="CHAPTER", help="number of a chapter, such as 05 or 12b (default: all)"
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", default=Path("slides"), help="folder of the slides (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Write a slide deck for each requested chapter."""
    from dpbook.classroom import write_slides
    from dpbook.core import check_one_of, checkout

    found = {chapter.label: chapter.path for chapter in checkout.chapters()}
    for name in args.chapters:
        check_one_of("chapter", name, found)
    for name in args.chapters or found:
        print(write_slides(found[name], args.to), flush=True)
    return 0
