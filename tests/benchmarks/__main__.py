"""Run the benchmarks one by one, keep their rows, and write the tables that pages show.

    python -m tests.benchmarks [bench_ddp bench_launch ...] [--repeats 5]

Without names all of them are run. The rows of a benchmark that is not run stay as they were measured last, with their
date and machine. ``--tables`` runs nothing, and writes the tables of the stored rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

from dpbook.core import checkout, machine
from tests.benchmarks.rows import ROWS, Row

PLACE = Path(__file__).parent
MEASURED = PLACE / "measured.json"
PAGES = {checkout.root() / "README.md": True, PLACE / "README.md": False}  # whether a page has the headlines alone
TABLE = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)
SCRIPTS = {path.stem: path for path in sorted(PLACE.glob("bench_*.py"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="bench_NAME", help="which (default: all)")
    parser.add_argument("--repeats", type=int, help="how often each row is measured (default: what each script says)")
    parser.add_argument("--tables", action="store_true", help="write the tables alone")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(SCRIPTS)):
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(SCRIPTS)}")
    for name in [] if options.tables else options.names or SCRIPTS:
        measure(name, options.repeats)
    for page, headlines in PAGES.items():
        page.write_text(with_table(page.read_text(encoding="utf-8"), headlines), encoding="utf-8")
    print(f"The tables of {' and '.join(str(page.relative_to(checkout.root())) for page in PAGES)} are written.")


def measure(name: str, repeats: int | None) -> None:
    """Run a benchmark, and store its rows if it succeeds."""
    print(f"== {name}", flush=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        path.touch()
        more = [] if repeats is None else ["--repeats", str(repeats)]
        command = [sys.executable, str(SCRIPTS[name]), *more]
        subprocess.run(command, env=os.environ | {ROWS: str(path)}, check=True)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    where = f"{machine.processor()}, {os.cpu_count()} cores, torch {version('torch')}"
    about = {"date": str(datetime.date.today()), "machine": where, "load": round(load, 1)}
    stored = stored_rows() | {name: {**about, "rows": rows}}
    MEASURED.write_text(json.dumps(dict(sorted(stored.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def stored_rows() -> dict[str, dict]:
    """Return what was measured last, by the name of the benchmark."""
    return json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {}


def with_table(text: str, headlines: bool) -> str:
    """Return a page's text in which the table is that of the stored rows."""
    lines = ["", "| | median | least to most | goal |", "|---|---|---|---|"]
    loads: dict[str, list[float]] = {}
    for benchmark in stored_rows().values():
        rows = [row for row in (Row(**one) for one in benchmark["rows"]) if row.headline or not headlines]
        for row in rows:
            spread = f"{min(row.values):.2f} to {max(row.values):.2f}" if len(row.values) > 1 else ""
            lines.append(f"| {row.name} | {median(row.values):.2f} {row.unit} | {spread} | {row.goal()} |")
        if rows:
            loads.setdefault(f"{benchmark['date']}, {benchmark['machine']}", []).append(benchmark["load"])
    where = (f"{machine}, load {min(each)} to {max(each)} at the start" for machine, each in loads.items())
    lines += ["", f"Measured on {'; '.join(where) or 'no machine yet'}."]
    return TABLE.sub(lambda _: "\n".join([*lines, ""]), text)


if __name__ == "__main__":
    main()
