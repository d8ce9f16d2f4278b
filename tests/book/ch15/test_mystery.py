"""Is a drawn case one that can be solved, the same for its seed, and graded by what it is, without telling it?"""

import pytest

from dpbook.app import main
from dpbook.book.ch15 import draw, exhibits
from dpbook.book.ch15.exhibit_runs import OWN_PROCESSES, ScriptJob, bad, watched
from dpbook.core import InvalidArgument
from dpbook.runs.audit import judge_run
from tests.cases import each

SEEDS = range(200)
SEVEN = draw(7)
LETTERS = {cause: letter for letter, cause in SEVEN.causes.items()}
RIGHT = LETTERS[SEVEN.exhibit.title]
WRONG = next(letter for letter in SEVEN.causes if letter != RIGHT)


def test_a_seed_is_one_case_and_seeds_are_many():
    assert draw(7) == SEVEN
    assert {draw(seed).exhibit.name for seed in SEEDS} == {one.name for one in exhibits() if one.guilty}
    assert len({draw(seed).script for seed in SEEDS}) == len(SEEDS)


@each("seed", SEEDS)
def test_a_case_is_a_script_with_an_answer_that_it_does_not_say(seed):
    case = draw(seed)
    compile(case.script, "train.py", "exec")
    assert case.exhibit.name not in case.script
    assert case.script not in {one.script for one in exhibits()}
    assert list(case.causes.values()).count(case.exhibit.title) == 1
    assert case.rank is None or 0 <= case.rank < case.world
    assert case.lines
    assert max(case.lines) <= len(case.script.splitlines())


def test_the_rank_at_fault_is_not_always_the_same():
    assert {draw(seed).rank for seed in SEEDS} == {None, 0, 1, 2, 3}


def test_each_part_of_a_diagnosis_is_graded_by_itself():
    line, other = min(SEVEN.lines), 1
    assert SEVEN.graded(RIGHT, SEVEN.rank, line) == {"cause": True, "rank": True, "line": True}
    assert SEVEN.graded(WRONG, SEVEN.rank, line) == {"cause": False, "rank": True, "line": True}
    assert SEVEN.graded(RIGHT, 1 if SEVEN.rank != 1 else 0, line) == {"cause": True, "rank": False, "line": True}
    assert SEVEN.graded(RIGHT, SEVEN.rank, other) == {"cause": True, "rank": True, "line": False}


@each(
    ("name", "text"),
    [("step_before_sync", "dist.all_reduce(p.grad)"), ("killed", "seen.append("), ("killed", "os.kill(")],
)
def test_lines_at_which_it_could_as_well_be_mended_are_right(name, text):
    case = next(case for seed in SEEDS if (case := draw(seed)).exhibit.name == name)
    at = next(number for number, line in enumerate(case.script.splitlines(), 1) if line.strip().startswith(text))
    assert at in case.lines


def test_every_such_line_is_in_its_script():
    assert {line for one in exhibits() for line in one.also if line not in one.script} == set()


@each("answer", [("z", None, 1), (RIGHT, 9, 1), (RIGHT, -1, 1), (RIGHT, None, 0), (RIGHT, None, 999)])
def test_what_is_no_answer_is_refused(answer):
    with pytest.raises(InvalidArgument):
        SEVEN.graded(*answer)


def test_the_command_writes_the_script_and_overwrites_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["mystery", "--seed", "7"]) == 0
    path = tmp_path / "mystery-7" / "train.py"
    assert path.read_text() == SEVEN.script
    assert main(["mystery", "--seed", "7"]) == 0
    message = capsys.readouterr().out
    assert f"  {RIGHT}  {SEVEN.exhibit.title}" in message
    assert SEVEN.exhibit.name not in message
    path.write_text("mine")
    assert main(["mystery", "--seed", "7"]) == 1
    assert path.read_text() == "mine"
    assert "choose one with --folder" in capsys.readouterr().err
    assert main(["mystery", "--seed", "7", "--folder", "elsewhere"]) == 0
    assert (tmp_path / "elsewhere" / "train.py").read_text() == SEVEN.script


def test_the_command_grades_and_writes_nothing_then(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rank = "all" if SEVEN.rank is None else str(SEVEN.rank)
    answer = ["mystery", "--seed", "7", "--rank", rank, "--line", str(min(SEVEN.lines)), "--cause"]
    assert main([*answer, RIGHT]) == 0
    assert SEVEN.exhibit.why in capsys.readouterr().out
    assert main([*answer, WRONG]) == 1
    message = capsys.readouterr().out
    assert ("cause  wrong" in message, SEVEN.exhibit.why in message) == (True, False)
    assert list(tmp_path.iterdir()) == []


@each(
    ("options", "message"),
    [
        (["--seed", "-1"], "seed"),
        (["--seed", "7", "--cause", "a"], "--cause, --rank and --line together"),
        (["--seed", "7", "--cause", "a", "--rank", "first", "--line", "3"], "--rank must be a rank number, or all"),
        (["--seed", "7", "--cause", "q", "--rank", "all", "--line", "3"], "one of the letters a, b, c, d, e, f"),
    ],
)
def test_bad_options_are_reported(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["mystery", *options]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.proof
@pytest.mark.parametrize("world", [3, 4])
def test_the_audit_solves_what_is_drawn(world):
    cases = [
        case for seed in range(60) if (case := draw(seed)).world == world and case.exhibit.tool not in OWN_PROCESSES
    ]
    cases.sort(key=lambda case: "end" in case.exhibit.follows)
    cases = [case for case in cases if "end" not in case.exhibit.follows or case is cases[-1]]  # it ends the ranks' use
    wanted = [5 if case.exhibit.updates else 0 for case in cases]
    jobs = [ScriptJob(case.script, (), {"updates": n, "replay": 1}) for case, n in zip(cases, wanted, strict=True)]
    with watched(jobs, world) as runs:
        for case, run in zip(cases, runs, strict=True):
            first = bad(judge_run(run, 1))[0]
            assert (first.name, first.result.status) == (case.exhibit.check, case.exhibit.status), case.script
            assert case.rank in (None, first.result.rank), case.script
            assert first.result.place is None or first.result.place[1] in case.lines, case.script
