"""A case without its name: an exhibit drawn by a seed and varied, and a diagnosis of it graded."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpbook.book.ch15.collection import Exhibit, exhibits
from dpbook.core import InvalidArgument, check_int

OPTIONS = "abcdef"
"""Each stands for a cause, of which one is right."""
NAMES: dict[str, tuple[str, ...]] = {
    "model": ("model", "network", "student", "policy"),
    "loader": ("loader", "batches", "train_loader", "stream"),
    "optimizer": ("optimizer", "opt", "optim"),
    "loss": ("loss", "objective", "err"),
    "x": ("x", "inputs", "features"),
    "y": ("y", "targets", "labels"),
    "data": ("data", "dataset", "train_set"),
}
FILLING = (
    "STEPS = 1000",
    "LOG_EVERY = 50",
    'NAME = "baseline"',
    "# adapted from the script for one GPU",
    "EPOCHS = 10",
)


@dataclass(frozen=True)
class Mystery:
    """``script`` for ``world`` ranks has the mistake of ``exhibit``.

    ``rank`` does what the others do not; None if all do the same. ``lines`` of the script are those that the cure
    changes, those around what it adds, that which is blamed, and others that are as right. ``causes`` are titles of
    exhibits, by their letter.
    """

    exhibit: Exhibit
    world: int
    script: str
    rank: int | None
    lines: frozenset[int]
    causes: Mapping[str, str]

    def graded(self, cause: str, rank: int | None, line: int) -> dict[str, bool]:
        """What of a diagnosis is right. Raises `InvalidArgument` where something is no answer."""
        if cause not in self.causes:
            raise InvalidArgument("cause", cause, f"one of the letters {', '.join(self.causes)}")
        if rank is not None and not 0 <= rank < self.world:
            raise InvalidArgument("rank", rank, f"0 to {self.world - 1}, or all")
        if not 1 <= line <= len(self.script.splitlines()):
            raise InvalidArgument("line", line, f"a line of the script, 1 to {len(self.script.splitlines())}")
        right = self.causes[cause] == self.exhibit.title
        return {"cause": right, "rank": rank == self.rank, "line": line in self.lines}


def draw(seed: int) -> Mystery:
    """The case of this seed, always the same. Raises `InvalidArgument`."""
    rng = np.random.default_rng(check_int("seed", seed, 0))
    known = [each for each in exhibits() if each.guilty]
    case = known[rng.integers(len(known))]
    world = int(rng.choice(case.worlds))
    change = Variation(case, world, rng)
    script, cured = change(case.script), change(case.cured)
    lines = _changed(script, cured)
    for place in (case.place, *case.also):
        lines |= _blamed(change(place + "\n").strip(), script)
    return Mystery(case, world, script, _guilty(case, world, script), frozenset(lines), _causes(case, rng))


class Variation:
    """Other names, sizes and ranks, and some lines before: the same for a script and for its cure."""

    def __init__(self, case: Exhibit, world: int, rng: np.random.Generator) -> None:
        self._names = {name: str(rng.choice(others)) for name, others in NAMES.items()}
        hidden, examples, batch = rng.choice([12, 20, 24, 32]), rng.choice([96, 120, 144]), rng.choice([4, 5, 6])
        self._sizes = {
            r"\bnet\(\)": f"net({hidden})",
            r"\b96\b": str(examples),
            r"batch_size=4, (?=sampler)": f"batch_size={batch}, ",
            r"lr=0\.1\b": f"lr={rng.choice([0.05, 0.1, 0.2])}",
            r"\b(missing|mislabelled)=40": rf"\1={rng.integers(36, 36 + world)}",
        }
        if case.guilty == "odd":
            self._sizes[r"rank (==|!=) 1\b"] = rf"rank \1 {rng.integers(1, world)}"
        self._before = list(rng.permutation(FILLING)[: rng.integers(1, len(FILLING))])

    def __call__(self, text: str) -> str:
        """Make of a script, or of a part of it, the other one."""
        text = re.sub(r"  # .*", "", text)
        for pattern, value in self._sizes.items():
            text = re.sub(pattern, value, text)
        for name, other in self._names.items():
            text = re.sub(rf"(?<![.\w\"]){name}\b(?!=)", other, text)
        head, found, rest = text.partition("\n\nrank, world")
        return "\n".join([head + "\n", *self._before]) + f"{found[1:]}{rest}" if found else text


def _guilty(case: Exhibit, world: int, script: str) -> int | None:
    """Who does what the others do not."""
    if case.guilty == "last":
        return world - 1
    if case.guilty == "odd":
        return int(re.findall(r"rank (?:==|!=) (\d)", script)[0])
    if case.guilty == "example":
        return int(re.findall(r"(?:missing|mislabelled|outlier)=(\d+)", script)[0]) % world
    return int(case.guilty) if case.guilty.isdigit() else None


def _changed(script: str, cured: str) -> set[int]:
    """The lines that a cure changes or moves others past, and those around what it adds; of imports none."""
    before, after = script.splitlines(), cured.splitlines()
    lines: set[int] = set()
    taken: dict[str, int] = {}
    put: dict[str, int] = {}
    for kind, begin, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            lines |= {begin, begin + 1} if kind == "insert" else set(range(begin + 1, end + 1))
            taken |= {before[at].strip(): at + 1 for at in range(begin, end)}
            put |= {after[at].strip(): begin for at in range(first, last)}
    for text in taken.keys() & put.keys():
        lines |= set(range(min(taken[text], put[text] + 1), max(taken[text], put[text]) + 1))
    return {line for line in lines if 1 <= line <= len(before) and not re.match(r"(import|from)\b|$", before[line - 1])}


def _blamed(place: str, script: str) -> set[int]:
    return {number for number, line in enumerate(script.splitlines(), 1) if place and line.strip() == place}


def _causes(case: Exhibit, rng: np.random.Generator) -> dict[str, str]:
    """Letters for the right cause and for others, in some order."""
    others = [each.title for each in exhibits() if each.check != case.check or each.tool != case.tool]
    titles = [case.title, *rng.choice(others, len(OPTIONS) - 1, replace=False)]
    return dict(zip(OPTIONS, (str(title) for title in rng.permutation(titles)), strict=True))
