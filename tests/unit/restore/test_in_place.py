"""Exchanging a store with its restored content, and who uses it meanwhile."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightferry.errors import ConfigError
from nightferry.restore import in_place
from nightferry.restore.in_place import in_place_exchange, path_beside, store_in_use


def make(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "f").write_text(text)
    return path


def test_the_new_content_takes_the_place_and_the_old_stays(tmp_path: Path) -> None:
    store = make(tmp_path / "priv1", "old")
    for number, expected in enumerate(["priv1.before-R1", "priv1.before-R1-2", "priv1.before-R1-3"]):
        new = make(path_beside(store, "R1"), f"new {number}")
        before = in_place_exchange(store, new, "R1")
        assert before == tmp_path / expected
        assert (store / "f").read_text() == f"new {number}"
        assert (before / "f").read_text() == (f"new {number - 1}" if number else "old")
        assert not new.exists()


def test_a_single_file_is_exchanged_too(tmp_path: Path) -> None:
    store, new = tmp_path / "mail.db", tmp_path / "new.db"
    store.write_text("old")
    new.write_text("new")
    before = in_place_exchange(store, new, "R1")
    assert before is not None
    assert (store.read_text(), before.read_text(), before.name) == ("new", "old", "mail.db.before-R1")


def test_a_store_that_is_gone_gets_its_name_back(tmp_path: Path) -> None:
    store = tmp_path / "priv1"
    assert in_place_exchange(store, make(path_beside(store, "R1"), "new"), "R1") is None
    assert (store / "f").read_text() == "new"
    assert os.listdir(tmp_path) == ["priv1"]


def test_links_in_the_path_of_the_store_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real = make(tmp_path / "disk" / "priv1", "old")
    (tmp_path / "priv1").symlink_to(real)
    new = make(path_beside(tmp_path / "priv1", "R1"), "new")
    assert new.parent == real.parent
    assert in_place_exchange(tmp_path / "priv1", new, "R1") == tmp_path / "disk" / "priv1.before-R1"
    assert (tmp_path / "priv1").is_symlink()
    assert (real / "f").read_text() == "new"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EXDEV, errno.EBUSY])
def test_what_cannot_be_exchanged_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = make(tmp_path / "priv1", "old")
    new = make(path_beside(store, "R1"), "new")

    def refuse(first: bytes, second: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(in_place, "rename_exchange", refuse)
    with pytest.raises(ConfigError, match="cannot exchange"):
        in_place_exchange(store, new, "R1")
    assert ((store / "f").read_text(), (new / "f").read_text()) == ("old", "new")


@pytest.mark.parametrize(("point", "content"), [("rename_exchange", "old"), ("rename_noreplace", "new")])
def test_a_kill_between_the_steps_leaves_old_or_new(tmp_path: Path, point: str, content: str) -> None:
    store = make(tmp_path / "priv1", "old")
    new = make(path_beside(store, "R1"), "new")
    program = f"""
import os, signal
from pathlib import Path
from nightferry.restore import in_place
in_place.{point} = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
in_place.in_place_exchange(Path({str(store)!r}), Path({str(new)!r}), "R1")
"""
    killed = subprocess.run([sys.executable, "-c", program], cwd=Path(in_place.__file__).parents[2])
    assert killed.returncode == -9
    assert (store / "f").read_text() == content
    assert {(path / "f").read_text() for path in tmp_path.iterdir()} == {"old", "new"}


HOLD = """
import mmap, os, sys
how, path = sys.argv[1:]
if how == "open": held = open(path)
if how == "maps":
    with open(path, "r+b") as file: held = mmap.mmap(file.fileno(), 0)
if how == "cwd": os.chdir(os.path.dirname(path))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["open", "maps", "cwd"])
@pytest.mark.parametrize("single", [False, True])
def test_a_process_that_uses_the_store_is_named(tmp_path: Path, how: str, single: bool) -> None:
    store = make(tmp_path / "priv1", "content")
    asked = store / "f" if single else store
    make(tmp_path / "priv10", "another")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, how, store / "f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        used = store_in_use(asked)
        other = store_in_use(tmp_path / "priv10")
        process.communicate(b"")
    assert other.processes == ()
    if single and how == "cwd":
        assert used.processes == ()
    else:
        (line,) = used.processes
        assert f"(pid {process.pid}): {store}" in line
        assert line.startswith("python")
    assert store_in_use(store).processes == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_processes_one_may_not_look_into_are_counted(tmp_path: Path) -> None:
    program = """
import os
from pathlib import Path
from nightferry.restore.in_place import store_in_use
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(store_in_use(Path("/nowhere")).unseen)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(in_place.__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    # In a container even root may not look at everything.
    assert int(done.stdout) > store_in_use(tmp_path).unseen


def test_a_process_with_a_file_too_deep_to_name_is_one_that_was_not_seen(tmp_path: Path) -> None:
    store = make(tmp_path / "priv1", "old")
    script = """
import os
for _ in range(20):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
print("deep", flush=True)
input()
"""
    deep = subprocess.Popen(
        [sys.executable, "-c", script], cwd=store, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert deep.stdout is not None
        assert deep.stdout.readline() == "deep\n"
        with pytest.raises(OSError, match="File name too long"):
            os.readlink(f"/proc/{deep.pid}/cwd")
        with pytest.raises(PermissionError):
            in_place._first_use(f"/proc/{deep.pid}".encode(), os.fsencode(store), None)
        assert store_in_use(store).unseen > 0
    finally:
        deep.communicate("")
