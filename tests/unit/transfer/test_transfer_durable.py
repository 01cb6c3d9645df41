"""Small files whole or absent, and the drafts of writers that died."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from nightferry.transfer.durable import create_file, remove_dead_drafts, replace_file

DIES = """
import os, signal, sys
from pathlib import Path
from nightferry.transfer import durable
os.{call} = lambda *names: {end}
durable.{write}(Path(sys.argv[1]), b"half")
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
WAITS = "(print('ready', flush=True), sys.stdin.read())"


def writer(path: Path, write: str, end: str) -> list[str]:
    call = "replace" if write == "replace_file" else "link"
    return [sys.executable, "-c", DIES.format(call=call, end=end, write=write), str(path)]


@pytest.mark.parametrize("write", ["create_file", "replace_file"])
def test_the_draft_of_a_writer_that_was_killed_is_removed(tmp_path: Path, write: str) -> None:
    assert subprocess.run(writer(tmp_path / "x", write, KILLED)).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    remove_dead_drafts(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("write", ["create_file", "replace_file"])
def test_the_draft_of_a_living_writer_stays(tmp_path: Path, write: str) -> None:
    command = writer(tmp_path / "x", write, WAITS)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        remove_dead_drafts(tmp_path)
        assert len(os.listdir(tmp_path)) == 1
        process.kill()
        process.communicate()


def test_what_is_no_draft_stays_and_a_missing_folder_has_none(tmp_path: Path) -> None:
    replace_file(tmp_path / "x", b"1")
    create_file(tmp_path / "y", b"2")
    remove_dead_drafts(tmp_path)
    remove_dead_drafts(tmp_path / "absent")
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def _write(folder: Path, number: int) -> None:
    for turn in range(200):
        replace_file(folder / f"of-{number}", str(turn).encode())
        create_file(folder / f"{number}-{turn}", b"")


def test_clearing_beside_writers_takes_nothing_from_them(tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        writers = [pool.submit(_write, tmp_path, number) for number in range(2)]
        while not all(writer.done() for writer in writers):
            remove_dead_drafts(tmp_path)
        for writer in writers:
            writer.result()
    assert len(os.listdir(tmp_path)) == 402
