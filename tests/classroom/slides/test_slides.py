"""Has every chapter's deck its beats and pictures, in one file that asks nobody for anything?"""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from dpbook.app import command_line
from dpbook.classroom import list_tasks, write_slides
from dpbook.classroom.slide_deck import html, slides
from dpbook.core import DpbookError, checkout
from tests.cases import each
from tests.notebooks.hygiene import code_cells, text

CHAPTERS = sorted((checkout.root() / "chapters").glob("*.ipynb"))


class Page(HTMLParser):
    """The kinds of slides in order, attributes that could fetch something, and images."""

    def __init__(self, page):
        super().__init__()
        self.kinds, self.addresses, self.images = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.addresses += [value for name, value in attributes.items() if name in ("src", "href", "srcset", "data")]
        if tag == "section":
            self.kinds.append(attributes["class"].removeprefix("slide "))
        if tag == "img":
            self.images.append(attributes)


def pictures(notebook):
    """Number of outputs that show a picture."""
    data = [output.get("data", {}) for _, cell in code_cells(notebook) for output in cell["outputs"]]
    return sum("<img" in text(each.get("text/html", "")) for each in data)


@each("path", CHAPTERS)
def test_a_deck_has_the_chapters_questions_and_pictures_and_nothing_from_elsewhere(path, tmp_path):
    notebook = json.loads(path.read_text())
    words = "".join(text(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    page = write_slides(path, tmp_path).read_text()
    deck = Page(page)
    questions = len(re.findall(r"<summary>Answer</summary>", words))
    assert [deck.kinds.count(kind) for kind in ("title", "question", "answer")] == [1, questions, questions]
    assert [deck.kinds[n + 1] for n, kind in enumerate(deck.kinds) if kind == "question"] == ["answer"] * questions
    assert len(deck.images) == pictures(notebook)
    assert all(image["alt"] for image in deck.images)
    assert not [address for address in deck.addresses if not address.startswith("data:image/")]
    assert not re.search(r"@import|url\(|\bfetch\(|<code>[^<]*\\[a-z]+[{ ]", page)
    assert write_slides(path, tmp_path).read_text() == page


def markdown(source, name="m"):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def code(source, printed="", tags=(), **data):
    outputs = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
    outputs += [{"output_type": "display_data", "data": data, "metadata": {}}] if data else []
    return {"cell_type": "code", "id": "c", "metadata": {"tags": list(tags)}, "source": source, "outputs": outputs}


ASKED = "**Predict.** Which?\n\n<details><summary>Answer</summary>This one.</details>"


def deck(*cells):
    return [(slide.kind, slide.heading, slide.body) for slide in slides(cells)]


def test_the_beats_of_a_chapter_in_order():
    picture = {"text/html": '<div style="x"><img alt="a ring" width="900" src="data:,"></div>'}
    made = deck(
        markdown("# 99 · Title\n\n**What?**\n\nThis. And that."),
        markdown(f"## First\n\nA claim.\n\n{ASKED}"),
        code("x = 1\nprint(x < 2)\nassert x < 2", "x <\n"),
        code("draw()", **picture),
        markdown("The finding of it, in one sentence. And more."),
        markdown("## Second\n\nOne. Two. Three. Four."),
        markdown("## Summary\n\n1. One\n\n**Further reading**\n\n- A book"),
        markdown("## Ways on", name="ways-on"),
    )
    assert [kind for kind, *_ in made] == ["title", "question", "answer", "run", "picture", "section", "summary"]
    assert [heading for _, heading, _ in made] == ["99 · Title", *["First"] * 4, "Second", "Summary"]
    title, question, answer, run, shown, section, summary = [body for *_, body in made]
    assert "What?" in title
    assert "A claim." in question
    assert "This one." not in question
    assert [part in answer for part in ("Which?", "This one.", "x &lt;")] == [True, True, False]
    assert run == "<pre>x = 1\nprint(x &lt; 2)</pre><pre>x &lt;</pre>"
    assert '<img alt="a ring" src="data:,">' in shown
    assert "The finding of it, in one sentence." in shown
    assert "And more" not in shown
    assert "Three." in section
    assert "Four" not in section
    assert "book" not in summary


def test_notes_have_the_words_around_a_slide_and_what_to_ask():
    cells = [
        markdown("# 99 · Title\n\n**What?**\n\nThis. And that. And more. And all."),
        markdown("After this chapter you can\n\n1. add,", name="objectives"),
        markdown(f"## First\n\nA claim.\n\nThe rule.\n\n{ASKED}"),
        code("print(1)", "1\n"),
        markdown("The lesson of it."),
    ]
    notes = {slide.kind: slide.notes for slide in slides(cells)}
    assert "And all." in notes["title"]
    assert "add" in notes["title"]
    assert "A claim." in notes["question"]
    assert "raise a hand" in notes["question"]
    assert "This one" not in notes["question"]
    assert "The lesson of it." in notes["run"]


def test_a_deck_ends_with_the_exercise_and_what_its_checks_are_for(tmp_path):
    path = next(each for each in CHAPTERS if each.name.startswith("05_"))
    page = write_slides(path, tmp_path).read_text()
    last = unescape(page[page.rindex('<section class="slide exercise"') :])
    for task in list_tasks(5):
        assert task.title in last
        assert all(check.why in last for check in task.checks)


def section(words, *cells):
    return deck(markdown("# 99 · Title"), markdown(f"## Section\n\n{words}"), *cells)[1][2]


def test_what_follows_a_colon_is_on_the_slide():
    assert "<table>" in section("These are:\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    printed = section("In bytes:", code("print(sizes)", "{2: 4}\n"), code("more()", "other"))
    assert printed == "<p>In bytes:</p>\n<pre>print(sizes)</pre><pre>{2: 4}</pre>"
    assert section("One. Two. Three. In bytes:", code("print(sizes)", "{2: 4}\n")) == "<p>One. Two. Three.</p>\n"
    assert section("It adds:", markdown("Words.")) == "<p>It adds:</p>\n"


def test_a_run_says_what_its_last_lines_are_worth_unless_that_is_a_picture():
    value = code("held", **{"text/plain": "array([7])"})
    shown = code("draw()", **{"text/plain": "<Card>", "text/html": '<img alt="a" src="data:,">'})
    (_, _, run, _) = deck(markdown(ASKED), value, shown)
    assert run[2] == "<pre>held</pre><pre>array([7])</pre>"


def test_a_section_has_its_first_list_and_the_definitions_after_it():
    made = deck(
        markdown("# 99 · Title"), markdown("## A\n\nOne.\n\n- two\n- three\n\nMore."), code("def f(): ...", "no")
    )
    assert [kind for kind, *_ in made] == ["title", "section", "run"]
    assert [part in made[1][2] for part in ("One.", "two", "three", "More")] == [True, True, True, False]
    assert made[2][2] == "<pre>def f(): ...</pre>"


def test_no_sentence_points_at_a_place_in_the_notebook():
    assert section("One. The next two cells show it. Two.") == "<p>One. Two.</p>\n"


def test_a_heading_within_a_cell_begins_a_slide():
    made = deck(markdown("# 99 · Title"), markdown("The lesson.\n\n## Summary\n\n1. One"))
    assert made[-1] == ("summary", "Summary", html("1. One"))


def test_a_list_or_a_formula_before_a_question_comes_with_its_words():
    for block in ("- one\n- two", "$$x^2$$", "| a |\n|---|\n| 1 |"):
        (question, _) = deck(markdown(f"Not this.\n\nIntroduced by these.\n\n{block}\n\n{ASKED}"))
        assert "Introduced by these." in question[2]
        assert "Not this" not in question[2]


@each(
    "words",
    ["How much is it, in all the cases that there are?", f"What a question begins with is for its slide.\n\n{ASKED}"],
)
def test_no_caption_is_a_question_or_the_words_before_one(words):
    (shown, *_) = deck(code("draw()", **{"text/html": '<img alt="a" src="data:,">'}), markdown(words))
    assert shown == ("picture", "", '<img alt="a" src="data:,">')


def test_what_was_measured_says_so_and_what_is_the_readers_own_is_left_out():
    (*_, (_, _, measured)) = deck(markdown(ASKED), code("t()", "3 ms\n", tags=["measurement"]))
    (*_, (_, _, own)) = deck(markdown(ASKED), code("where()", "a laptop\n", tags=["yours"]))
    assert "Measured on one machine" in measured
    assert "laptop" not in own


def test_a_formula_is_mathml_and_an_unknown_name_stays_readable():
    assert re.search(r'<math [^>]*display="inline".*<mfrac>.*all', html(r"A $\tfrac12 \text{all} \bmod N$"))
    assert '<p class="formula"><math' in html("$$\n\\frac12\n$$")
    assert "unknown" in html(r"$\unknown{x}$")
    (slide,) = deck(markdown("## A\n\nOf $x_1$ and `$HOME`, see [05](05_all_reduce.ipynb)."))
    assert slide[2].count("<math ") == 1
    assert "$HOME" in slide[2]
    assert "href" not in slide[2]


@pytest.mark.parametrize("written", ["", "{}", '{"cells": []}', '{"cells": [{"id": "a"}]}'])
def test_what_is_no_chapter_is_refused(written, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(written)
    with pytest.raises(DpbookError, match=r"a\.ipynb"):
        write_slides(path, tmp_path)


def test_the_command_makes_the_chapters_asked_for(tmp_path, capsys):
    assert command_line.main(["slides", "05", "12b", "--to", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["05_all_reduce.html", "12b_a_gpus_clock.html"]
    assert command_line.main(["slides", "99", "--to", str(tmp_path)]) == 1
    assert "99" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command_line.main(["slides", "05", "--to", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err
