"""Does a viewer carry all its states, once, so that a page can step through them without a kernel?"""

import re
import subprocess
import sys
from base64 import b64decode

import numpy as np
import pytest

from dpbook.collectives import ring, tree
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.figures import draw_schedule, play
from dpbook.figures.card.player import MIME
from tests.cases import each
from tests.figures.reading import NS, frames, parse, texts


def test_it_offers_the_frames_the_moving_picture_and_the_words():
    bundle, _ = play(ring(4))._repr_mimebundle_()
    assert set(bundle) == {MIME, "text/html", "text/plain"}
    assert {name: bundle[MIME][name] for name in ("step", "pace", "at")} == {"step": "round", "pace": 1.2, "at": 0}
    image = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', bundle["text/html"])[1]
    assert b64decode(image).decode() == bundle[MIME]["svg"]
    assert bundle["text/plain"] == f"Viewer. {draw_schedule(ring(4), 0).alt}"


@each("world", [1, 2, 5, 9, 16])
def test_every_state_is_in_it_with_its_words(world):
    viewer, rounds = play(tree(world)), len(tree(world).rounds)
    found = frames(viewer.film)
    assert [frame.find(f"{NS}title").text for frame in found] == [
        draw_schedule(tree(world), after).alt for after in range(rounds + 1)
    ]
    for after, frame in enumerate(found):
        assert texts(frame) == texts(parse(draw_schedule(tree(world), after)))


def test_it_begins_where_it_was_left():
    viewer = play(ring(4))
    viewer.show(3)
    assert viewer._repr_mimebundle_()[0][MIME]["at"] == 3
    assert viewer.picture.alt == draw_schedule(ring(4), 3).alt


def test_the_readers_own_buffers_are_shown():
    buffers = np.array([[(r + 1) * 10 + c for c in range(4)] for r in range(4)])
    viewer = play(ring(4), buffers)
    viewer.show(6)
    assert all(f">{total}<" in viewer.picture.svg for total in (100, 104, 108, 112))


def test_what_states_share_is_there_once():
    """Of the 15 states of 8 ranks, and what is on its way between them; each state alone would be 2.5 times that."""
    alone = sum(len(draw_schedule(ring(8), after).svg) for after in range(15))
    assert 2.5 * len(play(ring(8)).film.svg) < alone


def test_a_round_that_is_not_there_is_refused():
    with pytest.raises(InvalidArgument, match=r"^after must be an integer from 0 to 6"):
        play(ring(4)).show(7)


@pytest.mark.parametrize("use", ["", "figures.draw_schedule(ring(4)); figures.animate(ring(4)); figures.play(ring(4))"])
def test_drawing_schedules_loads_nothing_heavy(use):
    code = (
        f"import sys; from dpbook import figures; from dpbook.collectives import ring; {use}\n"
        "print(*sorted({'torch', 'matplotlib', 'IPython'} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == []
