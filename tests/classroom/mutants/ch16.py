"""Wrong answers to exercise 16, each with the mistake that people make."""

import numpy as np

from dpbook.classroom.tasks.judging import Mutant

# 16.1


def each_rank(wanted, compress):
    return np.stack([compress(row) for row in wanted])


def _send(
    offered=lambda g, residual: g + residual,
    sent=each_rank,
    remaining=lambda g, residual, sent: g + residual - sent,
    start=False,
):  # fmt: skip
    """``start``: nothing is kept in the first step, when nothing was kept before."""

    def send(gradients, residual, compress):
        made = sent(offered(gradients, residual), compress)
        if start and not residual.any():
            return made, np.zeros_like(gradients)
        return made, remaining(gradients, residual, made)

    return send


def ranks_in_a_row(wanted, compress):
    return compress(wanted.ravel()).reshape(wanted.shape)


def mean_remaining(gradients, residual, sent):
    return np.tile((gradients + residual - sent).mean(axis=0), (len(sent), 1))


def compressed_twice(gradients, residual, compress):
    wanted = gradients + residual
    return each_rank(wanted, compress), wanted - each_rank(wanted, compress)


def in_place(gradients, residual, compress):
    gradients += residual
    sent = each_rank(gradients, compress)
    return sent, gradients - sent


def sends_all(gradients, residual, compress):
    return gradients + residual, np.zeros_like(gradients)


def kept_is_sent_whole(gradients, residual, compress):
    sent = each_rank(gradients, compress)
    return sent + residual, gradients - sent


# 16.2


def ring(ranks, alpha, beta, nbytes):
    return 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)


def all_points(measured):
    return np.polyfit(*np.transpose(measured), 1)


def _best_period(
    line=all_points,
    meeting=ring,
    period=lambda slope, start, ratio: max(1, round(np.sqrt(start / slope * ratio))),
):  # fmt: skip
    """``ratio``: seconds of a meeting in those of a step."""

    def best_period(measured, ranks, compute, alpha, beta, nbytes):
        return period(*line(measured), meeting(ranks, alpha, beta, nbytes) / compute)

    return best_period


def first_and_second(measured):
    (near, fewer), (far, more) = measured[0], next(pair for pair in measured if pair[0] > measured[0][0])
    slope = (more - fewer) / (far - near) or 1e-9
    return abs(slope), abs(fewer - slope)


def best_of_the_measured(measured, ranks, compute, alpha, beta, nbytes):
    meeting = ring(ranks, alpha, beta, nbytes)
    return min(measured, key=lambda pair: pair[1] * (compute + meeting / pair[0]))[0]


# 16.3


def dense(wanted, k, kind=np.float16):
    rows = np.zeros_like(wanted)
    for row, mine in zip(rows, wanted, strict=True):
        chosen = np.argsort(np.abs(mine))[-k:]
        row[chosen] = mine[chosen].astype(kind)
    return rows


def average(rows):
    return rows.mean(axis=0)


