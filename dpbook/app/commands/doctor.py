"""``dpbook doctor``"""

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis; return 0 if nothing that the book needs is missing, else 1."""
    from dpbook.app.lab.doctor import diagnose

    diagnosis = diagnose()
    print(diagnosis.to_json() if args.json else diagnosis)
    return 0 if diagnosis.ok else 1
