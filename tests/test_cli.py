"""Does the command do what it says, quickly, from a checkout without installation?"""

import os
import subprocess
import sys

import pytest

from dpbook import __version__, book, jupyter
from dpbook.cli import main
from dpbook.errors import DpbookError


@pytest.mark.parametrize("args", [["--help"], ["lab", "--help"], ["doctor", "--help"], ["validate", "--help"]])
def test_help_loads_nothing_heavy(args):
    code = f"""
import sys
from dpbook.cli import main
try:
    main({args!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"torch", "numpy", "matplotlib", "ipywidgets", "jupyterlab", "nbformat"}} & set(sys.modules)
sys.exit(f"loads {{sorted(heavy)}}" if heavy else 0)
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=book.root(), capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


def test_it_runs_from_a_checkout_without_installation(tmp_path):
    """-S hides site-packages, and with it the installed package."""
    env = {"PYTHONPATH": str(book.root())}
    command = [sys.executable, "-S", "-m", "dpbook", "--version"]
    child = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert child.stdout.strip() == f"dpbook {__version__}", child.stderr


def test_without_a_command_it_says_how_it_is_used(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_an_error_of_the_book_is_one_line_and_a_status(tmp_path, capsys):
    assert main(["validate", str(tmp_path / "nowhere.ipynb")]) == 1
    assert capsys.readouterr().err.startswith("dpbook validate:")


def test_root_is_refused_unless_the_reader_insists(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(DpbookError, match="--allow-root"):
        jupyter.open_lab(ip="127.0.0.1", port=8888, browser=False, allow_root=False)


def test_root_is_allowed_in_the_command_only_when_asked(tmp_path):
    assert "--allow-root" not in jupyter.server_command(tmp_path)
    assert "--allow-root" in jupyter.server_command(tmp_path, allow_root=True)


def test_the_server_listens_on_this_machine_and_keeps_its_token(tmp_path):
    command = jupyter.server_command(tmp_path)
    assert "--ServerApp.ip=127.0.0.1" in command
    assert not [option for option in command if "token" in option or "password" in option]


def test_the_first_chapter_is_opened_where_there_is_one(tmp_path):
    assert "--LabApp.default_url=/lab" in jupyter.server_command(tmp_path)
    (tmp_path / "chapters").mkdir()
    (tmp_path / jupyter.FIRST).touch()
    assert f"--LabApp.default_url=/lab/tree/{jupyter.FIRST}" in jupyter.server_command(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems always have a display")
@pytest.mark.parametrize(("env", "seen"), [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)])
def test_a_browser_is_opened_only_where_it_can_be_seen(env, seen):
    assert jupyter.has_display(env) is seen


def test_the_kernels_find_the_checkout_before_anything_else():
    path = jupyter.environment({"PYTHONPATH": "elsewhere"})["PYTHONPATH"].split(os.pathsep)
    assert path == [str(book.root()), "elsewhere"]