def last_writer(rows):
    """Result of NumPy for ``total[places] += values`` if a place occurs twice."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total = np.where(row != 0, row, total)
    return total / len(rows)


def by_senders(rows):
    return rows.sum(axis=0) / np.maximum(1, (rows != 0).sum(axis=0))


def _mended(
    averaged=average,
    sent=dense,
    remaining=lambda gradients, residual, sent: gradients + residual - sent,
):  # fmt: skip
    def mended(gradients, residual, k):
        rows = sent(gradients + residual, k)
        return averaged(rows), remaining(gradients, residual, rows)

    return mended


def fraction_forgotten(gradients, residual, sent):
    return np.where(sent != 0, 0, gradients + residual)


def kept_forgotten(gradients, residual, sent):
    return np.where(sent != 0, gradients + residual - sent, gradients)


def beside_the_average(gradients, residual, sent):
    return gradients + residual - sent.mean(axis=0)


def kept_in_fp16(gradients, residual, sent):
    return (gradients + residual - sent).astype(np.float16).astype(float)


def fractions_averaged(gradients, residual, sent):
    wanted = gradients + residual
    return np.where(sent != 0, 0, wanted) + np.where(sent != 0, wanted - sent, 0).mean(axis=0)


def as_given(gradients, residual, k):
    wanted = gradients + residual
    places = [np.argsort(np.abs(row))[-k:] for row in wanted]
    values = [row[chosen].astype(np.float16) for row, chosen in zip(wanted, places, strict=True)]
    total = np.zeros(wanted.shape[1])
    total[np.concatenate(places)] += np.concatenate(values)
    remaining = gradients.copy()
    for row, chosen in zip(remaining, places, strict=True):
        row[chosen] = 0
    return total / len(gradients), remaining


# 16.4


def _first_there(
    meeting=lambda m, alpha, beta: m["rounds"] * alpha + m["bytes"] * beta,
    work=lambda m, compute: m["every"] * compute + m["extra"],
    both=lambda m, work, meeting: max(work, meeting) if m["hidden"] else work + meeting,
    periods=lambda m: m["steps"] / m["every"],
):  # fmt: skip
    def first_there(methods, compute, alpha, beta):
        def seconds(name):
            m = methods[name]
            return periods(m) * both(m, work(m, compute), meeting(m, alpha, beta))

        return min(methods, key=seconds)

    return first_there


def fewest_bytes(methods, compute, alpha, beta):
    return min(methods, key=lambda name: methods[name]["bytes"] * methods[name]["steps"] / methods[name]["every"])


SENT, LOST, STAYS = "what is sent", "nothing is lost", "what was given stays"
ABOUT, BEST = "about as good as the best measured", "near the best of all"
MANY, LARGE, KEPT, RUN = "many ranks, one step", "large numbers", "something kept before", "many ranks, many steps"
WAIT, HIDDEN = "all wait for their meetings", "some meetings are hidden"
MUTANTS = (
    Mutant("16.1", "what was kept is never offered", _send(offered=lambda g, residual: g), SENT),
    Mutant("16.1", "ranks compressed as one vector", _send(sent=ranks_in_a_row), SENT),
    Mutant("16.1", "what was kept goes out whole", kept_is_sent_whole, SENT),
    Mutant("16.1", "the old rest forgotten", _send(remaining=lambda g, residual, sent: g - sent), LOST),
    Mutant(
        "16.1", "beside the average", _send(remaining=lambda g, residual, sent: g + residual - sent.mean(axis=0)), LOST
    ),
    Mutant("16.1", "nothing kept at first", _send(start=True), LOST),
    Mutant("16.1", "compressed twice", compressed_twice, LOST),
    Mutant("16.1", "added in place", in_place, STAYS),
    Mutant("16.2", "as rarely as anybody has tried", lambda measured, *rest: max(measured)[0], ABOUT),
    Mutant("16.2", "a meeting in a tenth of the time", _best_period(period=lambda s, a, r: 1 + round(10 * r)), ABOUT),
    Mutant("16.2", "bytes alone", _best_period(meeting=lambda n, a, b, size: ring(n, 0, b, size)), BEST),
    Mutant("16.2", "latency alone", _best_period(meeting=lambda n, a, b, size: ring(n, a, 0, size)), BEST),
    Mutant("16.2", "half of the ring", _best_period(meeting=lambda *link: ring(*link) / 2), BEST),
    Mutant("16.2", "everything in each round", _best_period(meeting=lambda n, a, b, m: ring(n, a, b, n * m)), BEST),
    Mutant("16.2", "the best of the measured", best_of_the_measured, BEST),
    Mutant("16.2", "a line through two", _best_period(line=first_and_second), BEST),
    Mutant("16.3", "of two at one place the last", _mended(averaged=last_writer), MANY),
    Mutant("16.3", "divided by those who sent", _mended(averaged=by_senders), MANY),
    Mutant("16.3", "beside the average", _mended(remaining=beside_the_average), MANY),
    Mutant("16.3", "what was rounded off", _mended(remaining=fraction_forgotten), LARGE),
    Mutant("16.3", "not rounded at all", _mended(sent=lambda wanted, k: dense(wanted, k, float)), LARGE),
    Mutant("16.3", "kept in half precision", _mended(remaining=kept_in_fp16), LARGE),
    Mutant("16.3", "what had been kept", _mended(remaining=kept_forgotten), KEPT),
    Mutant("16.3", "what was rounded off, shared by all", _mended(remaining=fractions_averaged), RUN),
    Mutant("16.4", "the fewest bytes", fewest_bytes, WAIT),
    Mutant("16.4", "the fewest steps", lambda m, *link: min(m, key=lambda name: m[name]["steps"]), WAIT),
    Mutant("16.4", "the shortest step", _first_there(periods=lambda m: 1 / m["every"]), WAIT),
    Mutant("16.4", "without latency", _first_there(meeting=lambda m, alpha, beta: m["bytes"] * beta), WAIT),
    Mutant("16.4", "without the compressor", _first_there(work=lambda m, compute: m["every"] * compute), WAIT),
    Mutant(
        "16.4", "a meeting in each step",
        _first_there(work=lambda m, compute: compute + m["extra"], periods=lambda m: m["steps"]),
        WAIT,
    ),
    Mutant("16.4", "everything waits", _first_there(both=lambda m, work, meeting: work + meeting), HIDDEN),
    Mutant("16.4", "hidden is free", _first_there(both=lambda m, w, s: w + s * (not m["hidden"])), HIDDEN),
)  # fmt: skip

WORTHLESS = (
    ("16.1", sends_all),
    ("16.1", lambda gradients, residual, compress: (np.zeros_like(gradients), np.zeros_like(residual))),
    ("16.2", lambda *given: 1),
    ("16.2", lambda *given: 64),
    ("16.3", as_given),
    ("16.3", lambda gradients, residual, k: (gradients.mean(axis=0), np.zeros_like(residual))),
    ("16.4", lambda methods, *link: "exact"),
    ("16.4", fewest_bytes),
)
"""Answers that must not earn a single point."""
