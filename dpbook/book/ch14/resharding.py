"""Checks of task 14.5: a checkpoint of N ranks, cut anew for M."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom import Answer, call, expect, expect_equal, expect_items

Array = NDArray[Any]
State = dict[str, Any]
KINDS = {"weight": "float16", "exp_avg": "float32", "exp_avg_sq": "float32"}
"""The arrays of a tensor and their dtypes."""


def _cut(whole: Array, world: int, rank: int) -> Array:
    """Return the rows of a rank: chunks of as many rows, rounded up, the last ones smaller or empty."""
    rows = -(-len(whole) // world)
    return whole[rank * rows : (rank + 1) * rows].copy()


def _checkpoint(wholes: dict[str, dict[str, Array]], step: int, world: int) -> list[State]:
    return [
        {"step": step, "tensors": {n: {k: _cut(a, world, r) for k, a in t.items()} for n, t in wholes.items()}}
        for r in range(world)
    ]


def reshards(answer: Answer, rng: np.random.Generator, *, dividing: bool) -> None:
    """Try tensors whose rows all worlds divide, or tensors of any number of rows, some fewer than there are ranks."""
    worlds = ((1, 4), (4, 2), (2, 4), (3, 3)) if dividing else ((3, 2), (2, 5), (5, 3), (7, 4), (1, 6), (4, 1))
    for old, new in worlds:
        rows = [12, 24] if dividing else [1, int(rng.integers(2, 6)), 10, int(rng.integers(6, 30))]
        columns = [() if n % 2 else (int(rng.integers(1, 4)),) for n in range(len(rows))]
        wholes = {
            f"layer{n}.weight": {kind: rng.normal(size=(count, *shape)).astype(dtype) for kind, dtype in KINDS.items()}
            for n, (count, shape) in enumerate(zip(rows, columns, strict=True))
        }
        step, where = int(rng.integers(1, 10_000)), f"{old} ranks to {new}, tensors of {rows} rows"
        files = _checkpoint(wholes, step, old)
        got = expect_items(call(answer, files, new, unchanged=True, where=where), new, f"a list of {new} files", where)
        for rank, (right, file) in enumerate(zip(_checkpoint(wholes, step, new), got, strict=True)):
            _judge_file(right, file, f"{where}, file of rank {rank}")


def _judge_file(right: State, file: Any, where: str) -> None:
    expect(isinstance(file, dict) and set(file) == set(right), 'a dict of "step" and "tensors"', f"{file}"[:80], where)
    expect_equal(right["step"], file["step"], f"{where}, step")
    names = file["tensors"]
    fits = isinstance(names, dict) and set(names) == set(right["tensors"])
    expect(fits, f"the tensors {', '.join(right['tensors'])}", f"{names}"[:80], where)
    for name, arrays in right["tensors"].items():
        fits = isinstance(names[name], dict) and set(names[name]) == set(KINDS)
        expect(fits, f"the arrays {', '.join(KINDS)}", f"{names[name]}"[:80], f"{where}, {name}")
        for kind, array in arrays.items():
            expect_equal(array, names[name][kind], f"{where}, {name}, {kind}")
