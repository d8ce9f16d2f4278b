"""Similar answers of different students, compared without names, comments and layout."""

import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from dpbook.classroom.marks.marks import Marks
from dpbook.classroom.marks.submitted_notebook import given_text

LEAST = 50
"""Least number of the answer's own token runs to compare it: short correct answers are similar anyway."""
NEAR = 0.8
"""Share of common token runs above which two answers count as near-identical."""
RUN = 5
"""Tokens of a run."""
SHOWN = 3
"""Number of shared lines to show for two answers."""
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT}

Run = tuple[str, ...]


class SimilarAnswers(NamedTuple):
    """Submissions whose answers to a task are identical except for names and comments, or nearly so."""

    task: str
    names: tuple[str, ...]
    identical: bool
    shared: tuple[str, ...]

    def __str__(self) -> str:
        kind = "identical except for names and comments" if self.identical else "nearly identical"
        return f"{kind}: {', '.join(self.names)}"


def find_similar(marks: Marks) -> list[SimilarAnswers]:
    """Return the similar answers of all submissions, task by task. Missing answers are not compared."""
    texts: dict[str, dict[str, str]] = {}
    for submission in marks.submissions:
        for task in submission.tasks:
            if task.report and task.report.answered:
                texts.setdefault(task.task, {})[submission.name] = task.text
    return [each for task in sorted(texts) for each in similar(task, texts[task], given_text(task))]


def similar(task: str, texts: Mapping[str, str], given: str = "") -> list[SimilarAnswers]:
    """Return the groups of similar answers to a task, the identical ones first.

    ``texts`` has the answer of each submission by its name, and ``given`` is what all were given: what it has does not
    count. Answers that are no Python, or have fewer than `LEAST` runs of their own, are left out.
    """
    common, groups = _runs(_tokens(given)), dict[Run, list[str]]()
    for name, text in texts.items():
        groups.setdefault(_tokens(text), []).append(name)
    runs = {found: own for found in groups if len(own := _runs(found) - common) >= LEAST}
    identical = [tuple(groups[found]) for found in runs if len(groups[found]) > 1]
    near = [tuple(groups[each][0] for each in group) for group in _near(runs)]
    return [
        *(SimilarAnswers(task, names, True, _shared_lines([texts[names[0]]], given)) for names in identical),
        *(SimilarAnswers(task, names, False, _shared_lines([texts[n] for n in names[:2]], given)) for names in near),
    ]


def _near(runs: Mapping[Run, set[Run]]) -> list[list[Run]]:
    """Return the groups of answers each of which is near to another one of its group."""
    group = {each: [each] for each in runs}
    for one, other in combinations(runs, 2):
        if group[one] is group[other]:
            continue
        if len(runs[one] & runs[other]) >= NEAR * len(runs[one] | runs[other]):
            group[one] += group[other]
            for each in group[other]:
                group[each] = group[one]
    return [found for found in {id(each): each for each in group.values()}.values() if len(found) > 1]


def _tokens(text: str) -> Run:
    """Return a cell's tokens without comments and docstrings; each name of its own is one word. () if no Python."""
    try:
        tree = _Undocumented().visit(ast.parse(text))
        nodes = list(ast.walk(tree))
        own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        read = list(tokenize.generate_tokens(io.StringIO(ast.unparse(tree)).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return ()
    return tuple("name" if token.string in own else token.string for token in read if token.type not in _LAYOUT)


class _Undocumented(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        constant = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if constant else node


def _runs(tokens: Sequence[str]) -> set[Run]:
    return {tuple(tokens[first : first + RUN]) for first in range(len(tokens) - RUN + 1)}


def _shared_lines(texts: Sequence[str], given: str) -> tuple[str, ...]:
    """Return the longest lines that all texts share and that the exercise did not provide."""
    lines = [{line.strip() for line in text.splitlines()} for text in texts]
    own = set.intersection(*lines) - {line.strip() for line in given.splitlines()}
    return tuple(sorted(own, key=lambda line: (-len(line), line))[:SHOWN])
