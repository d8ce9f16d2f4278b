"""Checks of tasks 14.4 and 14.5: the norm of a sharded gradient, and a checkpoint of N ranks, cut anew for M."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpbook.book.ch14.units import Array
from dpbook.classroom import Answer, call, expect, expect_close, expect_equal, expect_items, expect_number
from dpbook.collectives import Comm
from dpbook.collectives.programs import call_on_ranks, exchange
from dpbook.core import plural

# 14.4: the norm of a gradient that is sharded, and the gradient clipped by it


def _clip_on(answer: Callable[..., Any], pieces: list[list[Array]], copies: list[int], limit: float) -> list[Any]:
    """Return, for each rank, the norm that it returned, its pieces then, and the number of its all-reduces.

    The answer gets a copy of the list of pieces: an array that it puts there changes nothing of the rank's.
    """

    def on_rank(comm: Comm) -> tuple[Any, list[Array], int]:
        calls = []

        def all_reduce(number: float) -> float:
            calls.append(number)
            return float(np.sum(exchange(comm, np.array([float(number)]))))

        mine = pieces[comm.rank]
        return answer(list(mine), copies, limit, all_reduce), mine, len(calls)

    return call_on_ranks(on_rank, len(pieces))


def _layouts(rng: np.random.Generator, world: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the number of ranks that have each gradient, and its size; in the second layout one rank has no number."""
    dividing = [n for n in range(1, world + 1) if world % n == 0]
    copies = [1, world, *(int(n) for n in rng.choice(dividing, 3))]
    yield copies, [int(n) for n in rng.integers(1, 2 * world + 4, len(copies))]
    if world > 1:
        yield [1], [world - 1]


def _gradients(
    rng: np.random.Generator, world: int, copies: list[int], sizes: list[int]
) -> tuple[list[list[Array]], list[Array]]:
    """Draw each rank's pieces, some of them empty, and the whole gradients."""
    kinds = rng.permutation(["float16", "float32", "float32", "float16", "float32"])[: len(copies)]
    wholes = [(rng.normal(size=size) * 3).astype(kind) for size, kind in zip(sizes, kinds, strict=True)]
    split = [np.array_split(gradient, world // n) for gradient, n in zip(wholes, copies, strict=True)]
    return [[parts[rank % len(parts)].copy() for parts in split] for rank in range(world)], wholes


def clips(answer: Answer, rng: np.random.Generator, *, above: bool) -> None:
    """Try limits above the norm, or below it; some values in half precision have squares that overflow it.

    Above it a gradient may also be zero.
    """
    for world, (copies, sizes) in ((n, layout) for n in (1, 2, 3, 5, 6, 8) for layout in _layouts(rng, n)):
        pieces, wholes = _gradients(rng, world, copies, sizes)
        for large in (0, 1, 200) if above else (1, 200):
            given = [[(large * piece).astype(piece.dtype) for piece in rank] for rank in pieces]
            squares = (np.square((large * whole).astype(whole.dtype), dtype=float) for whole in wholes)
            norm = math.sqrt(sum(float(square.sum()) for square in squares))
            limit = (1.5 * norm or 1.0) if above else norm * float(rng.uniform(0.2, 0.8))
            where = f"{plural(world, 'rank')}, copies {copies}, values around {3 * large}"
            ranks = call(answer, given, copies, limit, through=_clip_on, where=where)
            _judge_clipped(ranks, given, copies, norm, 1.0 if above else limit / norm, where)


def _judge_clipped(
    ranks: Any, given: list[list[Array]], copies: list[int], norm: float, factor: float, where: str
) -> None:
    squares = np.array([[np.square(piece, dtype=float).sum() for piece in pieces] for pieces in given])
    for rank, (got, pieces, calls) in enumerate(ranks):
        place = f"{where}, rank {rank}"
        expect(calls <= 1, "at most one all_reduce", str(calls), place)
        mistakes = {
            "This is the norm of what the rank has itself: the other ranks' pieces are missing.": (
                math.sqrt((squares[rank] / copies).sum())
            ),
            "A piece that lies on several ranks is counted on each of them.": math.sqrt(squares.sum()),
        }
        number = expect_number(got, f"{place}, the norm")
        expect_close(norm, number, 1e-4 * norm, f"{place}, the norm", mistakes=mistakes)
        for k, (before, after) in enumerate(zip(given[rank], pieces, strict=True)):
            whole = before.astype(float)
            bound = 0.0 if factor == 1 else 1e-3 * abs(factor * whole) + 1e-6
            expect_equal(str(before.dtype), str(after.dtype), f"{place}, dtype of piece {k}")
            unchanged = {"The array itself is unchanged: scale it in place. A new array in the list is lost.": whole}
            expect_close(factor * whole, after.astype(float), bound, f"{place}, piece {k}", mistakes=unchanged)


# 14.5: a checkpoint of N ranks, cut anew for M

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
        for arrays in wholes.values():
            arrays["exp_avg"].flat[0] = -0.0
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
            place = f"{where}, {name}, {kind}"
            expect_equal(array, names[name][kind], place)
            signs = [np.signbit(each).tolist() for each in (array, np.asarray(names[name][kind]))]
            expect(signs[0] == signs[1], "all bits: −0.0 stays −0.0", "0.0", place)
