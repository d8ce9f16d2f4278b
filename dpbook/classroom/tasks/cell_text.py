"""What the text of a cell says without being run: the names that it defines and reads."""

import ast

KEEP_OUTPUT, SETUP = "keep-output", "setup"
"""Tags of cells whose output a learner gets, and of those that come before all others."""


def parse_cell(text: str) -> ast.Module:
    """A cell as Python; lines for the shell or IPython count as comments."""
    return ast.parse("\n".join(f"#{line}" if line.startswith(("%", "!")) else line for line in text.split("\n")))


def defined(tree: ast.Module) -> set[str]:
    """The names that the statements of a cell bind at its top level."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def used(tree: ast.Module) -> set[str]:
    """The names that a cell reads, wherever in it."""
    return set(names(tree, ast.Load))


def names(tree: ast.Module, context: type[ast.expr_context]) -> set[str]:
    """The names that a cell uses in this way, wherever in it."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}
