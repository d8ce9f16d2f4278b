"""How long does `dpbook grade` take for a class that hands in the whole book or one exercise, and how much memory?

    python tests/benchmarks/bench_grade.py [--of 20] [--jobs 2] [--chapters 10]

Perfect, partial, stub, hostile and broken submissions, each of other texts: see tests/classroom/school_class.py. The
goal of 5 s is that of 120 submissions in ten minutes.
Seconds mean something only on a machine without other work.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.rows import Row, show  # noqa: E402
from tests.classroom.school_class import CHAPTERS, CLASS, classroom, graded  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", "--repeats", type=int, default=20, help="submissions (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="judges at once (default: %(default)s)")
    parser.add_argument("--chapters", type=int, nargs="+", default=CHAPTERS, help="their exercises (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "temporary"
        temporary.mkdir()
        numbers = {kind: round(n * options.of / 100) for kind, n in CLASS.items()}
        made = classroom(Path(folder) / "class", numbers, options.chapters)
        run = graded([Path(folder) / "class"], 7, options.jobs, temporary, every=2.0)  # a look takes 40 ms
    computed = resource.getrusage(resource.RUSAGE_CHILDREN)
    show(
        Row(f"a class of {len(made)}: seconds for a submission", [run.seconds / len(made)], "s", at_most=5)
    )  # 120 in ten minutes
    show(Row(f"a class of {len(made)}: memory", [run.memory / 1e9], "GB", at_most=2))
    print(f"judges and servers computed for {computed.ru_utime + computed.ru_stime:.0f} s, without answers")


if __name__ == "__main__":
    main()
