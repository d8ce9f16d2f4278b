"""Wrong answers to exercise 12, each with the mistake that people make."""

import json
import statistics

from tests.classroom.mutants.edits import Mutant, edit, edited, named

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
LOST, CAUSE = "the three losses of every rank", "the cause, and where to look"
ROWS = "tokens per second, efficiency, MFU"

EARLY, IN_TIME = "programs that read too early", "programs that do not"
PASSED_ON, RECORDED = '(host if kind == "kernel" else set())', "recorded[line[2]] = set(known)"
WAITS, HOST = "known |= recorded.get(line[2], set())", "host = host | known"
OWN_VALUES = 'known & {own[2] for own in program if own[:2] == ("kernel", name)}'
FIRST, ERROR, PARTS = "the forecast came first", "the error, from the log", "a forecast that the parts allow"
LOG = json.loads(edited("12.4", {})[1])


def with_log(error=None, **changed):
    """The answer to 12.4 with these values in its log, and the error of the log or another one."""
    log = LOG | changed
    measured = statistics.median(map(max, zip(*log["update"], strict=True)))
    return (log["forecast"] / measured - 1 if error is None else error), json.dumps(log)


MEASURED = statistics.median(map(max, zip(*LOG["update"], strict=True)))
MUTANTS = (
    edit("12.1", "waiting taken for transfer", {MOVING: CALLING}, LOST),
    edit("12.1", "sums of spans", {"lost[0] += b - a": f"lost[0] += (b - a) * {EACH_CALL}"}, LOST),
    edit("12.1", "on a grid of milliseconds", {RANKS: f"{ROUNDED}\n    {RANKS}"}, LOST),
    edit("12.1", "lane by lane", {"key=lambda s: s.start)": "key=lambda s: (s.lane, s.start))"}, LOST),
    edit(
        "12.1",
        "computation on one lane",
        {'s.kind == "computation"': 's.kind == "computation" and s.lane == "compute"'},
        LOST,
    ),
    edit(
        "12.1",
        "a rank that only copies is none",
        {"for span in spans}": 'for span in spans if span.kind != "copy"}'},
        LOST,
    ),
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
    edit(
        "12.3",
        "streams are in order",
        {"known = complete[name] = complete.get(name, set())": 'known = complete[""] = complete.get("", set())'},
        EARLY,
    ),
    edit(
        "12.3",
        "a wait counts for all streams",
        {WAITS: "for each in complete.values():\n                each |= recorded.get(line[2], set())"},
        EARLY,
    ),
    edit("12.3", "a wait makes the host wait", {WAITS: f"{WAITS}\n            host = host | known"}, EARLY),
    edit(
        "12.3",
        "an event is the stream",
        {RECORDED: "recorded[line[2]] = name", WAITS: "known |= complete.get(recorded.get(line[2]), set())"},
        EARLY,
    ),
    edit("12.3", "the host forgets streams", {HOST: "host = set(known)"}, IN_TIME),
    edit(
        "12.3",
        "a wait is not the stream's",
        {HOST: 'host |= {own[2] for own in program[:number] if own[:2] == ("kernel", name)}'},
        IN_TIME,
    ),
    edit("12.3", "the host waits for all streams", {HOST: "host = host.union(*complete.values())"}, EARLY),
    edit(
        "12.3",
        "the host sees all that is launched",
        {"known, reads = host, [name]": "known, reads = set().union(*complete.values()), [name]"},
        EARLY,
    ),
    edit("12.3", "records add up", {RECORDED: "recorded.setdefault(line[2], set()).update(known)"}, EARLY),
    edit("12.3", "the line above", {"return number, value": "return number - 1, value"}, EARLY),
    edit("12.3", "any of its values", {"for value in reads:": "for value in sorted(reads)[::-1]:"}, EARLY),
    edit("12.3", "the host's waiting orders no kernel", {PASSED_ON: "set()"}, IN_TIME),
    edit(
        "12.3",
        "own records alone",
        {RECORDED: f"recorded[line[2]] = {OWN_VALUES}"},
        IN_TIME,
    ),
    edit("12.3", "waits are not seen", {WAITS: "pass"}, IN_TIME),
    edit("12.3", "the first record counts", {RECORDED: "recorded.setdefault(line[2], set(known))"}, IN_TIME),
    edit("12.3", "a wait replaces", {WAITS: "complete[name] = set(recorded.get(line[2], set()))"}, IN_TIME),
    Mutant("12.4", "forecast afterwards", with_log(forecast_at=LOG["updated"] + 1), FIRST),
    Mutant("12.4", "forecast before the parts", with_log(forecast_at=LOG["measured"] - 1), FIRST),
    Mutant("12.4", "no time for the updates", with_log(forecast_at=LOG["updated"] - 0.01), FIRST),
    Mutant("12.4", "relative to the forecast", with_log(MEASURED / LOG["forecast"] - 1), ERROR),
    Mutant("12.4", "the other sign", with_log(1 - LOG["forecast"] / MEASURED), ERROR),
    Mutant("12.4", "in per cent", with_log(100 * (LOG["forecast"] / MEASURED - 1)), ERROR),
    Mutant("12.4", "rank 0's updates", with_log(LOG["forecast"] / statistics.median(LOG["update"][0]) - 1), ERROR),
    Mutant("12.4", "in milliseconds", with_log(forecast=1000 * LOG["forecast"]), PARTS),
    Mutant("12.4", "one part forgotten", with_log(forecast=LOG["forecast"] / 4), PARTS),
)

WORTHLESS = (
    *named(MUTANTS, "12.1", "waiting taken for transfer"),
    ("12.1", edited("12.1", TWO_CAUSES)),
    ("12.1", edited("12.1", WHAT_SPANS_COVER)),
    *named(MUTANTS, "12.2", "efficiency from step times"),
    ("12.3", lambda program: None),
    ("12.3", lambda program: (0, "x")),
    ("12.4", (0.0, "")),
    ("12.4", (0.0, json.dumps(LOG | {"update": [[1.0] * 20]}))),
)
"""Answers that must not earn a single point."""
