"""Does the grid show who reads what, and mark what is read twice and what is lost, not by colour alone?"""

import pytest

from dpbook.book import ch03
from dpbook.replicas import Sampler, contiguous, drop, feed, keep
from tests.cases import refuses
from tests.figures.reading import NS, misplaced, parse, texts


def samplers(examples, world, **settings):
    return [Sampler(examples, world, rank, **settings) for rank in range(world)]


def small(examples=13, world=2, batch=3, epochs=2, **settings):
    return feed(samplers(examples, world, **settings), examples, batch, epochs)


def at(viewer, after):
    viewer.after = after
    return viewer.picture


def crosses(picture):
    """Cells with the dashed border of a lost example, the legend's left out."""
    return sum(1 for box in parse(picture).iter(f"{NS}rect") if box.get("stroke-dasharray")) - 1


def underlined(picture):
    """Cells with the bar that marks this step, the legend's left out."""
    return sum(1 for box in parse(picture).iter(f"{NS}rect") if box.get("height") == "4") - 1


def test_the_grid_names_the_rank_that_reads_an_example():
    drawn = texts(parse(ch03.draw_feeds({"in order": small(4, 2, 1, shuffle=False, cut=contiguous)})))
    start = drawn.index("4 of 4 read, 0 more than once, 0 never") + 1
    assert drawn[start : start + 8] == ["0", "0", "1", "0", "2", "1", "3", "1"]  # example, rank


def test_lines_list_each_ranks_examples():
    drawn = texts(parse(ch03.draw_feeds({"dealt out": small(6, 2, 1, shuffle=False)})))
    assert ("0, 2, 4" in drawn, "1, 3, 5" in drawn) == (True, True)


def test_an_example_read_twice_shows_both_ranks_and_its_number_in_words():
    picture = ch03.draw_feeds({"pad": small(3, 2, 1, shuffle=False)})
    assert "0+1" in texts(parse(picture))
    assert "more than once: 0" in picture.alt


def test_more_than_three_readers_are_counted():
    fed = feed([Sampler(2, 1, 0) for _ in range(5)], 2, 1)
    assert texts(parse(ch03.draw_feeds({"all": fed}))).count("×5") == 2


@pytest.mark.parametrize(("world", "examples"), [(2, 13), (5, 13), (8, 47), (3, 2)])
def test_what_nobody_reads_is_crossed_out(world, examples):
    fed = small(examples, world, 1, fit=drop)
    lost = examples % world
    picture = ch03.draw_feeds({"drop": fed})
    assert crosses(picture) == lost
    assert picture.alt.startswith("Who has read what in epoch 1.")
    assert f"{lost} never" in picture.alt


def test_nothing_is_lost_before_the_epoch_has_ended():
    viewer = ch03.play_feeds({"drop": small(fit=drop)})
    assert [crosses(at(viewer, after)) for after in range(5)] == [0, 0, 1, 0, 1]


def test_every_epoch_starts_with_an_empty_grid():
    viewer = ch03.play_feeds({"pad": small()})
    assert "6 read so far, 6 different" in at(viewer, 1).alt
    assert at(viewer, 4).alt.startswith("Epoch 2, step 1 of 3.")
    assert "6 read so far, 6 different" in at(viewer, 4).alt


def test_the_batch_of_a_step_is_underlined():
    viewer = ch03.play_feeds({"pad": small()})
    assert [underlined(at(viewer, after)) for after in range(4)] == [0, 6, 6, 2]


def test_a_rank_without_a_batch_lets_the_other_wait():
    viewer = ch03.play_feeds({"keep": small(fit=keep), "drop": small(fit=drop)})
    drawn = texts(parse(at(viewer, 3)))
    assert [line for line in drawn if line.endswith("and waits")] == ["6, and waits"]
    assert drawn.count("has no batch left") == 1
    assert drawn.count("has ended its epoch") == 2


@pytest.mark.parametrize("feeds", [{"a": small()}, {"a": small(48, 8, 1), "b": small(48, 8, 2)}, dict.fromkeys("abcd")])
def test_nothing_is_cut_off_or_overlaps(feeds):
    feeds = {name: fed or small(24, 4, 2) for name, fed in feeds.items()}
    for picture in (ch03.draw_feeds(feeds), at(ch03.play_feeds(feeds), 2)):
        assert misplaced(parse(picture)) == []


test_bad_input_is_named = refuses(
    (lambda: ch03.play_feeds({}), "feeds"),
    (lambda: ch03.play_feeds([small()]), "feeds"),
    (lambda: ch03.play_feeds({"a": 3}), "feeds"),
    (lambda: ch03.play_feeds(dict.fromkeys("abcde", small())), "feeds"),
    (lambda: ch03.play_feeds({"a": small(49)}), "feeds"),
    (lambda: ch03.play_feeds({"a": small(18, 9)}), "feeds"),
    (lambda: ch03.play_feeds({"a": small(), "b": small(epochs=1)}), "feeds"),
    (lambda: ch03.draw_feeds({}), "feeds"),
)
