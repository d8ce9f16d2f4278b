"""Does a launch start the right command, pass on signals, and report the rank that failed? Each run takes seconds."""

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dpbook.app import main
from dpbook.core import checkout, machine
from dpbook.core.errors import InvalidArgument
from dpbook.runs.launch import launcher
from dpbook.runs.launch.command import HANG_TIMEOUT, Launch, default_processes
from dpbook.runs.launch.watches import TORCH_TIMEOUTS
from dpbook.runs.trainer import GROUP_TIMEOUT
from tests.cases import each
from tests.runs.launch import restarts, slurm

proof = pytest.mark.proof
SAVES = """import time
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with open("checkpoint", "wb", buffering=0) as file:
        for _ in range(120):
            file.write(bytes(2**17))
            time.sleep(0.1)
    print("saved")
dist.barrier()
"""
FAILS = """import os, time
if os.environ["RANK"] == "0":
    time.sleep(60)  # else it may fail before the other has come so far
print("rank", os.environ["RANK"])
raise ValueError("on purpose")
"""
GPUS = [machine.Gpu("H100", 80 * 10**9)] * 4
TORCH_SCRIPTS = {
    "sums": 'x = torch.tensor(10**rank); dist.all_reduce(x); print(f"rank-{rank}-sum-{x}\\n", end="")',
    "heeds": """received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
dist.barrier()
print("here", flush=True) if rank == 0 else None
for _ in range(1200):
    time.sleep(0.1)
    n_received = torch.tensor(len(received)); dist.all_reduce(n_received)
    if n_received == 3:
        open("log", "a").write("heeded\\n")
        break""",
    "ignores": """dist.barrier()
print("here", flush=True) if rank == 0 else None
for _ in range(1200):  # until the launch passes the signal on
    time.sleep(0.1)
    if os.path.exists(os.environ["DPBOOK_PREEMPTION_FILE"]):
        break
time.sleep(1)
open("log", "a").write("ignored\\n")""",
    "computes": """if rank == 1:
    raise KeyError("label")
print("here", flush=True) if rank == 0 else None
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)""",
    "joins": "",
}
HEAD = """import os, signal, sys, time
from datetime import timedelta
if sys.argv[1:] == ["late"] and os.environ["RANK"] == "1":
    time.sleep(60)
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=3))
rank = dist.get_rank()
"""
PLAIN_SCRIPTS = {
    "sleeps": 'import os, time\nprint("here", flush=True) if os.environ["RANK"] == "0" else None\ntime.sleep(60)',
    "prints": """import contextlib, os, socket, sys
print("argument", sys.argv[1], *map(os.environ.get, ("OMP_NUM_THREADS", *sys.argv[2:])))
with contextlib.suppress(OSError):
    socket.socket().bind(("", int(os.environ["MASTER_PORT"])))
    print(*["anybody may take the port at which the ranks meet"] * (sys.platform == "linux"))""",
}
"""Scripts without torch, which takes two seconds to load in each rank."""


def launch(*arguments, folder, python_path=(), **options):
    command = [sys.executable, "-m", "dpbook", "launch", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [checkout.root(), *python_path]))}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=400, **options)


def script(folder, name):
    path = folder / f"{name}.py"
    path.write_text((PLAIN_SCRIPTS.get(name) or HEAD + TORCH_SCRIPTS[name]) + "\n")
    return path


@proof  # chapter 11 shows it in every run
@pytest.mark.processes
def test_a_rank_that_does_not_join_at_the_start_is_named_in_time(tmp_path):
    ended = launch("--nproc", 2, "--start-timeout", 2, "--", script(tmp_path, "joins"), "late", folder=tmp_path)
    assert ended.returncode != 0
    assert ended.stderr.splitlines()[-2:] == [
        "dpbook launch: rank 1 never joined: it was at joins.py:4; rank 0 was in init_process_group, joins.py:7",
        "  rank 0: TimeoutError: the other ranks did not join init_process_group within 2 s",
    ]


@proof
@pytest.mark.processes
@pytest.mark.parametrize("requested", [False, True])
def test_torchruns_own_report_is_shown_on_request(tmp_path, requested):
    (tmp_path / "fails.py").write_text('raise ValueError("on purpose")')
    options = ["--torchrun-report"] if requested else []
    ended = launch("--nproc", 1, *options, "--", tmp_path / "fails.py", folder=tmp_path)
    assert ended.returncode == 1
    assert "dpbook launch: rank 0 failed first: ValueError: on purpose" in ended.stderr.splitlines()
    assert ("Root Cause (first observed failure)" in ended.stderr) is requested
    assert "ChildFailedError" not in ended.stderr
    assert "Warning" not in ended.stderr


