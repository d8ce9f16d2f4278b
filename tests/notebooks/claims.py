"""Is what a cell shows and nobody compares held by a claim that can fail? Read from the notebook's code."""

import ast

NEAR = 3
"""Code cells before and behind a cell, in which a claim about what it shows may stand."""


def unclaimed(sources, place):
    """The variables from which cell ``place`` makes what it shows, if no ``assert`` nearby is about any of them.

    ``sources`` is the code of all cells. An empty answer says that one is. Where the cell shows no variable at all, it
    is ``no variable``.
    """
    trees = [parsed(source) for source in sources]
    variables = {name for tree in trees for name in assigned(tree)}
    near = trees[max(0, place - NEAR) : place + NEAR + 1]
    claimed = {name for tree in near for name in origins(tree, asserts(tree))}
    shown = origins(trees[place], shows(trees[place])) & variables
    return "" if shown & claimed else ", ".join(sorted(shown)) or "no variable"


def parsed(source):
    """The code; a magic or a shell command is none."""
    return ast.parse("\n".join("pass" if line.startswith(("%", "!")) else line for line in source.splitlines()))


def shows(tree):
    """Output of a cell, and the value or error with which it ends."""
    printed = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and names(node.func) == {"print"}]
    return printed + [node for node in tree.body[-1:] if isinstance(node, ast.Expr)]


def asserts(tree):
    return [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def origins(tree, nodes):
    """The names in ``nodes``, and in ``tree`` those from which they are made."""
    found = {name for node in nodes for name in names(node)}
    while more := {name for targets, value in givings(tree) if targets & found for name in names(value)} - found:
        found |= more
    return found


def givings(tree):
    """Each assignment and loop: the names that are given a value, and from what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield {name for target in node.targets for name in names(target)}, node.value
        elif isinstance(node, ast.NamedExpr):
            yield names(node.target), node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield names(node.target), node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars:
            yield names(node.optional_vars), node.context_expr


def assigned(tree):
    """A cell's variables: no functions, and nothing that only runs through a loop, as names that are printed do."""
    found, waiting = set(), [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assign | ast.NamedExpr) and not isinstance(node.value, ast.Lambda):
            found |= {
                name for target in getattr(node, "targets", [getattr(node, "target", None)]) for name in names(target)
            }
        elif isinstance(node, ast.withitem) and node.optional_vars:
            found |= names(node.optional_vars)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return found - {"_"}


def names(node):
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
