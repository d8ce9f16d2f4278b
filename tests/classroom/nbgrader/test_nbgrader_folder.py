"""Is the folder of a course whole, and is nothing lost by writing it?"""

import ast
import json

from dpbook.app import main
from dpbook.core import checkout

SOLUTIONS = sorted((checkout.root() / "exercises" / "solutions").glob("*.ipynb"))
FIRST = SOLUTIONS[0]


def given(config):
    """Values that the configuration in this folder passes to `configure`."""
    nodes = ast.walk(ast.parse((config / "nbgrader_config.py").read_text()))
    call = next(node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "configure")
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}


def test_every_exercise_is_an_assignment_with_its_solutions_and_the_seed_is_the_courses_own(tmp_path):
    for name in ("a", "b"):
        assert main(["nbgrader", str(tmp_path / name)]) == 0
    for path in SOLUTIONS:
        assert (tmp_path / "a" / "source" / path.stem / path.name).read_bytes() == path.read_bytes()
    found = sorted(path.name for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert found == sorted(["nbgrader_config.py", *(path.name for path in SOLUTIONS)])
    assert given(tmp_path / "a")["seed"] != given(tmp_path / "b")["seed"]
    assert given(tmp_path / "a")["course"] is None


def test_a_courses_own_numbers_are_in_its_assignments_and_its_configuration(tmp_path):
    assert main(["nbgrader", str(tmp_path / "a"), "--course", "11"]) == 0
    assert main(["course", "11", "--to", str(tmp_path / "b")]) == 0
    assert given(tmp_path / "a")["course"] == 11
    for path in SOLUTIONS:
        source = (tmp_path / "a" / "source" / path.stem / path.name).read_bytes()
        assert source == (tmp_path / "b_solutions" / path.name).read_bytes()
    assert source != SOLUTIONS[-1].read_bytes()


def test_what_is_there_is_kept_and_what_lacks_comes_again(tmp_path, capsys):
    assert main(["nbgrader", str(tmp_path)]) == 0
    changed, removed = (tmp_path / "source" / path.stem / path.name for path in SOLUTIONS[:2])
    changed.write_text(json.dumps({"mine": 1}))
    removed.unlink()
    config = (tmp_path / "nbgrader_config.py").read_text()
    capsys.readouterr()
    assert main(["nbgrader", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "1 file written" in output
    assert f"kept, although it differs from the version in this edition: {changed}" in output
    assert json.loads(changed.read_text()) == {"mine": 1}
    assert removed.read_bytes() == SOLUTIONS[1].read_bytes()
    assert (tmp_path / "nbgrader_config.py").read_text() == config


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["nbgrader", str(tmp_path / "file")]) == 1
    assert "cannot write the course" in capsys.readouterr().err
