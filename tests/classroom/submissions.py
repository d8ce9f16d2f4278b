"""Notebooks as learners hand them in, made from the exercises."""

import json

from dpbook.core import checkout


def exercise(chapter, *, solved=False):
    """An exercise as JSON, as a learner gets it or with the solutions."""
    folder = checkout.root() / "exercises" / ("solutions" if solved else "")
    return json.loads(next(folder.glob(f"{chapter:02}_*.ipynb")).read_text(encoding="utf-8"))


def cell(nb, id):
    return next(each for each in nb["cells"] if each["id"] == id)


def hand_in(path, chapter, answers, *, change=lambda nb: None):
    """Write an exercise with ``answers``, the text of each by the number of its task, and return its path."""
    nb = exercise(chapter)
    for number, text in answers.items():
        cell(nb, f"answer-{number}")["source"] = text
    change(nb)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb), encoding="utf-8")
    return path


def solutions(chapter):
    """Text of each answer by the number of its task."""
    cells = exercise(chapter, solved=True)["cells"]
    return {c["id"].partition("-")[2]: "".join(c["source"]) for c in cells if c["id"].startswith("answer-")}
