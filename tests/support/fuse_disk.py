"""Mounts a file system whose every answer a test decides."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fuse_server import Node


@contextmanager
def fuse_disk(place: Path, **names: Node) -> Iterator[Path]:
    """These files and directories in an empty folder.

    Without root or /dev/fuse the test is skipped, or fails where all tests are required.
    """
    with fuse_tree(place, Node(names=names)):
        yield place


@contextmanager
def fuse_tree(place: Path, top: Node) -> Iterator[Path]:
    """The same with a top directory of the caller's."""
    stop = pytest.fail if os.environ.get("NIGHTFERRY_REQUIRE_SERVERS") == "1" else pytest.skip
    try:
        fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        stop(f"no FUSE here: {error}")
    place.mkdir(exist_ok=True)
    try:
        how = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        mounted = subprocess.run(
            ["mount", "-i", "-t", "fuse", "-o", how, "test", place],
            capture_output=True,
            text=True,
            pass_fds=(fd,),
        )
        if mounted.returncode:
            stop(f"no mounts here: {mounted.stderr.strip()}")
        program = [sys.executable, "-m", "tests.support.fuse_server", str(fd)]
        server = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=(fd,))
    finally:
        os.close(fd)
    try:
        assert server.stdin is not None
        pickle.dump(top, server.stdin)
        server.stdin.close()
        yield place
    finally:
        subprocess.run(["umount", "-f", "-l", place], check=True)
        server.kill()
        server.wait()