@proof
@pytest.mark.processes
@pytest.mark.parametrize(("options", "where"), [([], "runs/logs"), (["--logs", "a"], "a")])
def test_the_output_of_the_other_ranks_is_kept_if_a_launch_fails(tmp_path, options, where):
    (tmp_path / "fails.py").write_text(FAILS)
    for _ in range(2):
        ended = launch("--nproc", 2, *options, "--", "fails.py", folder=tmp_path)
        (line,) = [
            line for line in ended.stderr.splitlines() if line.startswith("the output of the ranks other than 0 is in ")
        ]
        logs = tmp_path / line.removeprefix("the output of the ranks other than 0 is in ")
        assert (logs / "attempt_0/1/stdout.log").read_text() == "rank 1\n"
        assert (logs / "attempt_0/1/stderr.log").read_text().endswith("ValueError: on purpose\n")
    assert logs.parent == tmp_path / where
    assert len(list(logs.parent.iterdir())) == 2


@pytest.mark.processes
@proof
def test_a_rank_that_writes_while_the_others_wait_for_longer_than_the_hang_timeout_is_not_stopped(tmp_path):
    (tmp_path / "saves.py").write_text(SAVES)
    ended = launch("--nproc", 3, "--hang-timeout", 3, "--", "saves.py", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "saved\n")


@pytest.mark.processes
def test_nodes_that_do_not_join_end_the_launch_in_time(tmp_path):
    where = ["--nnodes", 2, "--rdzv-endpoint", "localhost:0", "--start-timeout", 2]
    ended = launch("--nproc", 1, *where, "--", script(tmp_path, "sleeps"), folder=tmp_path)
    assert ended.returncode != 0
    assert ended.stderr.splitlines()[-1] == "dpbook launch: not all of the 2 nodes joined at localhost:0 within 2 s"


def silent(client):
    """Accept the connection and never answer."""
    while client.recv(1024):
        pass


def http(client):
    client.recv(1024)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def closes(client):
    """Accept the connection and close it."""


@proof
@pytest.mark.processes
@pytest.mark.parametrize("answer", [silent, http, closes])
def test_a_port_of_another_service_is_reported_as_no_rendezvous(tmp_path, answer):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                answer(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_address[1]}"
        there = ["--nnodes", 2, "--rdzv-endpoint", where, "--start-timeout", 5]
        ended = launch("--nproc", 1, *there, "--", script(tmp_path, "sleeps"), folder=tmp_path)
        server.shutdown()
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"dpbook launch: no rendezvous answered at {where} within 5 s"


@pytest.mark.processes
def test_a_script_gets_its_arguments_its_share_of_the_cores_settings_of_malloc_and_a_reserved_port(tmp_path):
    """The argument --n is also how several options of torchrun begin."""
    ended = launch("--nproc", 2, "--", script(tmp_path, "prints"), "--n", *machine.MALLOC_SETTINGS, folder=tmp_path)
    assert ended.returncode == 0
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, machine.cores() // 2)))
    settings = [os.environ.get(name, value) for name, value in machine.MALLOC_SETTINGS.items()]
    assert ended.stdout.split() == ["argument", "--n", threads, *settings]
    assert not (tmp_path / "runs").exists()


def to_the_end(launch):
    """Return the output of a launch that succeeds."""
    output, _ = launch.communicate(timeout=400)
    assert launch.returncode == 0, output
    return output


@proof
@pytest.mark.processes
def test_the_trainer_ends_in_a_report_that_compares_it_with_one_process(tmp_path):
    small = ["--context", "32", "--batch", "2"]
    output = to_the_end(restarts.begin(tmp_path, "--steps", "12", "--nproc", "2", *small))
    *_, line, last = output.splitlines()
    numbers = re.sub(r"[\d.,]+", "#", line)
    assert numbers == "loss # after step #; # tokens/s over # ranks; #% of # times one process"
    assert last == "report: runs/r/report.html"
    page = (tmp_path / "runs/r/report.html").read_text(encoding="utf-8")
    assert "simulated step" in page
    assert "of 2 times one process" in page
    lines = (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 13))


