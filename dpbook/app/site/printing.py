"""The printed book: the page of all chapters as a PDF with an outline and page numbers, by Chromium."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from dpbook.core import DpbookError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 600
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def print_book(folder: Path, path: Path) -> None:
    """Print ``paper.html`` of the pages in ``folder`` to a PDF. Raises `DpbookError` if Chromium cannot."""
    chromium = find_chromium()
    if chromium is None:
        raise DpbookError(f"a PDF needs Chromium or Chrome, by one of these names: {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="dpbook-pdf-") as profile:
        command = [
            *(chromium, "--headless", "--disable-gpu", "--no-sandbox", *OFFLINE, f"--user-data-dir={profile}"),
            *("--generate-pdf-document-outline", "--no-pdf-header-footer", f"--print-to-pdf={path.resolve()}"),
            (folder / "paper.html").resolve().as_uri(),
        ]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise DpbookError(f"Chromium did not print the book within {SECONDS} s") from None
    if ended.returncode or not path.exists():
        raise DpbookError(f"Chromium did not print the book (status {ended.returncode}): {ended.stderr[-500:]}")
