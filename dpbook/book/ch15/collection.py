"""Exhibits: sound programs with one mistake each, and its description; and mysteries, exhibits in disguise.

A mystery is an exhibit chosen by a seed, with other names, sizes and ranks. It grades a diagnosis.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dpbook.core import InvalidArgument, check_int

SCRIPT = "train.py"
"""File name of an exhibit's script while it runs, so that the name does not give the mistake away."""


@dataclass(frozen=True)
class Exhibit:
    """A script with one mistake. The head of `exhibits.toml` describes the fields."""

    name: str
    kind: int
    title: str
    symptom: str
    tool: str
    mistake: str
    why: str
    chapter: int
    program: str = "wrapped"
    setup: str = ""
    check: str = ""
    status: str = ""
    says: str = ""
    rank: int | None = None
    place: str = ""
    follows: tuple[str, ...] = ()
    thread: str = ""
    world: int = 3
    updates: int = 4
    guilty: str = ""
    worlds: tuple[int, ...] = (3, 4)
    also: tuple[str, ...] = ()

    @property
    def script(self) -> str:
        """Text of the script, with its mistake."""
        return patched(self.cured, self.mistake)

    @property
    def cured(self) -> str:
        """Text of the script without its mistake."""
        return patched(_table("programs")[self.program], self.setup)

    @property
    def difference(self) -> str:
        """Lines that the cure removes and adds, without imports."""
        lines = difflib.ndiff(self.script.splitlines(), self.cured.splitlines())
        return "\n".join(
            line for line in lines if line[0] in "+-" and line[2:].split()[:1] not in ([], ["import"], ["from"])
        )


def patched(text: str, patch: str) -> str:
    """Return a text after a patch.

    A patch is hunks, separated by lines with "@@". Each is lines that begin with "-" (removed), "+" (added) or a space
    (kept). Raises `InvalidArgument` if a hunk's old lines are not there exactly once.
    """
    for hunk in filter(None, patch.split("@@\n")):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        if text.count(before) != 1:
            raise InvalidArgument("patch", before, f"lines that are there once, not {text.count(before)} times")
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


