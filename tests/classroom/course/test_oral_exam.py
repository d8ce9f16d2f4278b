"""Questions for an oral exam: the same numbers from the same seed, and answers that agree with formulas by hand."""

import re

import pytest

from dpbook.app.command_line import main
from dpbook.classroom.oral_exam import MAKERS, Question, questions, questions_page
from dpbook.core import InvalidArgument

SEEDS = range(40)


def of_chapter(chapter: str, seed: int) -> Question:
    (found,) = (one for one in questions(seed) if one.chapter.startswith(chapter))
    return found


def numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_a_seed_always_gives_the_same_page_and_another_seed_another():
    assert questions_page(7) == questions_page(7)
    assert len({questions_page(seed) for seed in SEEDS}) == len(SEEDS)


def test_every_question_varies_and_has_an_answer():
    for place in range(len(MAKERS)):
        drawn = {questions(seed)[place] for seed in SEEDS}
        assert len({one.ask for one in drawn}) > 1
        assert all(one.answer and one.next for one in drawn)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_by_hand(seed):
    _, n0, mean0, _, n1, mean1 = numbers(of_chapter("02", seed).ask)
    plain, right = numbers(of_chapter("02", seed).answer)[:2]
    assert plain == (mean0 + mean1) / 2
    assert right == pytest.approx((n0 * mean0 + n1 * mean1) / (n0 + n1), rel=1e-3)

    examples, world, batch = numbers(of_chapter("03", seed).ask)
    steps, twice, of_each = numbers(of_chapter("03", seed).answer)
    assert (twice, of_each) == (-examples % world, -(-examples // world))
    assert steps == -(-of_each // batch)

    world, megabytes = numbers(of_chapter("05", seed).ask)
    rounds, sent = numbers(of_chapter("05", seed).answer)[:2]
    assert (rounds, sent) == (2 * (world - 1), pytest.approx(2 * (world - 1) / world * megabytes))

    layers, forward, backward, call = numbers(of_chapter("07", seed).ask)
    after, hidden = numbers(of_chapter("07", seed).answer)
    assert after == layers * (forward + backward + call)
    assert hidden == layers * forward + backward + max((layers - 1) * backward + call, layers * call)

    billions, _, world, *_ = numbers(of_chapter("13 ", seed).ask)
    plain, first, third = numbers(of_chapter("13 ", seed).answer)
    assert plain == pytest.approx(16 * billions, rel=1e-3)
    assert first == pytest.approx((4 + 12 / world) * billions, rel=1e-3)
    assert third == pytest.approx(16 / world * billions, rel=1e-3)

    world, micro, gigabytes = numbers(of_chapter("14", seed).ask)
    ddp, sharded = numbers(of_chapter("14", seed).answer)[:2]
    half = gigabytes * (world - 1) / world
    assert (ddp, sharded) == (pytest.approx(2 * half, rel=1e-3), pytest.approx(3 * micro * half, rel=1e-3))

    compute, sync, every = numbers(of_chapter("16", seed).ask)
    assert numbers(of_chapter("16", seed).answer)[2] == compute + sync / every


@pytest.mark.parametrize("seed", SEEDS)
def test_the_groups_of_a_rank_by_its_coordinates(seed):
    one = of_chapter("09, 13", seed)
    dp, pp, tp, rank = map(int, re.findall(r"(?:dp|pp|tp|rank) (\d+)", one.ask))
    gradients, layer = ([int(n) for n in found.split(",")] for found in re.findall(r"\[([\d, ]+)\]", one.answer))
    ranks = {(a, b, c): (a * pp + b) * tp + c for a in range(dp) for b in range(pp) for c in range(tp)}
    (at,) = (place for place, each in ranks.items() if each == rank)
    assert gradients == [each for place, each in ranks.items() if place[1:] == at[1:]]
    assert layer == [each for place, each in ranks.items() if place[:2] == at[:2]]


def test_a_bucket_is_closed_at_its_cap():
    for seed in SEEDS:
        one = of_chapter("08", seed)
        *sizes, cap = numbers(one.ask)
        buckets, filling = [], []
        for size in reversed(sizes):
            filling.append(size)
            if sum(filling) >= cap:
                buckets, filling = [*buckets, filling], []
        listed = re.findall(r"\[([\d, ]+)\]", one.answer)
        assert [numbers(each) for each in listed] == [*buckets, *([filling] if filling else [])]


def test_the_number_names_one_mistake():
    for seed in SEEDS:
        one = of_chapter("15", seed)
        world, stepped = int(numbers(one.ask)[1]), numbers(one.ask)[2]
        total = sum(10**rank for rank in range(world))
        expected = {
            "The sum was not divided": total,
            "It was divided twice": total / world**2,
            "The last rank was left out": (total - 10 ** (world - 1)) / world,
            "Rank 0's gradient was counted twice": (total + 1) / world,
        }
        assert [name for name, value in expected.items() if value == pytest.approx(stepped, rel=1e-5)] == [
            name for name in expected if one.answer.startswith(name)
        ]


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidArgument, match="seed"):
        questions(-1)


def test_the_command_writes_a_new_file_only(tmp_path, capsys):
    file = tmp_path / "oral.md"
    assert main(["course", "7", "--oral", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == questions_page(7)
    assert main(["course", "7", "--oral", str(file)]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["course", "7"]) == 1
    assert "--to DIR" in capsys.readouterr().err
