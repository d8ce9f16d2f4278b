"""Is the folder of a course whole, and is nothing lost by writing it?"""

import ast
import json

from dpbook.app import main
from dpbook.core import checkout

SOLUTIONS = sorted((checkout.root() / "exercises" / "solutions").glob("*.ipynb"))
FIRST = SOLUTIONS[0]


def seed(config):
    """What the configuration gives to `configure`, as a number."""
    calls = [node for node in ast.walk(ast.parse(config)) if isinstance(node, ast.Call)]
    return next(ast.literal_eval(call.keywords[0].value) for call in calls if ast.unparse(call.func) == "configure")


def test_every_exercise_is_an_assignment_with_its_solutions_and_the_seed_is_the_courses_own(tmp_path):
    for name in ("a", "b"):
        assert main(["nbgrader", str(tmp_path / name)]) == 0
    for path in SOLUTIONS:
        assert (tmp_path / "a" / "source" / path.stem / path.name).read_bytes() == path.read_bytes()
    found = sorted(path.name for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert found == sorted(["nbgrader_config.py", *(path.name for path in SOLUTIONS)])
    assert seed((tmp_path / "a" / "nbgrader_config.py").read_text()) != seed(
        (tmp_path / "b" / "nbgrader_config.py").read_text()
    )


def test_what_is_there_is_kept_and_what_lacks_comes_again(tmp_path, capsys):
    assert main(["nbgrader", str(tmp_path)]) == 0
    changed, removed = (tmp_path / "source" / path.stem / path.name for path in SOLUTIONS[:2])
    changed.write_text(json.dumps({"mine": 1}))
    removed.unlink()
    config = (tmp_path / "nbgrader_config.py").read_text()
    capsys.readouterr()
    assert main(["nbgrader", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 file written" in said
    assert f"kept as it is, and not that of this edition: {changed}" in said
    assert json.loads(changed.read_text()) == {"mine": 1}
    assert removed.read_bytes() == SOLUTIONS[1].read_bytes()
    assert (tmp_path / "nbgrader_config.py").read_text() == config


def test_a_folder_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["nbgrader", str(tmp_path / "file")]) == 1
    assert "the course cannot be written" in capsys.readouterr().err
