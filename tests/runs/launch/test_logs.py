"""Does what the other ranks printed stay, in a folder of its own, and nothing else?"""

import pytest

from dpbook.runs.launch import logs


@pytest.fixture
def written(tmp_path):
    """What torchrun leaves: rank 1 printed something in the second attempt, rank 2 never."""
    folder = tmp_path / "logs"
    for attempt in (0, 1):
        for rank in (1, 2):
            path = folder / f"none_x3/attempt_{attempt}/{rank}"
            path.mkdir(parents=True)
            for name in ("stdout.log", "stderr.log"):
                (path / name).write_text("said" if (attempt, rank, name) == (1, 1, "stderr.log") else "")
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_only_what_was_printed_stays_where_it_is_looked_for(written):
    assert logs.tidy(written)
    assert files(written) == {"attempt_1/1/stderr.log": "said"}
    assert [path.name for path in written.iterdir()] == ["attempt_1"]


def test_where_nothing_was_printed_nothing_stays(written):
    (written / "none_x3/attempt_1/1/stderr.log").write_text("")
    assert not logs.tidy(written)
    assert not written.exists()


def test_what_is_kept_overwrites_nothing(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs.time, "strftime", lambda form: "now")
    logs.tidy(written)
    kept = [logs.keep(written, "train") for _ in range(2)]
    assert [str(path) for path in kept] == ["runs/logs/train-now", "runs/logs/train-now-2"]
    assert [files(path) for path in kept] == [files(written)] * 2


def test_a_disk_without_room_does_not_hide_why_a_launch_failed(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    assert logs.keep(written, "train") is None
