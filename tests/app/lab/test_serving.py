"""Does `make lab` print one address, or why there is none; and does the server end with it?"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from dpbook.app.lab import jupyter
from dpbook.core import DpbookError
from dpbook.ranks import held_port

SECONDS = 120
SERVE = """
import os, sys
from pathlib import Path
from dpbook.app.lab.jupyter import serve
log, port, *command = sys.argv[1:]
sys.exit(serve(command, os.environ, Path(log), page="/lab/tree/a.ipynb", port=int(port), opens=False))
"""
LATE = """
import os, subprocess, time
from pathlib import Path
class Late(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        while not Path(os.environ["JUPYTER_RUNTIME_DIR"], f"jpserver-{self.pid}.json").exists():
            time.sleep(0.01)
subprocess.Popen = Late
"""
BEGINS = """
import json, os, signal, socket, sys, time
from pathlib import Path
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: sys.exit(40 + number))
def log(*lines):
    print(*lines, sep="\\n", file=sys.stderr, flush=True)
log("[I 07:42:21 ServerApp] linked", "[W 07:42:21 ServerApp] frightens")
def tell(port, **more):
    info = {"url": f"http://127.0.0.1:{port}/", "token": "secret", "port": port, "hostname": "127.0.0.1", **more}
    Path(os.environ["JUPYTER_RUNTIME_DIR"], f"jpserver-{os.getpid()}.json").write_text(json.dumps(info))
def answer(port=0, **more):
    global listening
    listening = socket.create_server(("127.0.0.1", port))
    tell(listening.getsockname()[1], **more)
def wait():
    while not Path(os.environ["JUPYTER_RUNTIME_DIR"], "end").exists():
        time.sleep(0.05)
