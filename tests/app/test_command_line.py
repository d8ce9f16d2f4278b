"""Does the command do what it says, quickly, from a checkout without installation?"""

import os
import subprocess
import sys

import pytest

from dpbook import __version__
from dpbook.app import main
from dpbook.app.command_line import COMMANDS, _split
from dpbook.app.lab import jupyter
from dpbook.app.notebooks import validation
from dpbook.core import checkout
from dpbook.core.errors import DpbookError


@pytest.mark.parametrize("args", [["--help"], ["lab", "--help"], ["doctor", "--help"], ["validate", "--help"]])
def test_help_loads_nothing_heavy(args):
    code = f"""
import sys
from dpbook.app import main
from dpbook.app.command_line import COMMANDS, _split
try:
    main({args!r})
except SystemExit as end:
    assert end.code == 0
heavy = {{"torch", "numpy", "matplotlib", "jupyterlab", "nbformat"}} & set(sys.modules)
sys.exit(f"loads {{sorted(heavy)}}" if heavy else 0)
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


def test_it_runs_from_a_checkout_without_installation(tmp_path):
    """-S hides site-packages, and with it the installed package."""
    env = {"PYTHONPATH": str(checkout.root())}
    command = [sys.executable, "-S", "-m", "dpbook", "--version"]
    child = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert child.stdout.strip() == f"dpbook {__version__}", child.stderr


@pytest.mark.processes
def test_without_the_extra_a_command_works_or_says_what_it_needs(tmp_path):
    bench = ["bench", "--nproc", "1", "--smallest", "4", "--largest", "5", "--repeats", "1"]
    commands = [
        (bench, 0, ""),
        ([*bench, "--out", "bench"], 1, "dpbook bench: needs matplotlib: pip install 'dpbook[book]'"),
        (["launch", "--steps", "2"], 1, "dpbook launch: needs matplotlib: pip install 'dpbook[book]'"),
    ]
    code = """
import sys
from dpbook.app import command_line
command = sys.argv[1:]
sys.modules |= dict.fromkeys(command_line.BOOK)
sys.exit(command_line.main(command))
"""
    env = os.environ | {"PYTHONPATH": str(checkout.root())}
    for command, status, message in commands:
        child = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, env=env, capture_output=True)
        assert child.returncode == status, child.stderr.decode()
        assert message in child.stderr.decode()


def test_without_a_command_it_lists_all_of_them(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [[line for line in lines if line.startswith(f"    {name} ")] != [] for name in COMMANDS] == [True] * len(
        COMMANDS
    )


def test_a_command_that_is_misspelled_is_answered_with_the_one_that_is_meant(capsys):
    with pytest.raises(SystemExit) as end:
        main(["adit", "train.py"])
    assert end.value.code == 2
    assert "unknown command 'adit'; did you mean 'audit'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "options", "script"),
    [
        ("audit train.py --epochs 1", "audit", "train.py --epochs 1"),
        ("audit --nproc 3 train.py --nproc 5", "audit --nproc 3", "train.py --nproc 5"),
        ("audit --nproc 3 -- train.py --epochs 1", "audit --nproc 3", "train.py --epochs 1"),
        ("launch --nproc 2 -m package.train --x -- y", "launch --nproc 2", "-m package.train --x -- y"),
        ("launch -- tool train.py", "launch", "tool train.py"),
        ("launch train.py -- -m", "launch", "train.py -- -m"),
        ("launch --steps 20 --name=a.py", "launch --steps 20 --name=a.py", None),
        ("validate -- train.py", "validate -- train.py", None),
    ],
)
def test_a_script_is_given_with_or_without_the_dashes(typed, options, script):
    assert _split(typed.split()) == (options.split(), script and script.split())


@pytest.mark.parametrize("command", ["audit", "forecast", "diagnose"])
def test_the_help_of_a_command_fits_a_screen(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 40


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


@pytest.mark.parametrize(("port", "tries"), [(1, 50), (8888, 50), (65433, 50), (65533, 0), (65535, 0)])
def test_no_port_past_the_last_one_is_tried(tmp_path, port, tries):
    """JupyterLab tries ``port`` + 0 … 4 and then any at most 2 · (tries + 1) away."""
    assert f"--ServerApp.port_retries={tries}" in jupyter.server_command(tmp_path, port=port)
    assert tries == 0 or port + 2 * (tries + 1) <= 65535


@pytest.mark.parametrize("ip", ["127.0.0.1", "0.0.0.0", "localhost", "*"])
def test_addresses_of_this_machine_are_fine(ip):
    jupyter.check_address(ip, 65535)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        *(("--port", port, f"port must be an integer from 1 to 65535, got {port}") for port in ("-1", "0", "65536")),
        *(("--ip", ip, "ip must be an address of this machine") for ip in ("300.1.1.1", "192.0.2.1", "", "a..b")),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_refused_before_anything_is_done(
    monkeypatch, capsys, option, value, words
):
    monkeypatch.setattr(jupyter.workbook, "refresh", lambda *_: pytest.fail("files were copied"))
    monkeypatch.setattr("dpbook.app.lab.jupyter.serve", lambda *_, **__: pytest.fail("the server was started"))
    assert main(["lab", "--allow-root", option, value]) == 1
    assert words in capsys.readouterr().err


def test_the_first_chapter_is_opened_where_there_is_one(tmp_path):
    assert "--LabApp.default_url=/lab" in jupyter.server_command(tmp_path)
    (tmp_path / "chapters").mkdir()
    (tmp_path / jupyter.FIRST).touch()
    assert f"--LabApp.default_url=/lab/tree/{jupyter.FIRST}" in jupyter.server_command(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems always have a display")
@pytest.mark.parametrize(("env", "opens"), [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)])
def test_a_browser_is_opened_only_where_it_can_be_seen(env, opens):
    assert jupyter.has_display(env) is opens


def test_the_kernels_find_the_checkout_before_anything_else():
    path = jupyter.environment({"PYTHONPATH": "elsewhere"})["PYTHONPATH"].split(os.pathsep)
    assert path == [str(checkout.root()), "elsewhere"]


def test_a_kernel_computes_with_one_thread_unless_the_user_says_otherwise():
    assert jupyter.environment({})["OMP_NUM_THREADS"] == "1" == validation.FIXED["OMP_NUM_THREADS"]
    assert jupyter.environment({"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
