"""Wrong answers to exercise 12, each with the mistake that people make."""

from tests.classroom.mutants.edits import edit, edited, named

RANKS = "ranks = sorted({span.rank for span in spans})"
ROUNDED = "spans = [s._replace(start=round(s.start, 3), end=round(s.end, 3)) for s in spans]"
FROM_FIRST_TO_LAST = "window = min(s.start for s in spans), max(s.end for s in spans)"
CALLING = "any(s.start <= a and b <= s.end for s in calls[r])"
MOVING = "any(t <= a and b <= s.end for s, t in zip(calls[r], begun))"
EACH_CALL = "sum(t <= a and b <= s.end for s, t in zip(calls[r], begun))"
TOTALS, CAUSE_FOUND = "[sum(column) for column in zip(*losses)]", "totals.index(max(totals))"
BUSY = "any(s.rank == r and s.start <= a and b <= s.end for s in spans)"
TWO_CAUSES = {
    "else:\n                lost[2]": f"elif not {BUSY}:\n                lost[2]",
    CAUSE_FOUND: "2 if totals[2] > totals[0] + totals[1] else 0",
}
"""Whoever is idle lacks input; the rest is the network."""
WHAT_SPANS_COVER = {
    RANKS: f"{FROM_FIRST_TO_LAST}\n    {RANKS}",
    "best(ranks, key=lambda r: losses[r][cause])": "0",
}
COMPARED, ALONE, EFFICIENCY = "min(runs)", "alone = tokens / seconds / ranks", "rate / ranks / alone"
HANDED_IN = 'nbytes * world if collective == "all_gather" else nbytes'
BY_PARTS = 'nbytes * {"all_gather": world, "reduce_scatter": 1 / world}.get(collective, 1)'
LOST, CAUSE = "the three losses of every rank", "the cause, and where to look"
ROWS, BANDS = "tokens per second, efficiency, MFU", "size and factor of each collective"

MUTANTS = (
    edit("12.1", "waiting taken for transfer", {MOVING: CALLING}, LOST),
    edit("12.1", "sums of spans", {"lost[0] += b - a": f"lost[0] += (b - a) * {EACH_CALL}"}, LOST),
    edit("12.1", "on a grid of milliseconds", {RANKS: f"{ROUNDED}\n    {RANKS}"}, LOST),
    edit("12.1", "collectives by their end", {"key=lambda s: s.start)": "key=lambda s: s.end)"}, LOST),
    edit(
        "12.1",
        "hidden waiting counts",
        {"continue": f"lost[1] += (b - a) * ({CALLING} and not {MOVING})\n                continue"},
        LOST,
    ),
    edit("12.1", "the rank that waits most", {"min if cause == 1 else max": "max"}, CAUSE),
    edit("12.1", "the rank that loses most decides", {TOTALS: "[max(column) for column in zip(*losses)]"}, CAUSE),
    edit("12.1", "rank 0 decides", {TOTALS: "losses[0]"}, CAUSE),
    edit("12.2", "efficiency from step times", {ALONE: "alone = seconds", EFFICIENCY: "alone / seconds"}, ROWS),
    edit("12.2", "the peak of one device", {"(ranks * peak)": "peak"}, ROWS),
    edit("12.2", "efficiency forgets the ranks", {ALONE: "alone = tokens / seconds", EFFICIENCY: "rate / alone"}, ROWS),
    edit("12.2", "forward alone", {"6 * parameters": "2 * parameters"}, ROWS),
    edit("12.2", "compared with the first row", {COMPARED: "runs[0]"}, ROWS),
    edit("12.2", "compared with the fewest tokens", {COMPARED: "min(runs, key=lambda run: run[1])"}, ROWS),
    edit("12.2", "compared with the lowest rate", {COMPARED: "min(runs, key=lambda run: run[1] / run[2])"}, ROWS),
    edit("12.2", "tokens of a rank times the ranks", {"rows.append((rate": "rows.append((ranks * rate"}, ROWS),
    edit("12.3", "an all-gather by its parts", {HANDED_IN: "nbytes"}, BANDS),
    edit("12.3", "a reduce-scatter by its parts", {HANDED_IN: BY_PARTS}, BANDS),
    edit("12.3", "one factor for all", {": once": ": 2 * once", '"broadcast": 1': '"broadcast": 2 * once'}, BANDS),
    edit("12.3", "half an all-reduce", {"2 * once": "once"}, BANDS),
    edit("12.3", "a broadcast like an all-gather", {'"broadcast": 1': '"broadcast": once'}, BANDS),
    edit("12.3", "bits", {"size = nbytes": "nbytes = 8 * nbytes\n    size = nbytes"}, BANDS),
)

WORTHLESS = (
    *named(MUTANTS, "12.1", "waiting taken for transfer"),
    ("12.1", edited("12.1", TWO_CAUSES)),
    ("12.1", edited("12.1", WHAT_SPANS_COVER)),
    *named(MUTANTS, "12.2", "efficiency from step times"),
    *named(MUTANTS, "12.3", "bits"),
)
"""Answers that must not earn a single point."""
