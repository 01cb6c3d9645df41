"""Who keeps a file system busy."""

import os
import subprocess
import sys

import pytest

from nightferry.cluster.busy import users_of
from tests.conftest import needs

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root"),
    needs("mount", "fuser"),
]

USES = {
    "an open file": "held = open('{path}/file')",
    "a working folder": "import os; os.chdir('{path}')",
    "a mapped file": (
        "import mmap; f = open('{path}/file', 'rb'); held = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()"
    ),
}


@pytest.fixture
def disk(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    (tmp_path / "file").write_text("content")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_a_disk_that_nobody_uses_is_free(disk):
    assert users_of(disk) == []


@pytest.mark.parametrize("use", USES)
def test_its_users_are_named(disk, use):
    program = USES[use].format(path=disk) + "; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        user.stdout.readline()
        (named,) = users_of(disk)
        assert named.endswith(f" (pid {user.pid})")
        asked = subprocess.run(["fuser", "-m", disk], capture_output=True, text=True)
        assert asked.stdout.split() == [str(user.pid)]
        user.communicate("\n")
    assert users_of(disk) == []
