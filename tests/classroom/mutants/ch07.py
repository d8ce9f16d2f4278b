"""Wrong answers to exercise 07, each with the mistake that people make."""

from dpbook.overlap.timeline.spans import difference, length, union
from tests.classroom.mutants.edits import Mutant, edit, named


def of_kind(spans, *kinds):
    return union([(span.start, span.end) for span in spans if span.kind in kinds])


def pairwise(spans):
    """Takes every overlap of a call with a piece of computation away, though two pieces may overlap too."""
    communication = length(of_kind(spans, "communication"))
    pieces = [s for s in spans if s.kind == "computation"]
    messages = [s for s in spans if s.kind == "communication"]
    return communication - sum(max(0, min(c.end, m.end) - max(c.start, m.start)) for c in pieces for m in messages)


def last_end_counts(spans):
    """Merges what overlaps, and takes the end of the last for the end of all."""
    merged = []
    for start, end in sorted((s.start, s.end) for s in spans if s.kind == "computation"):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return length(difference(of_kind(spans, "communication"), union(merged)))


def quotient(total, active, sequences, context, flops, bandwidth, itemsize, world):
    """Number of rings that fit into backward, whether that divides the sequences or not."""
    ring = 2 * (world - 1) / world * itemsize * total / bandwidth
    backward = 4 * active * sequences * context / flops
    return sequences if ring == 0 else min(sequences, int(backward / ring))


KINDS = "{span.kind for span in spans if span.start <= start and end <= span.end}"
CUTS = "sorted({moment for span in spans for moment in (span.start, span.end)})"
EXPOSED, ADDED = 'if "communication" in kinds and "computation" not in kinds:', "total += end - start"
TOKENS, DIVIDES = "sequences // m * context", "sequences % m == 0 and "
HIDDEN, GIANT = "timeline.hidden() == 0", '"giant bucket" if max(durations) > sum(durations) / 2 else "healthy"'
LAUNCHES, SLOW = 'timeline.busy("launch") > timeline.busy("computation")', "max(work) > 1.2 * min(work)"
EXTRA = "min(span.start for span in calls) < max(span.start for span in forwards)"
UNIONS, DENSE, ANY = "unions, not sums", "dense models, many ranks", "any model, any element, any world"
WHERE, AROUND = "where the calls lie", "what lies around them"

MUTANTS = (
    edit(
        "07.1",
        "sum of spans",
        {KINDS: f"[{KINDS[1:-1]}]", ADDED: 'total += (end - start) * kinds.count("communication")'},
        UNIONS,
    ),
    Mutant("07.1", "overlaps in pairs", pairwise, UNIONS),
    edit(
        "07.1",
        "totals",
        {
            EXPOSED: "if kinds:",
            ADDED: 'total += (end - start) * (("communication" in kinds) - ("computation" in kinds))',
            "return total": "return max(0, total)",
        },
        UNIONS,
    ),
    edit("07.1", "idle time", {EXPOSED: 'if "computation" not in kinds:'}, UNIONS),
    edit(
        "07.1",
        "waiting counted",
        {EXPOSED: 'if kinds & {"communication", "wait"} and "computation" not in kinds:'},
        UNIONS,
    ),
    edit(
        "07.1",
        "launches hide",
        {EXPOSED: 'if "communication" in kinds and not kinds & {"computation", "copy", "launch"}:'},
        UNIONS,
    ),
    edit(
        "07.1",
        "on a grid of milliseconds",
        {
            CUTS: "[k / 1e3 for k in range(round(1e3 * max(span.end for span in spans)) + 1)]",
            "span.start <= start and end <= span.end": "span.start <= (start + end) / 2 < span.end",
        },
        UNIONS,
    ),
    Mutant("07.1", "the last end counts", last_end_counts, UNIONS),
    edit("07.2", "forward counted too", {"4 * active": "6 * active"}, DENSE),
    edit("07.2", "one half of the ring", {"2 * (world - 1)": "(world - 1)"}, DENSE),
    edit("07.2", "the tokens of the step", {TOKENS: "sequences * context"}, DENSE),
    edit("07.2", "sequences cut", {TOKENS: "sequences / m * context", DIVIDES: ""}, DENSE),
    edit("07.2", "longer, not as long", {"backward >= ring": "backward > ring"}, DENSE),
    Mutant("07.2", "backward over ring", quotient, DENSE),
    edit("07.2", "all experts compute", {"4 * active": "4 * total"}, ANY),
    edit("07.2", "always 2 bytes", {"* itemsize * total": "* 2 * total"}, ANY),
    edit(
        "07.3",
        "everything exposed is a blocking hook",
        {HIDDEN: 'timeline.exposed() > 0.5 * timeline.busy("communication")', GIANT: '"healthy"'},
        WHERE,
    ),
    edit(
        "07.3",
        "an absolute threshold",
        {f"if {HIDDEN}:": f'if timeline.exposed() <= 0.1:\n        return "healthy"\n    if {HIDDEN}:'},
        WHERE,
    ),
    edit("07.3", "exposed at all", {HIDDEN: 'timeline.exposed() > 0.02 * timeline.busy("communication")'}, WHERE),
    edit("07.3", "launches overlooked", {LAUNCHES: "False"}, AROUND),
    edit("07.3", "rank 0 alone", {SLOW: 'timeline.busy("wait", 0) > timeline.busy("communication", 0)'}, AROUND),
    edit("07.3", "more forwards than calls", {EXTRA: "len(forwards) > len(calls)"}, AROUND),
)

WORTHLESS = (
    *named(MUTANTS, "07.1", "sum of spans", "idle time"),
    *named(MUTANTS, "07.2", "the tokens of the step", "one half of the ring"),
    ("07.2", lambda *case: 1),
    ("07.3", lambda timeline: "healthy"),
    ("07.3", lambda timeline: "straggler"),
)
"""Answers that must not earn a single point."""
