"""Do notebooks' Markdown and formulas become the HTML that they should?"""

import re

import pytest

from dpbook.app.site.markdown import Converter, text_of
from dpbook.core import mathml


def converted(source, link=lambda address: address, terms=lambda text: text):
    return Converter(link, terms).html(source)


def test_formulas_become_mathml_and_money_stays():
    html = converted("Each sends $\\frac{2(N-1)}{N}$ of it.\n\n$$\\alpha + \\beta n$$\n\nIt costs $5 or $6 a day.")
    assert len(re.findall("<math ", html)) == 2
    assert 'display="block"' in html
    assert "$5 or $6" in html


def test_code_has_no_formulas():
    assert "<math" not in converted("Type `echo $HOME$PATH` or\n\n```sh\necho $A $B$\n```\n")


def test_bars_of_an_absolute_value_have_no_space_inside():
    assert mathml("|x|", block=False).count('lspace="0"') == 2


def test_an_answer_is_markdown_whether_blank_lines_surround_it_or_not():
    for source in (
        "<details><summary>Answer</summary>It is `x` in **all**.</details>",
        "<details><summary>Answer</summary>\n\nIt is `x` in **all**.\n\n</details>",
    ):
        html = converted(source)
        assert "<code>x</code>" in html
        assert "<strong>all</strong>" in html
        assert html.index("<details>") < html.index("<code>") < html.index("</details>")


def test_headings_have_anchors_of_their_own_and_one_is_the_title():
    converter = Converter(lambda address: address)
    html = converter.html("# The ring\n\n## Bytes of $N$\n\n## Again\n\n## Again\n\n# Part B\n")
    assert converter.title == "The ring"
    assert [(one.level, one.anchor) for one in converter.sections] == [
        (1, "the-ring"), (2, "bytes-of-n"), (2, "again"), (2, "again-2"), (2, "part-b"),
    ]  # fmt: skip
    assert all(f'id="{one.anchor}"' in html for one in converter.sections)


def test_text_gets_links_and_code_headings_and_links_do_not():
    terms = lambda text: text.replace("ring", "<b>ring</b>")  # noqa: E731
    html = converted("## A ring\n\nThe ring, `ring`, [ring](ring.html).\n\n```\nring\n```\n", terms=terms)
    assert html.count("<b>ring</b>") == 1


def test_search_reads_each_section_and_no_answers():
    converter = Converter(lambda address: address)
    for source in (
        "# One\n\nfirst",
        "more of it",
        "## Two\n\nsecond <details><summary>Answer</summary>secret</details>",
    ):
        converter.add_text(converter.html(source))
    texts = [" ".join(section.text.split()) for section in converter.sections]
    assert texts == ["first more of it", "second"]


@pytest.mark.parametrize("markup", ["<p>a &lt; b</p>", "<p>a <em>&lt;</em> b</p>"])
def test_the_text_of_html_is_what_one_reads(markup):
    assert text_of(markup) == "a < b"
