"""Journals of ranks as the hooks write them, with times that are given."""

import json

MODEL = {
    "kind": "model", "format": 1, "device": "cpu", "name": "a CPU", "world": 2, "units": [], "frozen": {},
    "sharded": False, "wrapper": "DistributedDataParallel", "wrapped": True, "bucketed": True, "own_hook": False,
    "buffers": 0, "cap": None, "first": None, "bucket_view": True, "optimizers": ["AdamW"],
    "tensors": [
        {"name": name, "shape": [elements], "dtype": "float32", "device": "cpu"}
        for name, elements in (("a", 250_000), ("b", 750_000))
    ],
}  # fmt: skip


def update(number, *, computing, summing, updating, rest=0.0, loader=0.0, **fields):
    """An update: loader, rest, forward (a third) and backward, the wait for two sums, the optimizer.

    The first sum, of a quarter of the bytes, arrives when the last gradient is ready, and is hidden.
    """
    begun = loader + rest
    backward, ready = begun + computing / 3, begun + computing
    arrived, middle = ready + summing, begun + computing * 2 / 3
    end = arrived + updating
    marks = [
        ["begun", 0.0], ["forward", begun], ["backward", backward], [1, middle], [0, ready], ["returned", arrived],
        ["stepped", end],
    ]  # fmt: skip
    spans = [
        ["loader", 0.0, loader, "", 0, None], ["forward", begun, backward, "", 0, None],
        ["backward", backward, arrived, "", 0, None], ["optimizer", arrived, end, "", 0, None],
        *([["call", middle, ready, "all_reduce", 1_000_000, None],
           ["call", ready, arrived, "all_reduce", 3_000_000, None]] if summing else []),
    ]  # fmt: skip
    plain = {"synced": [True], "emulated": False, "own_hook": False, "stepped": [0], "models": 1, "examples": 8,
             "tokens": 0, "loaded": 0, "workers": None, "detailed": True, "memory": 10**9}  # fmt: skip
    return {"kind": "update", "number": number, **plain, "marks": marks, "spans": spans, **fields}


def write(folder, ranks, model=()):
    """Write a journal for each rank, from a list of its updates."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, updates in enumerate(ranks):
        about = MODEL | {"world": len(ranks)} | dict(model)
        lines = [json.dumps(event) + "\n" for event in (about, *updates)]
        (folder / f"journal-{rank}.jsonl").write_text("".join(lines))


def of_parts(parts, world, updates, seconds):
    """The updates of each rank: ``parts`` has the computing, summing and updating of every rank, the rest is rest."""

    def one(rank, number):
        mine = {name: values[rank] for name, values in parts.items()}
        return update(number, **mine, rest=seconds - sum(mine.values()))

    return [[one(rank, number) for number in range(updates)] for rank in range(world)]