@proof
@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the rank in /proc")
def test_a_run_whose_rank_is_killed_ends_with_the_bits_of_one_that_was_not(tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    launch = restarts.begin(killed, "--max-restarts", "1", "--no-alone", "--no-predict")
    restarts.kill_rank_1(killed, launch, wait=0.0)
    output = to_the_end(launch)
    assert f" of {restarts.STEPS}" in output[output.index("resumed after step") :]
    to_the_end(restarts.begin(whole, "--no-alone", "--no-predict"))
    assert restarts.same_bits(restarts.weights(killed), restarts.weights(whole))


@pytest.mark.processes
def test_a_signal_ends_all_ranks(tmp_path):
    process = launch_in_the_background(tmp_path, script(tmp_path, "sleeps"))
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert stderr.splitlines()[-1] == "dpbook launch: stopped by SIGTERM; no rank is left running"
    assert not restarts.processes_in(tmp_path)


ENDS_BETWEEN_RANKS = """import os, signal, sys, time

def send(event, arguments):
    if event == "subprocess.Popen" and "dpbook.runs.launch.guard" in arguments[1]:
        started.append(event)
        if len(started) == 2:
            while not os.path.exists("handles"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

started = []
sys.addaudithook(send)
"""
"""A ``sitecustomize`` module with which torchrun receives a signal when it has started the first of its ranks."""
HANDLES = """import os, signal, sys, time

def end(number, frame):
    open("ended", "w").close()
    sys.exit()

signal.signal(signal.SIGTERM, end)
open("handles", "w").close()
time.sleep(60)"""


@pytest.mark.processes
def test_a_signal_that_arrives_while_torchrun_starts_ranks_ends_those_that_it_has_started(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ENDS_BETWEEN_RANKS)
    (tmp_path / "handles.py").write_text(HANDLES)
    launch("--nproc", 2, "--", "handles.py", folder=tmp_path, python_path=[tmp_path])
    assert (tmp_path / "ended").exists()


DROPPED = """import os, runpy, sys, weakref

number = int(sys.argv.pop(1))

class Lock:
    pass

def audit(event, arguments):
    if event == "import" and arguments[0] == "dpbook.runs.launch.launcher":
        lock = Lock()
        end = weakref.ref(lock, lambda _: os.kill(os.getpid(), number))
        del lock

sys.addaudithook(audit)
runpy.run_module("dpbook", run_name="__main__")"""
"""A launch that receives a signal in a callback in which Python drops what a handler raises.

Such a callback ends every import: it releases the lock of the module."""


@pytest.mark.processes
@pytest.mark.parametrize("name", [pytest.param("SIGINT", marks=proof), "SIGUSR1"])
def test_a_signal_that_arrives_while_a_launch_imports_is_not_lost(tmp_path, name):
    (tmp_path / "ends.py").write_text("")
    number = signal.Signals[name]
    command = [sys.executable, "-c", DROPPED, str(int(number)), "launch", "--nproc", "1", "--", "ends.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 128 + number, ended.stderr


@proof
@pytest.mark.processes
def test_a_stopped_launch_reports_the_rank_that_had_failed_while_the_others_worked(tmp_path):
    process = launch_in_the_background(tmp_path, script(tmp_path, "computes"))
    assert process.stdout.readline() == "here\n"
    restarts.wait_until(lambda: any("Sending process" in line for line in iter(process.stderr.readline, "")))
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "dpbook launch: stopped by SIGINT; no rank is left running\n" in stderr
    assert "dpbook launch: rank 1 failed first: KeyError: 'label'\n" in stderr


@proof
@pytest.mark.processes
@pytest.mark.parametrize(("name", "ended"), [("heeds", "heeded\n" * 3), ("ignores", "ignored\n" * 3)])
def test_usr1_reaches_every_rank_and_ends_none_without_a_handler(tmp_path, name, ended):
    process = launch_in_the_background(tmp_path, script(tmp_path, name), "--nproc", "3")
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=120)
    logs = (tmp_path / "log").read_text()
    assert (logs, process.returncode) == (ended, 128 + signal.SIGUSR1)
    assert stderr.splitlines()[-1] == "dpbook launch: ended after SIGUSR1; work may be left"


def launch_in_the_background(folder, path, *options):
    command = [sys.executable, "-m", "dpbook", "launch", *(options or ("--nproc", "2")), "--", str(path)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@proof
@pytest.mark.processes
def test_the_slurm_script_starts_a_launcher_on_each_of_two_nodes_and_their_ranks_meet(tmp_path):
    job = slurm.submit(tmp_path, 2, "--", str(script(tmp_path, "sums")))
    output = job.communicate(timeout=400)[0]
    assert job.returncode == 0, output
    assert sorted(line for line in output.split() if line.startswith("rank-")) == ["rank-0-sum-11", "rank-1-sum-11"]
    assert slurm.requeued(tmp_path) == []


def test_the_default_is_one_rank_per_gpu_or_two_without_gpus():
    assert default_processes([]) == min(2, machine.cores())
    assert default_processes(GPUS) == 4


def test_several_nodes_meet_at_the_endpoint(tmp_path):
    command = Launch(("-m", "m"), 8, nnodes=2, endpoint="a:1", max_restarts=3).command(tmp_path, tmp_path)
    assert {"--nnodes=2", "--rdzv-endpoint=a:1", "--nproc-per-node=8", "--max-restarts=3"} <= set(command)
    assert "--standalone" not in command
    assert command[-2:] == ["-m", "m"]


def test_a_variable_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert Launch(("-m", "m"), 1).environment(Path())["OMP_NUM_THREADS"] == "7"


@each(
    ("make", "message"),
    [
        (lambda: Launch((), 1), "program"),
        (lambda: Launch(("nowhere.py",), 1), "script must be a file that exists"),
        (lambda: Launch(("-m", "m"), 0), "nproc"),
        (lambda: Launch(("-m", "m"), 1, max_restarts=-1), "max_restarts"),
        (lambda: Launch(("-m", "m"), 1, start_timeout=0), "start_timeout"),
        (lambda: Launch(("-m", "m"), 1, check_calls=-1), "check_calls"),
        (lambda: Launch(("-m", "m"), 1, hang_timeout=-1), "hang_timeout"),
    ],
)
def test_bad_launches_are_named(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "33"], "width must be a multiple of 32"),
        (["--nnodes", "2"], "need --rdzv-endpoint"),
        (["--all-reduce", "rings"], "all_reduce must be one of torch"),
        (["--all-reduce", "nowhere.json"], "not started"),
        (["--", "nowhere.py"], "script must be a file that exists"),
        (["--", "", "--epochs", "3"], "script must be a file that exists, got ''"),
        (["--", "-m"], "program must be a script, or -m and a module"),
        (["--nproc", "2", "--model", "cnn", "--batch", "1000"], "not started"),
    ],
)
def test_bad_command_lines_start_nothing(arguments, message, capsys):
    assert main(["launch", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--"], ["--", ""], ["--nproc", "2", "--", "", ""]])
def test_an_empty_variable_starts_nothing(arguments, capsys):
    """`dpbook launch -- $SCRIPT` with an empty variable does not mean the book's own program."""
    with pytest.raises(SystemExit) as end:
        main(["launch", *arguments])
    assert end.value.code == 2
    assert "expected a script after --, got nothing or an empty string" in capsys.readouterr().err


def test_a_hang_is_diagnosed_before_nccls_watchdog_aborts_the_ranks_that_wait(capsys):
    """Its clock starts at the call, as that of the launch does, up to the seconds between two looks."""
    assert min(*TORCH_TIMEOUTS, GROUP_TIMEOUT) > HANG_TIMEOUT + 30
    with pytest.raises(SystemExit):
        main(["launch", "--help"])
    assert f"(default: {HANG_TIMEOUT:g}, " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("flag", ["--help", "--program-help"])
def test_help_loads_no_torch(flag):
    code = f"""
import sys
from dpbook.app import main
try:
    main(["launch", {flag!r}])
except SystemExit:
    pass
print("torch" in sys.modules)
"""
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout.root(), capture_output=True, text=True, check=True
    )
    assert child.stdout.splitlines()[-1] == "False"
    assert "--" in child.stdout


@pytest.fixture
def written(tmp_path):
    """Return the logs of torchrun: rank 1 printed something in the second attempt, rank 2 nothing."""
    folder = tmp_path / "logs"
    for attempt in (0, 1):
        for rank in (1, 2):
            path = folder / f"none_x3/attempt_{attempt}/{rank}"
            path.mkdir(parents=True)
            for name in ("stdout.log", "stderr.log"):
                (path / name).write_text("printed" if (attempt, rank, name) == (1, 1, "stderr.log") else "")
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_only_logs_with_content_stay(written):
    assert launcher.tidy_logs(written)
    assert files(written) == {"attempt_1/1/stderr.log": "printed"}
    assert [path.name for path in written.iterdir()] == ["attempt_1"]


def test_empty_logs_leave_no_folder(written):
    (written / "none_x3/attempt_1/1/stderr.log").write_text("")
    assert not launcher.tidy_logs(written)
    assert not written.exists()


def test_kept_logs_overwrite_nothing(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher.time, "strftime", lambda form: "now")
    launcher.tidy_logs(written)
    copies = [launcher.keep_logs(written, "train") for _ in range(2)]
    assert [str(path) for path in copies] == ["runs/logs/train-now", "runs/logs/train-now-2"]
    assert [files(path) for path in copies] == [files(written)] * 2


def test_a_full_disk_does_not_hide_why_a_launch_failed(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    assert launcher.keep_logs(written, "train") is None
