"""Is a claim about what a cell shows told from one about something else?"""

from tests.cases import each
from tests.notebooks.claims import NEAR, unclaimed

HELD = [
    ["print(t := time())\nassert t < 3"],
    ["t = time()\nprint(f'{t:.1f} s')", "assert t < 3"],
    ["t = time()", "draw(t)", "assert max(t) < 3"],
    ["times = run()\nfor name, t in times.items():\n    print(name, t)", "assert times['a'] < times['b']"],
    ["times = run()\ntimes", "for t in times:\n    assert t < 3"],
    ["spans = run()\ndraw(spans)", "first = [s for s in spans if s.rank == 0]\nassert first[0].end < 3"],
    ["with watch() as times:\n    run()\nprint(times)", "assert times"],
    ["assert t < 3\nt = time()", *["1"] * (NEAR - 1), "print(t)"],
]
"""The last or only cell that shows something is the one in question."""
UNHELD = [
    ["print(time())"],
    ["t = time()\nprint(t)", "assert u < 3"],
    ["t = time()\nprint(t)", "t < 3"],
    ["t = time()\nprint(t)", *["1"] * NEAR, "assert t < 3"],
    ["for name, t in run().items():\n    print(name, t)", "for name in 'ab':\n    assert name"],
    ["step = lambda: 3\nprint(step())", "assert step() == 3"],
    ["def run():\n    t = time()\n    return t\n\nprint(run())", "assert t < 3"],
    ["%matplotlib inline\nu = t = 1\nu\nprint(2)", "assert t"],
]


def question(sources):
    return next(
        place for place, source in enumerate(sources) if "print" in source or "draw" in source or "\ntimes" in source
    )


@each("sources", HELD)
def test_a_claim_about_what_is_shown_holds_it(sources):
    assert unclaimed(sources, question(sources)) == ""


@each("sources", UNHELD)
def test_another_claim_or_one_far_away_does_not(sources):
    assert unclaimed(sources, question(sources))
