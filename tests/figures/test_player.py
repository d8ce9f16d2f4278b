"""Is the viewer live where a kernel runs and a picture elsewhere, and do its controls lead where they say?"""

import subprocess
import sys

import numpy as np
import pytest

from dpbook.collectives import ring, tree
from dpbook.core import checkout
from dpbook.core.errors import InvalidArgument
from dpbook.figures import draw_schedule, play
from dpbook.figures.card.player import WIDGET_VIEW


def test_it_offers_the_widget_the_picture_and_the_words():
    viewer = play(ring(4))
    bundle, _ = viewer._repr_mimebundle_()
    assert set(bundle) == {WIDGET_VIEW, "text/html", "text/plain"}
    assert bundle[WIDGET_VIEW]["model_id"] == viewer.controls.box.model_id
    assert bundle["text/html"] == draw_schedule(ring(4), 0).html
    assert bundle["text/plain"] == f"Viewer. {draw_schedule(ring(4), 0).alt}"


def test_what_is_stored_does_not_depend_on_where_the_viewer_stands():
    viewer = play(ring(4))
    before = viewer._repr_mimebundle_()
    viewer.show(3)
    assert viewer._repr_mimebundle_() == before
    assert repr(viewer) == repr(play(ring(4)))


@pytest.mark.parametrize(("button", "ends"), [("first", 0), ("previous", 2), ("next", 4), ("last", 6)])
def test_a_button_leads_where_it_says(button, ends):
    viewer = play(ring(4))
    viewer.show(3)
    getattr(viewer.controls, button).click()
    assert (viewer.after, viewer.controls.slider.value) == (ends, ends)
    assert viewer.controls.picture.value == viewer.picture.svg == draw_schedule(ring(4), ends).svg


@pytest.mark.parametrize(("button", "at"), [("first", 0), ("previous", 0), ("next", 6), ("last", 6)])
def test_at_its_ends_the_viewer_stays(button, at):
    viewer = play(ring(4))
    viewer.show(at)
    getattr(viewer.controls, button).click()
    assert viewer.after == at


def test_a_step_by_hand_pauses():
    controls = play(ring(4)).controls
    controls.toggle.value = True
    assert controls.toggle.description == "Pause"
    controls.next.click()
    assert (controls.toggle.value, controls.toggle.description) == (False, "Play")


def test_every_control_that_is_seen_has_a_name_and_a_tooltip():
    for control in play(ring(4)).controls.box.children[1].children:
        if control.layout.display != "none":
            assert control.description
            assert control.tooltip


def test_the_readers_own_buffers_are_shown():
    buffers = np.array([[(r + 1) * 10 + c for c in range(4)] for r in range(4)])
    viewer = play(ring(4), buffers)
    viewer.show(6)
    assert all(f">{total}<" in viewer.picture.svg for total in (100, 104, 108, 112))


@pytest.mark.parametrize("world", [1, 2, 5, 9, 16])
def test_every_state_can_be_shown(world):
    viewer = play(tree(world))
    for after in range(len(tree(world).rounds) + 1):
        viewer.show(after)
        assert f'data-round="{after}"' in viewer.controls.picture.value


def test_one_cell_shows_one_set_of_widgets():
    viewer = play(ring(4))
    assert viewer._repr_mimebundle_()[0][WIDGET_VIEW] == viewer._repr_mimebundle_()[0][WIDGET_VIEW]


def test_a_round_that_is_not_there_is_refused():
    with pytest.raises(InvalidArgument, match=r"^after must be an integer from 0 to 6"):
        play(ring(4)).show(7)


@pytest.mark.parametrize("use", ["", "figures.draw_schedule(ring(4)); figures.animate(ring(4)); figures.play(ring(4))"])
def test_drawing_schedules_loads_nothing_heavy(use):
    code = (
        f"import sys; from dpbook import figures; from dpbook.collectives import ring; {use}\n"
        "print(*sorted({'torch', 'matplotlib', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == []
