"""Print the share of the statements of each folder of dpbook that the tests have run, as `make coverage` measured it.

The exit status is 1 if the library or a wing is below its limit. `coverage html` shows the lines that are missing.
"""

import sys
from collections import Counter
from pathlib import Path

from coverage import Coverage

PACKAGE = Path(__file__).parent.parent / "dpbook"
LIBRARY = ("core", "collectives", "replicas", "overlap", "planning", "ranks", "ddp", "figures")
LEAST = {"the library": 95, "runs": 90, "classroom": 90, "book": 90, "app": 90}
"""Percent of the statements."""

measured = Coverage()
measured.load()
statements: Counter[str] = Counter()
missing: Counter[str] = Counter()
for name in measured.get_data().measured_files():
    folder = Path(name).relative_to(PACKAGE).parts[0]
    _name, lines, _excluded, unseen, _ranges = measured.analysis2(name)
    for key in {folder, "the library" if folder in LIBRARY else folder}:
        statements[key] += len(lines)
        missing[key] += len(unseen)

below = []
for key in (*LIBRARY, *LEAST):
    percent = 100 - 100 * missing[key] / statements[key]
    limit = f", at least {LEAST[key]} %" if key in LEAST else ""
    print(f"{key:12} {statements[key]:7,} statements, {missing[key]:5,} not run: {percent:.1f} %{limit}")
    below += [key] if percent < LEAST.get(key, 0) else []
sys.exit(f"below the limit: {', '.join(below)}" if below else 0)