@cache
def _table(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this folder."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """Return all exhibits, in the order of `exhibits.toml`."""

    def with_tuples(table: dict[str, Any]) -> dict[str, Any]:
        return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}

    return tuple(Exhibit(**with_tuples(table)) for table in _table("exhibits")["exhibit"])


def exhibit(name: str) -> Exhibit:
    """Return the exhibit of this name. Raises `InvalidArgument`, listing the names that exist."""
    by_name = {one.name: one for one in exhibits()}
    if name not in by_name:
        raise InvalidArgument("name", name, f"one of {', '.join(by_name)}")
    return by_name[name]


OPTIONS = "abcdef"
"""Letters of the offered causes, one of which is right."""
NAMES: dict[str, tuple[str, ...]] = {
    "model": ("model", "network", "student", "policy"),
    "loader": ("loader", "batches", "train_loader", "stream"),
    "optimizer": ("optimizer", "opt", "optim"),
    "loss": ("loss", "objective", "err"),
    "x": ("x", "inputs", "features"),
    "y": ("y", "targets", "labels"),
    "data": ("data", "dataset", "train_set"),
}
FILLING = "STEPS = 1000", "LOG_EVERY = 50", 'NAME = "baseline"', "# adapted from the script for one GPU", "EPOCHS = 10"


@dataclass(frozen=True)
class Mystery:
    """A ``script`` for ``world`` ranks with the mistake of ``exhibit``.

    ``rank`` is the rank that differs from the others, None if none does. ``lines`` are all right answers for the line:
    lines that the cure changes, those around its additions, the blamed line, and others where a cure is possible.
    ``causes`` are titles of exhibits, by their letters.
    """

    exhibit: Exhibit
    world: int
    script: str
    rank: int | None
    lines: frozenset[int]
    causes: Mapping[str, str]

    def graded(self, cause: str, rank: int | None, line: int) -> dict[str, bool]:
        """Return which parts of a diagnosis are right. Raises `InvalidArgument` for a part that is no answer."""
        if cause not in self.causes:
            raise InvalidArgument("cause", cause, f"one of the letters {', '.join(self.causes)}")
        if rank is not None and not 0 <= rank < self.world:
            raise InvalidArgument("rank", rank, f"0 to {self.world - 1}, or all")
        if not 1 <= line <= len(self.script.splitlines()):
            raise InvalidArgument("line", line, f"a line of the script, 1 to {len(self.script.splitlines())}")
        right = self.causes[cause] == self.exhibit.title
        return {"cause": right, "rank": rank == self.rank, "line": line in self.lines}


def draw(seed: int) -> Mystery:
    """Return the mystery of a seed; equal seeds give equal mysteries. Raises `InvalidArgument`."""
    rng = np.random.default_rng(check_int("seed", seed, 0))
    candidates = [one for one in exhibits() if one.guilty]
    case = candidates[rng.integers(len(candidates))]
    world = int(rng.choice(case.worlds))
    change = Variation(case, world, rng)
    script, cured = change(case.script), change(case.cured)
    places = {change(place + "\n").strip() for place in (case.place, *case.also)} - {""}
    blamed = {number for number, line in enumerate(script.splitlines(), 1) if line.strip() in places}
    lines = frozenset(_changed(script, cured) | blamed)
    return Mystery(case, world, script, _guilty(case, world, script), lines, _causes(case, rng))


class Variation:
    """Other names, sizes and ranks, and some first lines: the same for a script and for its cure."""

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
        self._first_lines = list(rng.permutation(FILLING)[: rng.integers(1, len(FILLING))])

    def __call__(self, text: str) -> str:
        """Return the varied text of a script, or of a part of it."""
        text = re.sub(r"  # .*", "", text)
        for pattern, value in self._sizes.items():
            text = re.sub(pattern, value, text)
        for name, other in self._names.items():
            text = re.sub(rf"(?<![.\w\"]){name}\b(?!=)", other, text)
        head, separator, rest = text.partition("\n\nrank, world")
        return "\n".join([head + "\n", *self._first_lines]) + f"{separator[1:]}{rest}" if separator else text


def _guilty(case: Exhibit, world: int, script: str) -> int | None:
    """Return the rank that differs from the others; None if none does."""
    if case.guilty == "last":
        return world - 1
    if case.guilty == "odd":
        return int(re.findall(r"rank (?:==|!=) (\d)", script)[0])
    if case.guilty == "example":
        return int(re.findall(r"(?:missing|mislabelled|outlier)=(\d+)", script)[0]) % world
    return int(case.guilty) if case.guilty.isdigit() else None


def _changed(script: str, cured: str) -> set[int]:
    """Return the lines that a cure changes, moves others past, or adds lines beside; imports are left out."""
    before, after = script.splitlines(), cured.splitlines()
    lines: set[int] = set()
    removed: dict[str, int] = {}
    added: dict[str, int] = {}
    for kind, begin, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            lines |= {begin, begin + 1} if kind == "insert" else set(range(begin + 1, end + 1))
            removed |= {before[at].strip(): at + 1 for at in range(begin, end)}
            added |= {after[at].strip(): begin for at in range(first, last)}
    for text in removed.keys() & added.keys():
        lines |= set(range(min(removed[text], added[text] + 1), max(removed[text], added[text]) + 1))
    return {line for line in lines if 1 <= line <= len(before) and not re.match(r"(import|from)\b|$", before[line - 1])}


def _causes(case: Exhibit, rng: np.random.Generator) -> dict[str, str]:
    """Return the right cause and five others by letters, in random order."""
    others = [one.title for one in exhibits() if one.check != case.check or one.tool != case.tool]
    titles = [case.title, *rng.choice(others, len(OPTIONS) - 1, replace=False)]
    return dict(zip(OPTIONS, (str(title) for title in rng.permutation(titles)), strict=True))
