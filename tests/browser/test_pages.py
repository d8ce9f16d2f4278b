"""Are the book's pages alive in a browser, from files, without a request to a host, and can everybody use them?"""

from pathlib import Path

import pytest

from dpbook.app.site import films
from dpbook.core import checkout
from tests.cases import each

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WIDTHS = (390, 1440)
SOME = ("index", "chapters/05_all_reduce", "chapters/13_scaling_wall", "exercises/08_buckets", "glossary")
SERIOUS = """async () => (await axe.run(document, {preload: false})).violations
    .filter(one => ['serious', 'critical'].includes(one.impact))
    .map(one => `${one.id}: ${one.nodes.map(node => node.target.join(' ')).slice(0, 3).join('; ')}`)"""


@pytest.fixture(scope="module")
def built(site):
    return site


@pytest.fixture
def open_page(chromium, built):
    """A function that opens a page of the book in a fresh window, and fails the test for what went wrong in it."""
    wrong, contexts = [], []

    def open_page(place, width=1440, theme="light", **options):
        context = chromium.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"{place}: {error}"))
        page.on("console", lambda message: message.type == "error" and wrong.append(f"{place}: {message.text}"))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url))
        page.goto((built.folder / f"{place}.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def places(built):
    return [page.place.removesuffix(".html") for page in built.pages]


@pytest.mark.parametrize("among", [pytest.param("all", marks=pytest.mark.proof), "some"])
def test_every_player_steps_and_every_explorer_turns(open_page, built, among):
    """Among some pages in every run, which have both."""
    alive = [one for one in built.pages if one.counts["players"] + one.counts["explorers"]]
    for one in alive if among == "all" else [one for one in alive if one.place.removesuffix(".html") in SOME]:
        page = open_page(one.place.removesuffix(".html"))
        while page.locator("button.plain").count():  # what answers a question is hidden until it is skipped
            page.locator("button.plain").first.click()
        for kind in ("player", "explorer"):
            hosts = page.locator(f".{kind}")
            assert hosts.count() == one.counts[f"{kind}s"]
            for host in hosts.all():
                host.scroll_into_view_if_needed()
                image = host.locator(".live img")
                before = image.get_attribute("src")
                knob = host.locator(".live input:enabled").first
                knob.press("ArrowRight" if knob.input_value() != knob.get_attribute("max") else "ArrowLeft")
                expect(image).not_to_have_attribute("src", before)
        page.context.close()


def test_an_explorer_shows_what_the_kernel_draws(open_page):
    """At a position that was reached by keys; the film that the page unpacks has what Python drew."""
    (notebook,) = (checkout.root() / "chapters").glob("08_*.ipynb")
    explorer = films.explorers(notebook)["viewer-gpt"]
    page = open_page("chapters/08_buckets")
    host = page.locator("#viewer-gpt .explorer")
    host.scroll_into_view_if_needed()
    host.locator(".live input").press("End")
    last = list(explorer.knobs["cap"].values)[-1]
    expect(host.locator(".live img")).to_have_attribute("src", explorer.at({"cap": last}).image.split('src="')[1][:-2])


@pytest.mark.parametrize(
    ("among", "width"),
    [("some", 390), *(pytest.param("all", width, marks=pytest.mark.proof) for width in WIDTHS)],
)
def test_pages_fit_the_window_and_show_no_error(open_page, built, among, width):
    """Some pages on a phone in every run, one of each kind."""
    page = open_page("index", width)
    for place in SOME if among == "some" else places(built):
        page.goto((built.folder / f"{place}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{place} at {width}"


def test_some_pages_have_no_serious_violation_of_accessibility(open_page):
    """The first page, and an exercise with its tasks, a player and an explorer; `make proof` looks at all pages."""
    for place in ("index", "exercises/08_buckets"):
        page = open_page(place, 1440, "dark", bypass_csp=True)
        page.add_script_tag(path=AXE)
        assert page.evaluate(SERIOUS) == [], place
        page.context.close()  # what moves in it would go on


@pytest.mark.proof
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_has_a_serious_violation_of_accessibility(open_page, built, theme, width):
    found = {}
    for place in places(built):
        page = open_page(place, width, theme, bypass_csp=True)
        page.add_script_tag(path=AXE)
        if violations := page.evaluate(SERIOUS):
            found[place] = violations
        page.context.close()
    assert found == {}


def test_an_answer_opens_after_a_guess_and_is_compared(open_page):
    page = open_page("chapters/08_buckets")
    question = page.locator(".prediction", has_text="How large is the largest bucket at a cap of 25 MiB")
    answer, code = question.locator("details"), question.locator(".states").first
    expect(answer).to_be_hidden()
    expect(code).to_be_hidden()
    question.get_by_text("Show the answer").click()
    expect(question).to_contain_text("Guess first, however roughly, or skip.")
    expect(answer).to_be_hidden()
    question.get_by_label("Your prediction").fill("336")
    question.get_by_label("Your prediction").press("Enter")
    expect(answer).to_be_visible()
    expect(code).to_be_visible()
    expect(question).to_contain_text("You predicted 336. The answer is 168 MiB: your guess is 2.0 times too large.")
    page.reload()
    expect(question.locator("details")).to_be_visible()
    expect(question.get_by_label("Your prediction").first).to_have_value("336")


def test_a_guess_in_other_words_is_not_compared_wrongly(open_page):
    page = open_page("chapters/08_buckets")
    question = page.locator(".prediction", has_text="How large is the largest bucket at a cap of 25 MiB")
    guess, message = question.get_by_label("Your prediction"), question.locator(".message")
    for text, comparison in {
        "168 MiB": "That is the number of the answer.",
        "about 160 or so": "The answer is 168 MiB: your guess is 5 % too small.",
        "1,680": "The answer is 168 MiB: your guess is 10 times too large.",
        "0.16 GiB": "The answer is 168 MiB.",  # another unit
        "2e8": "The answer is 168 MiB.",
        "−5": "The answer is 168 MiB.",
        "150 to 200": "The answer is 168 MiB.",
        "ZeRO": "The answer is 168 MiB.",
    }.items():
        guess.fill(text)
        guess.press("Enter")
        assert message.text_content().partition(". ")[2].strip() == comparison, text


def test_a_guess_of_several_numbers_is_compared_one_by_one(open_page):
    page = open_page("chapters/01_four_phase_loop")
    question = page.locator(".prediction", has_text="How many steps does an epoch have with 1, 4 and 8 workers?")
    guess, message = question.get_by_label("Your prediction"), question.locator(".message")
    numbers = "The numbers of the answer are 24, 6, 3"
    for text, comparison in {
        "24, 6 and 3": "These are the numbers of the answer.",
        "24, 6, 30": f"{numbers}: your third is 10 times too large.",
        "12, 6, 4": f"{numbers}: your first is 2.0 times too small, your third is 33 % too large.",
        "24": f"{numbers}.",
    }.items():
        guess.fill(text)
        guess.press("Enter")
        assert message.text_content().partition(". ")[2].strip() == comparison, text


def test_a_question_can_be_skipped(open_page):
    page = open_page("chapters/05_all_reduce")
    question = page.locator(".prediction").first
    question.get_by_text("skip", exact=True).click()
    expect(question.locator("details")).to_be_visible()


def test_without_scripts_everything_is_open_and_pictures_stand_still(open_page):
    page = open_page("chapters/05_all_reduce", java_script_enabled=False)
    expect(page.locator(".prediction details").first).to_be_visible()
    expect(page.locator(".player .still img").first).to_be_attached()
    expect(page.locator(".player .still").first).to_be_visible()


def test_search_finds_a_section(open_page):
    page = open_page("docs/audit")
    page.keyboard.press("/")
    page.keyboard.type("fix the ring")
    page.locator(".results a").first.click()
    expect(page).to_have_title("Exercises 05 · All-reduce · dpbook")


@pytest.fixture
def search(open_page):
    """The first page, whose field searches all of them."""
    return open_page("index")


@each(
    ("question", "heading"),
    [
        ("why is my DDP slow", "It is slow"),  # small words do not count
        ("hang", "It fails or hangs"),  # and not "changes"
        ("allreduce", "05 · All-reduce"),
        ("deadlock", "deadlock"),  # the glossary's entry
        ("set_epoch", "A new order in every epoch"),
        ("learning rate scaling", "04 · Bigger batches"),
        ("MFU qqqq", "MFU"),  # a word that is nowhere
        ("c++ (a|b", None),
        ("qqqq", "Nothing found."),
    ],
)
def test_search_answers_questions(search, question, heading):
    search.locator("input[type=search]").fill(question)
    results = search.locator(".results")
    expect(results).to_be_visible()
    if heading:
        expect(results.locator("a b, p").first).to_have_text(heading)


def test_search_is_used_by_keys(open_page):
    page = open_page("index")
    field, results = page.locator("input[type=search]"), page.locator(".results a")
    field.fill("deadlock")
    expect(results.first).to_be_visible()
    for key, place in (("ArrowDown", 0), ("ArrowDown", 1), ("ArrowUp", 0)):
        page.keyboard.press(key)
        expect(results.nth(place)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(field).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_title("Glossary · dpbook")
    assert page.url.endswith("#deadlock")


def test_the_theme_is_kept_and_pictures_follow(open_page):
    page = open_page("chapters/05_all_reduce")
    button = page.locator("button.theme")
    for name in ("light", "dark"):
        button.click()
        expect(button).to_have_text(f"Theme: {name}")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


def test_the_ring_moves_on_the_first_page_within_a_second(open_page):
    page = open_page("index")
    ring = page.locator("figure img")
    expect(ring).to_be_visible()
    first = ring.screenshot()
    page.wait_for_timeout(1000)
    assert ring.screenshot() != first


def test_code_is_copied_as_it_is_shown(chromium, open_page):
    """Without the lines that a question hides, until it is answered."""
    page = open_page("chapters/08_buckets", permissions=["clipboard-read", "clipboard-write"])

    def copied(cell):
        cell.hover()
        cell.get_by_role("button", name="Copy").click()
        expect(cell.get_by_role("button", name="Copied")).to_be_visible()
        return page.evaluate("navigator.clipboard.readText()")

    first = page.locator("main .cell").first
    first.locator("summary").click()  # a long set-up is folded
    assert copied(first).startswith("import ")
    assert copied(first).count("\n") == first.locator("code").inner_text().count("\n") + 1
    question = page.locator(".prediction", has_text="How large is the largest bucket at a cap of 25 MiB")
    hidden = question.locator(".states").first.text_content()
    cell = question.locator(".cell", has=page.locator(".states")).first
    if cell.is_visible():
        assert hidden not in copied(cell)
    question.get_by_text("skip").click()
    assert hidden in copied(cell)
