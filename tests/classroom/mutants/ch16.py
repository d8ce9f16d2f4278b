"""Wrong answers to exercise 16, each with the mistake that people make."""

import numpy as np

from tests.classroom.mutants.edits import Mutant, edit


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


def fewest_bytes(methods, compute, alpha, beta):
    return min(methods, key=lambda name: methods[name]["bytes"] * methods[name]["steps"] / methods[name]["every"])


EACH_RANK, REST = "np.stack([compress(row) for row in owed])", "owed - sent"
SENDER, RING = "for row in owed", "2 * (ranks - 1) * (alpha + beta * nbytes / ranks)"
PERIOD, LINE = "max(1, round(np.sqrt(start / slope * meeting / compute)))", "np.polyfit(*np.transpose(measured), 1)"
OF_THE_MEASURED = "min(measured, key=lambda pair: pair[1] * (compute + meeting / pair[0]))[0]"
SECOND = "next(pair for pair in measured if pair[0] > measured[0][0])"
THROUGH_TWO = f"np.abs(np.polyfit(*np.transpose([measured[0], {SECOND}]), 1)) + 1e-9"
LAST_WRITER = """\
total = np.zeros_like(gradients[0])
    for row in sent:
        total = np.where(row != 0, row, total)
    return total / len(sent)"""
"""Result of NumPy for ``total[places] += values`` if a place occurs twice."""
SHARED_ROUNDING = "np.where(sent != 0, 0, owed) + np.where(sent != 0, owed - sent, 0).mean(axis=0)"
BOTH, STEPS = 'max(work, meeting) if method["hidden"] else work + meeting', 'method["steps"] / method["every"] * period'
IN_EACH_STEP = {'method["every"] * compute': "compute", STEPS: 'method["steps"] * period'}
SENT, LOST, STAYS = "what is sent", "nothing is lost", "what was given stays"
ABOUT, BEST = "about as good as the best measured", "near the best of all"
MANY, LARGE, KEPT, RUN = "many ranks, one step", "large numbers", "something kept before", "many ranks, many steps"
WAIT, HIDDEN = "all wait for their meetings", "some meetings are hidden"
SINGLE = "(gradients + kept).astype(np.float32).astype(float)"
MUTANTS = (
    edit("16.1", "what was kept is never offered", {SENDER: "for row in gradients"}, SENT),
    edit("16.1", "ranks compressed as one vector", {EACH_RANK: "compress(owed.ravel()).reshape(owed.shape)"}, SENT),
    edit(
        "16.1",
        "what was kept goes out whole",
        {SENDER: "for row in gradients", f"sent, {REST}": "sent + kept, gradients - sent"},
        SENT,
    ),
    edit("16.1", "the old rest forgotten", {REST: "gradients - sent"}, LOST),
    edit("16.1", "beside the average", {REST: "owed - sent.mean(axis=0)"}, LOST),
    edit("16.1", "nothing kept at first", {REST: "(owed - sent) * kept.any()"}, LOST),
    edit("16.1", "kept in single precision", {REST: "(owed - sent).astype(np.float32)"}, LOST),
    edit("16.1", "kept in whole numbers", {REST: "np.rint(owed - sent)"}, LOST),
    edit("16.1", "compressed twice", {REST: f"owed - {EACH_RANK}"}, LOST),
    edit("16.1", "added in place", {"owed = gradients + kept": "owed = gradients\n    owed += kept"}, STAYS),
    Mutant("16.2", "as rarely as anybody has tried", lambda measured, *rest: max(measured)[0], ABOUT),
    edit("16.2", "a meeting in a tenth of the time", {PERIOD: "1 + round(10 * meeting / compute)"}, ABOUT),
    edit("16.2", "bytes alone", {"alpha + beta * nbytes": "beta * nbytes"}, BEST),
    edit("16.2", "latency alone", {"alpha + beta * nbytes / ranks": "alpha"}, BEST),
    edit("16.2", "half of the ring", {RING: f"{RING} / 2"}, BEST),
    edit("16.2", "everything in each round", {"nbytes / ranks": "nbytes"}, BEST),
    edit("16.2", "the best of the measured", {PERIOD: OF_THE_MEASURED}, BEST),
    edit("16.2", "a line through two", {LINE: THROUGH_TWO}, BEST),
    edit("16.3", "of two at one place the last", {"return sent.mean(axis=0)": LAST_WRITER}, MANY),
    edit(
        "16.3",
        "divided by those who sent",
        {"sent.mean(axis=0)": "sent.sum(axis=0) / np.maximum(1, (sent != 0).sum(axis=0))"},
        MANY,
    ),
    edit("16.3", "beside the average", {REST: "owed - sent.mean(axis=0)"}, MANY),
    edit("16.3", "what was rounded off", {REST: "np.where(sent != 0, 0, owed)"}, LARGE),
    edit("16.3", "not rounded at all", {".astype(np.float16)": ""}, LARGE),
    edit("16.3", "chosen in half precision", {"np.abs(row)": "np.abs(row.astype(np.float16))"}, LARGE),
    edit("16.3", "in single precision", {"owed = gradients + kept": f"owed = {SINGLE}"}, LARGE),
    edit("16.3", "kept in half precision", {REST: "(owed - sent).astype(np.float16).astype(float)"}, LARGE),
    edit("16.3", "what had been kept", {REST: "np.where(sent != 0, owed - sent, gradients)"}, KEPT),
    edit("16.3", "what was rounded off, shared by all", {REST: SHARED_ROUNDING}, RUN),
    Mutant("16.4", "the fewest bytes", fewest_bytes, WAIT),
    Mutant("16.4", "the fewest steps", lambda m, *link: min(m, key=lambda name: m[name]["steps"]), WAIT),
    edit("16.4", "the shortest step", {STEPS: 'period / method["every"]'}, WAIT),
    edit("16.4", "without latency", {'method["rounds"] * alpha + ': ""}, WAIT),
    edit("16.4", "without the compressor", {' + method["extra"]': ""}, WAIT),
    edit("16.4", "a meeting in each step", IN_EACH_STEP, WAIT),
    edit(
        "16.4",
        "periods rounded up",
        {'method["steps"] / method["every"]': '-(-method["steps"] // method["every"])'},
        WAIT,
    ),
    edit(
        "16.4",
        "periods rounded down",
        {'method["steps"] / method["every"]': 'method["steps"] // method["every"]'},
        WAIT,
    ),
    edit("16.4", "everything waits", {BOTH: "work + meeting"}, HIDDEN),
    edit("16.4", "hidden is free", {BOTH: 'work + meeting * (not method["hidden"])'}, HIDDEN),
)

WORTHLESS = (
    ("16.1", lambda gradients, residual, compress: (gradients + residual, np.zeros_like(gradients))),
    ("16.1", lambda gradients, residual, compress: (np.zeros_like(gradients), np.zeros_like(residual))),
    ("16.2", lambda *given: 1),
    ("16.2", lambda *given: 64),
    ("16.3", as_given),
    ("16.3", lambda gradients, residual, k: (gradients.mean(axis=0), np.zeros_like(residual))),
    ("16.4", lambda methods, *link: "exact"),
    ("16.4", fewest_bytes),
)
"""Answers that must not earn a single point."""