"""


@contextlib.contextmanager
def served(folder, script, port=8888, program=SERVE):
    """`serve` in a process of its own, on a script that stands for JupyterLab."""
    command = [sys.executable, "-c", program, str(folder / "log"), str(port), sys.executable, "-c", BEGINS + script]
    env = {**os.environ, "JUPYTER_RUNTIME_DIR": str(folder)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process, last):
    """Lines that it prints, up to the one that begins with ``last``."""
    lines = []
    while not lines or not lines[-1].startswith(last):
        line = process.stdout.readline()
        assert line, (lines, process.stderr.read())
        lines.append(line.rstrip())
    return lines


def port_of(folder):
    """Port on which it listens, from its own file."""
    (file,) = folder.glob("jpserver-*.json")
    return json.loads(file.read_text())["port"]


def test_the_address_is_reported_once_and_nothing_of_the_log(tmp_path):
    with served(tmp_path, "answer(); wait()") as process:
        output = until(process, "Ctrl-C")
        port = port_of(tmp_path)
        (tmp_path / "end").touch()
        assert process.communicate(timeout=SECONDS) == ("", "")
    assert output == [
        "",
        f"JupyterLab is running. Port 8888 is in use; using {port}. Open in a browser",
        "",
        f"    http://127.0.0.1:{port}/lab/tree/a.ipynb?token=secret",
        "",
        f"Ctrl-C stops it. Its log is {tmp_path / 'log'}",
    ]
    assert (tmp_path / "log").read_text().splitlines()[1].endswith("frightens")


def test_with_a_password_there_is_no_token_and_a_free_port_is_not_spoken_of(tmp_path):
    with held_port() as port, served(tmp_path, f'answer({port}, token=""); wait()', port=port) as process:
        output = until(process, "Ctrl-C")
    assert output[1:4:2] == [
        "JupyterLab is running. Open in a browser", f"    http://127.0.0.1:{port}/lab/tree/a.ipynb"
    ]  # fmt: skip


def test_on_all_addresses_it_says_that_another_name_will_do(tmp_path):
    with served(tmp_path, 'answer(url="http://box:8889/", hostname="0.0.0.0"); wait()') as process:
        output = until(process, "Ctrl-C")
    assert output[3:6] == [
        "    http://box:8889/lab/tree/a.ipynb?token=secret", "",
        "Any address of this machine works instead of box; on the machine itself, use 127.0.0.1.",
    ]  # fmt: skip


def test_an_address_at_which_nobody_listens_yet_is_not_reported(tmp_path):
    """JupyterLab tells its address first; and where another program takes the port before it, it ends."""
    with held_port() as port:
        with served(tmp_path, f"tell({port}); time.sleep(1); sys.exit(1)") as process:
            output, errors = process.communicate(timeout=SECONDS)
        assert output == ""
        assert "JupyterLab ended with exit status 1" in errors
        with served(tmp_path, f"tell({port}); time.sleep(0.5); answer({port}); wait()") as process:
            assert until(process, "Ctrl-C")[3].endswith("token=secret")
            socket.create_connection(("127.0.0.1", port)).close()


def test_what_an_earlier_server_of_the_same_process_id_has_left_is_not_reported(tmp_path):
    old = json.dumps({"url": "http://127.0.0.1:1/", "token": "old", "port": 1, "hostname": "127.0.0.1"})
    for number in range(os.getpid(), os.getpid() + 2000):
        (tmp_path / f"jpserver-{number}.json").write_text(old)
    with served(tmp_path, "time.sleep(0.6); answer(); wait()") as process:
        assert until(process, "Ctrl-C")[3].endswith("token=secret")


def test_a_server_that_is_faster_than_its_parent_is_announced(tmp_path):
    """On a busy machine JupyterLab may have described itself before the process that started it goes on."""
    with served(tmp_path, "answer(); wait()", program=LATE + SERVE) as process:
        assert until(process, "Ctrl-C")[3].endswith("token=secret")


def test_a_pipe_that_nobody_reads_does_not_end_the_server(tmp_path):
    with served(tmp_path, "time.sleep(0.5); answer(); wait()") as process:
        process.stdout.close()
        while not list(tmp_path.glob("jpserver-*.json")):
            time.sleep(0.05)
        (tmp_path / "end").touch()
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == ""


def test_a_second_server_has_a_log_of_its_own(tmp_path):
    with served(tmp_path, "answer(); wait(); log('first')") as first:
        until(first, "Ctrl-C")
        with served(tmp_path, "answer(); wait(); log('second')") as second:
            until(second, "Ctrl-C")
            (tmp_path / "end").touch()
            assert (first.wait(SECONDS), second.wait(SECONDS)) == (0, 0)
    assert (tmp_path / "log").read_text().splitlines()[-1] == "second"


def test_a_log_that_cannot_be_written_is_reported_in_words(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(DpbookError, match=r"log: cannot write JupyterLab's log \(Is a directory\)"):
        jupyter.serve(["true"], os.environ, tmp_path / "log", page="/lab", port=8888, opens=False)


def test_a_workbook_that_cannot_be_written_is_reported_in_words(tmp_path, monkeypatch):
    (tmp_path / "workbook").touch()
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "00_a.ipynb").write_text(
        '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    monkeypatch.setattr(jupyter.checkout, "root", lambda: tmp_path)
    with pytest.raises(DpbookError, match=r"cannot write your copy: .*workbook/chapters: Not a directory"):
        jupyter.open_lab(ip="127.0.0.1", port=8888, browser=False, allow_root=True)


def test_a_server_that_dies_is_reported_with_its_last_lines_and_its_status(tmp_path):
    with served(tmp_path, 'log("no port is free"); sys.exit(3)') as process:
        output, wrong = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (3, "")
    assert wrong.splitlines()[-2:] == [
        "no port is free", f"JupyterLab ended with exit status 3; its log is {tmp_path / 'log'}"
    ]  # fmt: skip


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_the_server_to_end_and_what_it_answers_comes_back_without_a_word(tmp_path, sent):
    with served(tmp_path, "answer(); time.sleep(600)") as process:
        until(process, "Ctrl-C")
        process.send_signal(sent)
        assert process.wait(SECONDS) == 40 + signal.SIGTERM
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_the_server_ends_with_the_one_that_watches_it_even_if_that_is_killed(tmp_path):
    script = 'import atexit; atexit.register(Path(os.environ["JUPYTER_RUNTIME_DIR"], "ended").touch)\n'
    with served(tmp_path, f"{script}answer(); time.sleep(600)") as process:
        until(process, "Ctrl-C")
        process.kill()
        end = time.monotonic() + SECONDS
        while not (tmp_path / "ended").exists() and time.monotonic() < end:
            time.sleep(0.05)
    assert (tmp_path / "ended").exists()


@pytest.mark.processes
def test_jupyterlab_answers_at_the_address_that_is_reported(tmp_path):
    """On another port than the one that was asked for, which is in use."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = jupyter.server_command(tmp_path, port=port, browser=False, allow_root=os.geteuid() == 0)
        script = f"import os, sys; os.execv({command[0]!r}, {command!r})"
        with served(tmp_path, script, port=port) as process:
            lines = until(process, "Ctrl-C")
            address = lines[3].strip()
            assert f"Port {port} is in use" in lines[1]
            server, _, token = address.partition("/lab/tree/a.ipynb?token=")
            request = urllib.request.Request(f"{server}/api/status", headers={"Authorization": f"token {token}"})
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=SECONDS) as answer:
                assert json.load(answer)["kernels"] == 0
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
            output = process.stderr.read().splitlines()
            assert [line for line in output if "nbgrader" not in line] == []  # which speaks where it is installed
