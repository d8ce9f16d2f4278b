"""``dpbook lab``"""

import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--ip", default="127.0.0.1", help="address to listen on (default: %(default)s, local only)")
    parser.add_argument("--port", type=int, default=8888, help="first port to try (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    parser.add_argument("--copy-only", action="store_true", help="copy the notebooks without starting JupyterLab")
    parser.add_argument("--allow-root", action="store_true", help="allow JupyterLab to run as root")


def run(args: argparse.Namespace) -> int:
    """Copy the notebooks and run JupyterLab until it ends."""
    from dpbook.app.lab.jupyter import copy_notebooks, open_lab

    if args.copy_only:
        copy_notebooks()
        return 0
    return open_lab(ip=args.ip, port=args.port, browser=not args.no_browser, allow_root=args.allow_root)
