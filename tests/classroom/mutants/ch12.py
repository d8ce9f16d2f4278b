"""Wrong answers to exercise 12, each with the mistake that people make."""

from dpbook.classroom.tasks.judging import Mutant
from dpbook.overlap.timeline.spans import difference, intersection, length, union


def _calls(spans, rank, by="start"):
    """The collectives of a rank by their start, or by their end."""
    own = [s for s in spans if s.rank == rank and s.kind == "communication"]
    return sorted(own, key=lambda s: getattr(s, by))


def _diagnose(
    *, split=True, by="start", sums=False, hidden=False, any_span=False, first_to_last=False,
    cause=None, look=None,
):  # fmt: skip
    """The reference with one thing wrong."""

    def diagnose(spans, window):
        ranks = sorted({s.rank for s in spans})
        if first_to_last:
            window = min(s.start for s in spans), max(s.end for s in spans)
        calls = {r: _calls(spans, r, by) for r in ranks}
        begun = [max(s.start for s in together) for together in zip(*calls.values(), strict=True)]
        table = []
        for r in ranks:
            work = union([(s.start, s.end) for s in spans if s.rank == r and s.kind == "computation"])
            inside = union([(s.start, s.end) for s in calls[r]])
            first = begun if split else [s.start for s in calls[r]]
            moving = [(max(a, s.start), max(a, s.end)) for a, s in zip(first, calls[r], strict=True)]
            free = difference(union([window]), work)
            transfer = length(intersection(free, union(moving)))
            if sums:
                transfer = sum(length(intersection(free, union([m]))) for m in moving)
            waiting = length(difference(inside if hidden else intersection(free, inside), union(moving)))
            busy = union([(s.start, s.end) for s in spans if s.rank == r]) if any_span else inside
            table.append((transfer, waiting, length(difference(free, busy))))
        totals = [sum(column) for column in zip(*table, strict=True)]
        k = cause(table) if cause else totals.index(max(totals))
        if k == 1 and look is None:
            rank = min(ranks, key=lambda r: table[r][1])
        else:
            rank = look(table, k) if look else max(ranks, key=lambda r: table[r][k])
        return table, ("network", "straggler", "input")[k], rank

    return diagnose


def on_a_grid(spans, window):
    """Everything begins and ends with a millisecond."""
    rounded = [s._replace(start=round(s.start, 3), end=round(s.end, 3)) for s in spans]
    return _diagnose()(rounded, window)


def no_waiting(spans, window):
    """All exposed communication is the network's."""
    table, cause, rank = _diagnose(split=False)(spans, window)
    return [(transfer, 0.0, idle) for transfer, _, idle in table], cause, rank


def _most(table, k):
    return max(range(len(table)), key=lambda r: table[r][k])


def _worst_of_rank_0(table):
    return max(range(3), key=lambda k: table[0][k])


def _worst_of_all(table):
    return max(range(3), key=lambda k: max(row[k] for row in table))


def _two_causes(table):
    """Whoever is idle lacks input; the rest is the network."""
    transfer, waiting, idle = (sum(column) for column in zip(*table, strict=True))
    return 2 if idle > transfer + waiting else 0


def _tokens(run):
    return run[1]


def _rate(run):
    return run[1] / run[2]


def _scaling(
    *, operations=6, all_devices=True, by_time=False, world=True, base=min, rate=lambda n, tokens, s: tokens / s
):
    def scaling(runs, parameters, peak):
        compared = base(runs)
        rows = []
        for n, tokens, seconds in runs:
            share = n if world else 1
            alone = compared[1] / compared[2] / (compared[0] if world else 1)
            efficiency = compared[2] / seconds if by_time else tokens / seconds / share / alone
            used = operations * parameters * tokens / seconds / (peak * (n if all_devices else 1))
            rows.append((rate(n, tokens, seconds), efficiency, used))
        return rows

    return scaling


def _bandwidths(sizes=None, factors=None, bits=1):
    """With sizes in units of what a rank hands in, and factors, by collective; the others are right."""

    def bandwidths(collective, nbytes, seconds, world):
        size = {"all_gather": world} | (sizes(world) if sizes else {})
        once = (world - 1) / world
        factor = {"all_reduce": 2 * once, "all_gather": once, "reduce_scatter": once, "broadcast": 1.0}
        factor |= factors(world) if factors else {}
        algbw = bits * nbytes * size.get(collective, 1) / seconds
        return algbw, algbw * factor[collective]

    return bandwidths


LOST, CAUSE = "the three losses of every rank", "the cause, and where to look"
ROWS, BANDS = "tokens per second, efficiency, MFU", "size and factor of each collective"

MUTANTS = (
    Mutant("12.1", "waiting taken for transfer", no_waiting, LOST),
    Mutant("12.1", "sums of spans", _diagnose(sums=True), LOST),
    Mutant("12.1", "on a grid of milliseconds", on_a_grid, LOST),
    Mutant("12.1", "collectives by their end", _diagnose(by="end"), LOST),
    Mutant("12.1", "hidden waiting counts", _diagnose(hidden=True), LOST),
    Mutant("12.1", "the rank that waits most", _diagnose(look=_most), CAUSE),
    Mutant("12.1", "the rank that loses most decides", _diagnose(cause=_worst_of_all), CAUSE),
    Mutant("12.1", "rank 0 decides", _diagnose(cause=_worst_of_rank_0), CAUSE),
    Mutant("12.2", "efficiency from step times", _scaling(by_time=True), ROWS),
    Mutant("12.2", "the peak of one device", _scaling(all_devices=False), ROWS),
    Mutant("12.2", "efficiency forgets the ranks", _scaling(world=False), ROWS),
    Mutant("12.2", "forward alone", _scaling(operations=2), ROWS),
    Mutant("12.2", "compared with the first row", _scaling(base=lambda runs: runs[0]), ROWS),
    Mutant("12.2", "compared with the fewest tokens", _scaling(base=lambda runs: min(runs, key=_tokens)), ROWS),
    Mutant("12.2", "compared with the lowest rate", _scaling(base=lambda runs: min(runs, key=_rate)), ROWS),
    Mutant("12.2", "tokens of a rank times the ranks", _scaling(rate=lambda n, tokens, s: n * tokens / s), ROWS),
    Mutant("12.3", "an all-gather by its parts", _bandwidths(sizes=lambda n: {"all_gather": 1}), BANDS),
    Mutant("12.3", "a reduce-scatter by its parts", _bandwidths(sizes=lambda n: {"reduce_scatter": 1 / n}), BANDS),
    Mutant(
        "12.3", "one factor for all",
        _bandwidths(factors=lambda n: dict.fromkeys(("all_gather", "reduce_scatter", "broadcast"), 2 * (n - 1) / n)),
        BANDS,
    ),
    Mutant("12.3", "half an all-reduce", _bandwidths(factors=lambda n: {"all_reduce": (n - 1) / n}), BANDS),
    Mutant("12.3", "a broadcast like an all-gather", _bandwidths(factors=lambda n: {"broadcast": (n - 1) / n}), BANDS),
    Mutant("12.3", "bits", _bandwidths(bits=8), BANDS),
)  # fmt: skip

WORTHLESS = (
    ("12.1", no_waiting),
    ("12.1", _diagnose(any_span=True, cause=_two_causes)),
    ("12.1", _diagnose(first_to_last=True, look=lambda table, k: 0)),
    ("12.2", _scaling(by_time=True)),
    ("12.3", _bandwidths(bits=8)),
)
"""Answers that must not earn a single point."""
