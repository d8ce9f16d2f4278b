"""Wrong answers to exercise 07, each with the mistake that people make."""

from dpbook.classroom.tasks.judging import Mutant
from dpbook.overlap.timeline.spans import difference, length, union


def of_kind(spans, *kinds):
    return union([(span.start, span.end) for span in spans if span.kind in kinds])


def sum_of_spans(spans):
    """Each call by itself: what travels at the same time counts twice."""
    computation = of_kind(spans, "computation")
    return sum(length(difference(union([(s.start, s.end)]), computation)) for s in spans if s.kind == "communication")


def pairwise(spans):
    """Takes every overlap of a call with a piece of computation away, though two pieces may overlap too."""
    communication = length(of_kind(spans, "communication"))
    pieces = [s for s in spans if s.kind == "computation"]
    messages = [s for s in spans if s.kind == "communication"]
    return communication - sum(max(0, min(c.end, m.end) - max(c.start, m.start)) for c in pieces for m in messages)


def totals(spans):
    """Takes all of computation away, whenever it ran."""
    return max(0, length(of_kind(spans, "communication")) - length(of_kind(spans, "computation")))


def idle(spans):
    """All time without computation, whatever else happens."""
    whole = union([(min(s.start for s in spans), max(s.end for s in spans))])
    return length(difference(whole, of_kind(spans, "computation")))


def waiting_too(spans):
    return length(difference(of_kind(spans, "communication", "wait"), of_kind(spans, "computation")))


def anything_hides(spans):
    return length(difference(of_kind(spans, "communication"), of_kind(spans, "computation", "copy", "launch")))


def on_a_grid(spans, grid=1e-3):
    """Counts milliseconds, as if everything began and ended with one."""
    ticks = range(round(max(span.end for span in spans) / grid) + 1)
    at = {kind: [s for s in spans if s.kind == kind] for kind in ("communication", "computation")}
    runs = {k: {t for t in ticks for s in own if s.start <= (t + 0.5) * grid < s.end} for k, own in at.items()}
    return grid * len(runs["communication"] - runs["computation"])


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


def pieces(operations=4, trips=2, sized=True, sparse=True, cut=True, equal=True, strict=False):
    """The reference with one thing wrong."""

    def answer(total, active, sequences, context, flops, bandwidth, itemsize, world):
        ring = trips * (world - 1) / world * (itemsize if sized else 2) * total / bandwidth
        for k in range(sequences, 0, -1):
            tokens = sequences * context / (k if cut else 1)
            backward = operations * (active if sparse else total) * tokens / flops
            hides = backward > ring if strict else backward >= ring
            if hides and (sequences % k == 0 or not equal):
                return k
        return 0

    return answer


def diagnosis(*, launch=True, every_rank=True, first_forward=False, mixed=False, seconds=False, threshold=0.5):
    """The rules of the reference with one of them wrong."""

    def answer(timeline):
        rank = timeline.ranks[0]
        spans = timeline.of(rank).spans
        messages = [s for s in spans if s.kind == "communication"]
        forwards = [s for s in spans if s.kind == "computation" and s.name == "forward"]
        work = [timeline.busy("computation", r) for r in timeline.ranks]
        if launch and timeline.busy("launch") > timeline.busy("computation"):
            return "launch-bound"
        waits = timeline.busy("wait", rank) > timeline.busy("communication", rank)
        if max(work) > 1.2 * min(work) if every_rank else waits:
            return "straggler"
        synced = len(forwards) > len(messages) if first_forward else messages[0].start < forwards[-1].start
        if synced:
            return "extra syncs"
        lost = timeline.exposed() > (0.1 if seconds else threshold * timeline.busy("communication"))
        longest = max(s.duration for s in messages) > 0.5 * sum(s.duration for s in messages)
        if mixed:
            return "blocking hook" if lost else "healthy"
        return "healthy" if not lost else "giant bucket" if longest else "blocking hook"

    return answer


def always_healthy(timeline):
    return "healthy"


MUTANTS = (
    Mutant("07.1", "sum of spans", sum_of_spans, "unions, not sums"),
    Mutant("07.1", "overlaps in pairs", pairwise, "unions, not sums"),
    Mutant("07.1", "totals", totals, "unions, not sums"),
    Mutant("07.1", "idle time", idle, "unions, not sums"),
    Mutant("07.1", "waiting counted", waiting_too, "unions, not sums"),
    Mutant("07.1", "launches hide", anything_hides, "unions, not sums"),
    Mutant("07.1", "on a grid of milliseconds", on_a_grid, "unions, not sums"),
    Mutant("07.1", "the last end counts", last_end_counts, "unions, not sums"),
    Mutant("07.2", "forward counted too", pieces(operations=6), "dense models, many ranks"),
    Mutant("07.2", "one half of the ring", pieces(trips=1), "dense models, many ranks"),
    Mutant("07.2", "the tokens of the step", pieces(cut=False), "dense models, many ranks"),
    Mutant("07.2", "sequences cut", pieces(equal=False), "dense models, many ranks"),
    Mutant("07.2", "longer, not as long", pieces(strict=True), "dense models, many ranks"),
    Mutant("07.2", "backward over ring", quotient, "dense models, many ranks"),
    Mutant("07.2", "all experts compute", pieces(sparse=False), "any model, any element, any world"),
    Mutant("07.2", "always 2 bytes", pieces(sized=False), "any model, any element, any world"),
    Mutant("07.3", "everything exposed is a blocking hook", diagnosis(mixed=True), "where the calls lie"),
    Mutant("07.3", "an absolute threshold", diagnosis(seconds=True), "where the calls lie"),
    Mutant("07.3", "exposed at all", diagnosis(threshold=0.02), "where the calls lie"),
    Mutant("07.3", "launches overlooked", diagnosis(launch=False), "what lies around them"),
    Mutant("07.3", "rank 0 alone", diagnosis(every_rank=False), "what lies around them"),
    Mutant("07.3", "more forwards than calls", diagnosis(first_forward=True), "what lies around them"),
)

WORTHLESS = (
    ("07.1", sum_of_spans),
    ("07.1", idle),
    ("07.2", pieces(cut=False)),
    ("07.2", pieces(trips=1)),
    ("07.2", lambda *case: 1),
    ("07.3", always_healthy),
    ("07.3", lambda timeline: "straggler"),
)
"""Answers that must not earn a single point."""
