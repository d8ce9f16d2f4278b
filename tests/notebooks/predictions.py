"""Rules for the code below a prediction: it shows no number of the answer before it has run."""

import ast
import re

from tests.notebooks.hygiene import text

QUESTION = "**Predict.**"
ANSWER = re.compile(r"<details>.*?</details>", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?")
REFERENCE = re.compile(r"\b(?:chapter|exercise)s? [\d.]+")


def numbers(words):
    """The value of each number in a text, with the number of its digits; those behind "chapter" are no numbers."""
    found = [re.sub("[,_]", "", match[0]) for match in NUMBER.finditer(REFERENCE.sub("", words))]
    return {float(number): sum(map(str.isdigit, number.partition("e")[0])) for number in found}


def visible(code):
    """A cell's code without the asserts, which JupyterLab's extension covers."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assert):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def questions(cells):
    """Each question of a notebook: the text before its answer, the answer, and the code right below it."""
    above = ""
    for place, cell in enumerate(cells):
        if cell["cell_type"] != "markdown":
            continue
        words = text(cell["source"])
        above += ANSWER.sub("", words) + "\n"
        if QUESTION in words:
            below = cells[place + 1 :]
            end = next((n for n, one in enumerate(below) if one["cell_type"] != "code"), len(below))
            yield cell["id"], above, " ".join(ANSWER.findall(words)), [text(one["source"]) for one in below[:end]]


def given_away(cells):
    """Numbers of two digits or more that an answer has, the text above it lacks, and the code below it shows."""
    for name, above, answer, below in questions(cells):
        shown = numbers("\n".join(map(visible, below)))
        secret = [number for number, digits in numbers(answer).items() if digits > 1 and number not in numbers(above)]
        if shared := [number for number in secret if number in shown]:
            yield f"{name}: {shared}"
