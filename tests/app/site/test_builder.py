"""Are the pages complete, do their links lead somewhere, is nothing given away, and do they ask no other host?"""

import gzip
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpbook.app import main
from dpbook.app.site import build, glossary
from dpbook.app.site.builder import MARK
from dpbook.app.site.pages import numbers, stating_lines
from dpbook.core import DpbookError, checkout

ROOT = checkout.root()
NOTEBOOKS = [path for folder in ("chapters", "exercises") for path in sorted((ROOT / folder).glob("*.ipynb"))]


class Addresses(HTMLParser):
    """Parser of a page: the addresses that it refers to, and the names in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.names = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.names += [attributes["id"]] if "id" in attributes else []
        self.loaded += [attributes[name] for name in ("src", "srcset", "data-film") if name in attributes]
        if "href" in attributes:
            (self.loaded if tag == "link" else self.links).append(attributes["href"])


@pytest.fixture(scope="module")
def built(site):
    return site


@pytest.fixture(scope="module")
def pages(built):
    """The pages by their place, each with its text and its addresses."""
    texts = {path.relative_to(built.folder).as_posix(): path.read_text() for path in built.folder.rglob("*.html")}
    return {place: (text, Addresses(text)) for place, text in texts.items()}


def outputs(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        yield from cell.get("outputs", [])


def test_every_notebook_and_document_is_a_page(built, pages):
    expected = {f"{path.parent.name}/{path.stem}.html" for path in NOTEBOOKS}
    assert expected <= set(pages)
    assert {"index.html", "paper.html", "glossary.html", "references.html", "docs/audit.html"} <= set(pages)
    assert built.dead_links == []


def test_everything_that_moves_in_a_notebook_moves_on_the_pages(built, pages):
    for kind in ("player", "explorer"):
        stored = [
            one for path in NOTEBOOKS for one in outputs(path) if f"vnd.dpbook.{kind}+json" in str(one.get("data"))
        ]
        assert built.counts[f"{kind}s"] == len(stored) > 0
    films = sum(text.count("data-film=") for place, (text, _) in pages.items() if place != "paper.html")
    assert films == built.counts["explorers"]


def test_every_link_leads_to_a_page_and_a_place_on_it(built, pages):
    for place, (_, addresses) in pages.items():
        for address in addresses.links:
            path, _, name = address.partition("#")
            if ":" in path:
                continue
            target = (built.folder / place).parent.joinpath(path).resolve() if path else built.folder / place
            assert target.is_file(), f"{place}: {address}"
            if name:
                known = pages[target.relative_to(built.folder.resolve()).as_posix() if path else place][1].names
                assert name in known, f"{place}: {address}"


def test_nothing_is_loaded_from_elsewhere(built, pages):
    for place, (text, addresses) in pages.items():
        assert "default-src 'none'; script-src 'self';" in text
        for address in addresses.loaded:
            if not address.startswith("data:"):
                assert (built.folder / place).parent.joinpath(address).is_file(), f"{place}: {address}"


def test_no_name_is_twice_on_a_page(pages):
    for place, (_, addresses) in pages.items():
        assert len(set(addresses.names)) == len(addresses.names), place


def test_the_paper_has_no_link_to_a_file(pages):
    """A PDF would name the folder of the machine that printed it."""
    text = pages["paper.html"][0].partition("<main>")[2]
    addresses = set(re.findall(r'<a [^>]*href="([^"]+)"', text))
    assert {"#glossary--bucket", "#05_all_reduce", "#glossary", "#references"} <= addresses
    assert [one for one in addresses if not one.startswith(("#", "https:", "http:"))] == []


def test_no_formula_and_no_markdown_is_left(pages):
    for place, (text, _) in pages.items():
        prose = re.sub(r"<(pre|code|script|annotation)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert "FORMULA" not in prose, place
        assert not re.search(r"\*\*\w", re.sub(r"<[^>]+>", "", prose)), place


def test_no_number_of_an_answer_is_seen_before_a_guess(pages):
    """Neither in the lines of code that are shown, nor in a string that is a sentence."""
    found = 0
    for place, (text, _) in pages.items():
        for section in re.findall(r'<section class="prediction".*?</section>', text, re.DOTALL):
            answer = re.search(r"<details>(.*?)</details>", section, re.DOTALL)
            if place == "paper.html" or answer is None:
                continue
            found += 1
            above = text[: text.index(section)][-30_000:] + section[: answer.start()]
            shown = re.sub(r'<span class="states">.*?\n</span>', "", section[answer.end() :], flags=re.DOTALL)
            code = "".join(re.findall(r'<pre class="code".*?</pre>', shown, re.DOTALL)).replace("_", "")
            secret = numbers(answer[1]) - numbers(above)
            assert not secret & numbers(code), (place, secret & numbers(code))
    assert found > 150


def test_lines_that_state_an_answer_are_those_with_its_numbers_its_assertions_and_its_sentences():
    source = (
        'x = f(7)\nassert x == 3, (\n    "no"\n)\nprint(x, 1_023)\ndraw(x, "The last bucket is the largest one")\ny = 2'
    )
    assert stating_lines(source, {"1,023"}) == {2, 3, 4, 5, 6}


def test_a_guess_is_compared_with_numbers_that_the_answer_states():
    compared = 0
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            answers = cell["metadata"].get("answer", [])
            text = "".join(cell["source"]).replace("none", "0").replace("seconds", "s").replace("minutes", "min")
            stated = text.partition("<details>")[2]
            for number, _, unit in (one.partition(" ") for one in answers):
                assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", stated), (path.name, cell["id"])
                assert unit in text, (path.name, cell["id"])
            compared += bool(answers)
    assert compared > 60


def test_the_glossary_defines_and_links(pages):
    terms = {one.term: one for one in glossary.terms(sorted((ROOT / "chapters").glob("*.ipynb")))}
    assert len(terms) > 80
    assert terms["α–β model"].chapter.name.startswith("06_")
    assert terms["DiLoCo"].sentence.startswith("DiLoCo ")
    assert terms["all-reduce"].sentence == glossary.DEFINITIONS["all-reduce"]
    assert set(glossary.DEFINITIONS) <= {glossary._singular(term.lower()) for term in terms}
    text = pages["chapters/10_build_your_own_ddp.html"][0]
    assert text.count('glossary.html#bucket"') == 1
    assert html.unescape(pages["references.html"][0]).count("Horovod") == 1


def test_a_link_leads_to_the_term_that_is_meant():
    def link(text, *terms):
        made = [glossary.Term(term, f"{term} is.", Path("03.ipynb"), "cell") for term in terms]
        return glossary.link_first_uses(made, Path("05.ipynb"), lambda term: term.anchor)(text)

    assert link("zeros and ZeRO", "ZeRO") == 'zeros and <a class="term" href="zero" title="ZeRO is.">ZeRO</a>'
    assert link("Buckets, a bucket", "bucket").startswith(
        '<a class="term" href="bucket" title="bucket is.">Buckets</a>, a b'
    )
    assert link("the kernel is new", "kernel") == "the kernel is new"


def test_titles_of_works_have_no_links(pages):
    text = pages["chapters/15_when_it_breaks.html"][0]
    assert "&quot;Fixing Gradient Accumulation&quot;" in text
    assert 'glossary.html#gradient-accumulation"' not in text[text.index("Further reading") :]


def test_the_book_in_a_wheel_has_no_documents_and_no_link_to_them(tmp_path):
    published = tmp_path / "published"
    for name in ("chapters", "exercises"):
        shutil.copytree(ROOT / name, published / name)
    built = build(published, tmp_path / "pages")
    text = (built.folder / "index.html").read_text(encoding="utf-8")
    assert 'href=""' not in text
    for address in re.findall(r'<a [^>]*href="([^"#]+)', text):
        assert (built.folder / address).is_file(), address
    assert "Teaching" not in text


def test_a_folder_with_other_files_is_refused_and_stays(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DpbookError, match="contains other files"):
        build(ROOT, tmp_path)
    assert main(["book", "--to", str(tmp_path)]) == 1
    assert "contains other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DpbookError, match="cannot write pages to"):
        build(ROOT, tmp_path / "file")


@pytest.mark.proof
def test_pages_are_the_same_when_they_are_built_again(built, tmp_path):
    """Pictures of an earlier build that no page shows any more are removed, other files stay."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for path in (tmp_path / MARK, pictures / f"{'0' * 16}.svg", pictures / "notes.svg"):
        path.touch()
    again = build(ROOT, tmp_path)
    shown = {path.name for path in (built.folder / "pictures").iterdir()}
    assert {path.name for path in pictures.iterdir()} == shown | {"notes.svg"}
    for path in built.folder.rglob("*.*"):
        assert path.read_bytes() == (again.folder / path.relative_to(built.folder)).read_bytes(), path.name


def test_the_size_of_a_page_is_bearable(built):
    """At most 150 kB compressed, as a server sends it; its pictures come when they are near."""
    for path in Path(built.folder, "chapters").glob("*.html"):
        assert len(gzip.compress(path.read_bytes())) < 150_000, path.name
