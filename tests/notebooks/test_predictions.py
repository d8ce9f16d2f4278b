"""Does the code below a question keep the answer to itself, as a reader sees it in JupyterLab?"""

import json

import pytest

from dpbook.core import checkout
from tests.cases import each
from tests.notebooks.predictions import given_away, numbers, questions

CHAPTERS = sorted((checkout.root() / "chapters").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_number_of_an_answer_stands_in_the_code_that_is_seen_below_its_question(path):
    assert list(given_away(cells(path))) == []


def test_most_questions_have_an_answer_with_numbers():
    answers = [answer for path in CHAPTERS for _, _, answer, _ in questions(cells(path))]
    assert len(answers) > 170
    assert sum(any(digits > 1 for digits in numbers(answer).values()) for answer in answers) > 80


def question(code, *, words="How many bytes?", answer="1,050 MB."):
    text = f"**Predict.** {words}\n\n<details><summary>Answer</summary>{answer}</details>"
    return [
        {"cell_type": "markdown", "id": "asks", "source": text},
        {"cell_type": "code", "id": "answers", "source": code},
    ]


@each("code", ["draw('1,050 MB are sent')", "wanted = 1_050", "for n in (1, 1050.0):\n    assert n", "1.05e3"])
def test_a_number_that_gives_an_answer_away_is_found(code):
    assert list(given_away(question(code))) == ["asks: [1050.0]"]


INNOCENT = [
    ("print(n)", ""),
    ("assert n == 1050", ""),
    ("if n:\n    assert (\n        n == 1050\n    )", ""),
    ("n = 1050", "Of 1,050?"),
]


@each(("code", "words"), INNOCENT)
def test_a_covered_or_known_number_does_not(code, words):
    assert list(given_away(question(code, words=words))) == []
