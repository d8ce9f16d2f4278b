"""Make the autograder that Gradescope takes: a zip with the package, what installs it, and what runs for a submission.

    .venv/bin/python -m tools.autograder autograder.zip

The zip has no solutions. ``AUTOGRADER`` names another root than ``/autograder``, to try it.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = """#!/bin/sh
# Runs once, when the image is built. With the CPU wheels of torch installed first, the image is gigabytes smaller.
set -e
root="${AUTOGRADER:-/autograder}"
python3 -m pip install -c "$root/source/constraints.txt" "$(echo "$root"/source/*.whl)[book]"
"""
RUN = """#!/bin/sh
# Runs for each submission. Without --seed everybody meets other instances at each try.
root="${AUTOGRADER:-/autograder}"
cd "$root/results" && exec dpbook grade "$root/submission" --gradescope "$root/results/results.json"
"""


def write(path: Path) -> None:
    """Build the wheel of this checkout, and write the zip. A file that exists is not replaced."""
    if path.exists():
        sys.exit(f"{path} already exists and is not overwritten: move it, or choose another name")
    if importlib.util.find_spec("hatchling") is None:
        sys.exit("hatchling, which builds the package, is not installed: make check installs it in .venv")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, text in (("setup.sh", SETUP), ("run_autograder", RUN)):
                entry = zipfile.ZipInfo(name)
                entry.external_attr = 0o755 << 16
                archive.writestr(entry, text)
            archive.write(ROOT / "constraints.txt", "constraints.txt")
            archive.write(wheel, wheel.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", type=Path, help="the zip to write")
    write(parser.parse_args().path)
