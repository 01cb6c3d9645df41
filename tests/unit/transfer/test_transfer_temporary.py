"""Folders in the temporary directory, and those of killed processes."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nightferry.transfer.temporary import (
    PROCESS_FILE,
    clear_dead_folders,
    mark_folder,
    process_key,
    temporary_folder,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def dead_process() -> str:
    """The key of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        key = process_key(process.pid)
        process.communicate(b"\n")
    return key


def test_a_folder_is_its_owners_alone_and_goes_with_its_block(temporary: Path) -> None:
    with temporary_folder("plan") as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        clear_dead_folders()
        assert folder.is_dir()
    assert os.listdir(temporary) == []


def test_the_folder_of_a_killed_process_is_removed(temporary: Path) -> None:
    program = (
        "import os, signal; from nightferry.transfer.temporary import temporary_folder\n"
        "with temporary_folder('plan') as folder:\n"
        "    (folder / 'cib.xml').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(temporary)})
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(temporary)) == 1
    clear_dead_folders()
    assert os.listdir(temporary) == []


def test_a_marked_folder_goes_when_all_who_work_there_are_dead(temporary: Path) -> None:
    marked = temporary / "tmpabcd1234prefect"
    marked.mkdir(mode=0o700)
    mark_folder(marked, [os.getppid()])
    clear_dead_folders()
    assert marked.is_dir()
    (marked / PROCESS_FILE).write_text(f"{dead_process()}\n{process_key()}\n")
    clear_dead_folders()
    assert marked.is_dir()
    (marked / PROCESS_FILE).write_text(f"{dead_process()}\n")
    clear_dead_folders()
    assert not marked.exists()


@pytest.mark.parametrize("mark", ["", "no process\n", "1-2-3\n"])
def test_a_mark_that_proves_nothing_removes_nothing(temporary: Path, mark: str) -> None:
    folder = temporary / "somebody's"
    folder.mkdir(mode=0o700)
    (folder / PROCESS_FILE).write_text(mark)
    clear_dead_folders()
    assert folder.is_dir()


def test_what_others_may_write_into_is_never_removed(temporary: Path) -> None:
    shared = temporary / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / PROCESS_FILE).write_text(f"{dead_process()}\n")
    (temporary / f"nightferry-plan-{dead_process()}-x").symlink_to(shared)
    (temporary / f"nightferry-plan-{dead_process()}-y").write_text("a file")
    clear_dead_folders()
    assert len(os.listdir(temporary)) == 3


def test_a_number_that_another_process_has_now_is_a_dead_one(temporary: Path) -> None:
    pid, began, space, boot = process_key().split("-")
    for number, key in enumerate(
        (f"{pid}-{int(began) + 1}-{space}-{boot}", f"{pid}-{began}-{space}-00000000")
    ):
        (temporary / f"nightferry-plan-{key}-{number}").mkdir(mode=0o700)
    elsewhere = temporary / f"nightferry-plan-{pid}-{began}-{int(space) + 1}-{boot}-z"
    elsewhere.mkdir(mode=0o700)
    clear_dead_folders()
    assert os.listdir(temporary) == [elsewhere.name]
