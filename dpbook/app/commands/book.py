"""``dpbook book``"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Build the book as static pages from the stored notebooks. Nothing is executed, and the pages load nothing "
        "from other hosts. Open index.html, or serve the folder at any address."
    )
    parser.add_argument(
        "--to", type=Path, default=Path("build/book"), metavar="DIR", help="folder of the pages (default: %(default)s)"
    )
    parser.add_argument("--pdf", type=Path, metavar="FILE", help="also print all chapters to a PDF, with Chromium")
    parser.add_argument(
        "--films", action="store_true", help="first redraw the figures with knobs at all positions (for developers)"
    )


def run(args: argparse.Namespace) -> int:
    """Build the book and print a summary of the result."""
    from dpbook.app.site import build, draw_films, print_book
    from dpbook.core import checkout

    if args.films:
        for path in draw_films(checkout.root()):
            print(f"film: {path}")
    built = build(checkout.book(), args.to)
    print(f"{built}\npages: {args.to / 'index.html'}")
    if args.pdf:
        print_book(args.to, args.pdf)
        print(f"printed: {args.pdf}")
    for link in built.dead_links:
        print(f"broken link: {link}")
    return 1 if built.dead_links else 0
