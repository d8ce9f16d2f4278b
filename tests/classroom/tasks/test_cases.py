"""Does a report say the same thing on every run, and is it safe to show?"""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from dpbook.classroom import Case, Report, check

PASSED = Case("rounds", 2, True, why="Latency.", note="6 rounds, at par")
FAILED = Case("sums", 1, False, "[1111]", "[1211]", "rank 0, element 0", "A double count.")
UNANSWERED = Case("sums", 1, False, "an answer", "not answered yet", answered=False)

TEXT = """\
05.1 Ring: 2 of 3 points
  ✓ rounds (2 points): 6 rounds, at par
  ✗ sums (1 point)
      expected: [1111]
      got:      [1211]
      where:    rank 0, element 0
      why:      A double count.
  printed by your code:
      hello
  a note"""


def report(*cases, **more):
    return Report("05.1", "Ring", cases, **more)


def test_the_text_of_a_report():
    assert repr(report(PASSED, FAILED, printed="hello\n", notes=("a note",))) == TEXT


def test_points_are_added_up():
    r = report(PASSED, FAILED)
    assert (r.points, r.possible, r.passed, r.answered) == (2, 3, False, True)


def test_a_stub_is_reported_in_one_line():
    assert repr(report(UNANSWERED)) == "05.1 Ring: not answered yet, 0 of 1 point"


def test_a_half_solved_answer_says_which_half():
    assert "  ✗ sums (1 point): not answered yet" in repr(report(PASSED, UNANSWERED))


class Text(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.tags = [], "", set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def contrast(one, other):
    """Contrast as WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        return np.dot(
            [0.2126, 0.7152, 0.0722], [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        )

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_signs_and_bar_have_colours_for_light_and_dark():
    html = report(PASSED, FAILED)._repr_html_()
    colours = set(re.findall(r"#[0-9a-f]{6}", html))
    assert len(colours) == 2
    for colour in colours:
        assert contrast(colour, "#ffffff") >= 4.5  # the sign is white
        assert contrast(colour, "#111111") >= 3
    assert re.findall(r"(?<!-)color: (\w+)", html) == ["white", "white"]  # other text keeps the colours of the page


def test_the_bar_has_a_piece_for_each_check_as_wide_as_its_points():
    html = report(PASSED, FAILED)._repr_html_()
    assert 'role="img" aria-label="2 of 3 points"' in html
    pieces = re.findall(r"flex: (\d) 0 0; border: 1px solid (#\w+); background: (#?\w+)", html)
    (width, frame, fill), (width_failed, _, nothing) = pieces
    assert (width, width_failed, nothing) == ("2", "1", "none")
    assert fill == frame


def test_what_stands_in_backticks_is_code():
    html = report(Case("one", 1, False, "a `yield`", "`<b>`", why="See `x < y`."))._repr_html_()
    for code in ("a <code>yield</code>", "<code>&lt;b&gt;</code>", "See <code>x &lt; y</code>."):
        assert code in html
    assert "`" not in html


def test_lines_stay_below_each_other():
    two = report(Case("one", 1, False, "rank 0  [1]\nrank 1  [2]", "3"))
    assert "      expected: rank 0  [1]\n                rank 1  [2]\n" in repr(two)
    assert "<pre" in two._repr_html_()


def test_the_html_has_every_word():
    html = report(PASSED, FAILED, printed="hello", notes=("a note",))._repr_html_()
    parsed = Text(html)
    assert not parsed.open
    for word in ("2 of 3 points", "[1111]", "[1211]", "rank 0", "A double count.", "hello", "at par", "a note"):
        assert word in parsed.text
    assert 'aria-label="passed"' in html
    assert 'aria-label="failed"' in html


def test_what_a_learner_wrote_is_escaped():
    nasty = "<script>alert(1)</script>"
    cases = [Case(nasty, 1, False, nasty, nasty, nasty, nasty, call=nasty), Case("ok", 1, True, note=nasty)]
    cases += [Case("no", 1, False, like=nasty)]
    parsed = Text(report(*cases, printed=nasty, notes=(nasty,))._repr_html_())
    assert "script" not in parsed.tags
    assert parsed.text.count(nasty) == 10


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("an <object object at 0x7f3a1c>", "RuntimeError: an <object object>"),
        ("\x1b[31mred\x07", r"RuntimeError: \x1b[31mred\x07"),
        ("one\n  two", "RuntimeError: one; two"),
        ("\ud800 and \u202e", r"RuntimeError: \ud800 and \u202e"),
        ("x" * 10_000, "RuntimeError: xxx"),
    ],
)
def test_messages_are_short_and_plain(raised, shown):
    def answer(buffers):
        raise RuntimeError(raised)

    text = repr(check("90.1", answer))
    assert shown in text
    assert len(text) < 3000
    text.encode()


def test_two_runs_give_the_same_text():
    texts = {repr(check("90.1", lambda buffers: buffers + np.float64(0.1))) for _ in range(2)}
    assert len(texts) == 1
