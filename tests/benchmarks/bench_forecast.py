"""How far is `dpbook forecast` from what a script takes then? Three scripts on 2 and 3 ranks over an emulated link.

python tests/benchmarks/bench_forecast.py [--repeats 24]

Every second update of a run goes over the link, the others over loopback: the forecast is made from these, and is
compared with those. ``--repeats`` is how many count of each. A row has the update without communication, the forecast,
what was measured, the communication that the forecast exposes, and what the updates without the link waited: where that
is not far below, loopback is no faster than the link, and the row says little. Then the miss. Nothing of the forecast
was fitted to these scripts.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpbook.core import milliseconds
from dpbook.runs.forecast import check_forecast, connection, measure_step
from dpbook.runs.launch import Launch
from tests.benchmarks.rows import Row, begin, show

SCRIPTS = Path(__file__).parent / "forecast_scripts"
LINKS = ("500Mb/s+500us", "1Gb/s+500us")


def main() -> None:
    updates = begin(__doc__, repeats=24)
    for script in sorted(SCRIPTS.glob("*.py")):
        for world in (2, 3):
            for link in map(connection, LINKS):
                measured = measure_step(Launch((str(script),), world), updates, check=True, link=link.link)
                row = check_forecast(measured, link)
                seconds = (measured.alone, row.forecast, row.measured, row.exposed, row.waited)
                times = " / ".join(map(milliseconds, seconds))
                name = f"{script.stem}, {world} ranks, {link.name}: {times}"
                show(Row(f"forecast: {name}", [100 * row.miss], "%", at_least=-10, at_most=10))


if __name__ == "__main__":
    main()
