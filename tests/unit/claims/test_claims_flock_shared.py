"""Who reads from a BACK group's disk, and who may move it."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from nightferry.claims.flock import FlockShared
from nightferry.errors import BusyError, ClusterError
from tests.conftest import needs
from tests.support.disks import bound_read_only


@pytest.fixture
def again(tmp_path):
    """Opens the leases as another process would."""
    return lambda: FlockShared(tmp_path / "TEX-BACK-1.readers", "TEX-BACK-1")


@pytest.fixture
def leases(again):
    return again()


def test_a_reader_keeps_the_disk_and_is_named(leases, again):
    mover = again()
    with leases.read("stage two of the night"):
        assert [r.who for r in mover.readers()] == ["stage two of the night"]
        with pytest.raises(BusyError, match=f"stage two of the night .pid {os.getpid()}"), mover.exclusive():
            pass
    assert mover.readers() == []
    with mover.exclusive():
        pass


def test_several_readers_share_the_disk(leases, again):
    with leases.read("one"), again().read("two"):
        assert [r.who for r in leases.readers()] == ["one", "two"]


def test_nobody_begins_to_read_while_the_disk_moves(leases, again):
    with (
        leases.exclusive(),
        pytest.raises(BusyError, match="about to move"),
        again().read("late"),
    ):
        pass


def test_a_killed_readers_lease_ends_with_it(leases, tmp_path):
    program = (
        "import sys, pathlib, time\n"
        "from nightferry.claims.flock import FlockShared\n"
        "with FlockShared(pathlib.Path(sys.argv[1]), 'TEX-BACK-1').read('killed'):\n"
        "    print('reading', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "TEX-BACK-1.readers")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout.readline() == "reading\n"
        assert [r.who for r in leases.readers()] == ["killed"]
        reader.send_signal(signal.SIGKILL)
        reader.wait()
    assert leases.readers() == []
    with leases.exclusive():
        pass
    assert [path.name for path in (tmp_path / "TEX-BACK-1.readers").iterdir()] == ["lock"]


@needs("mount")
def test_a_restore_reads_where_no_lease_can_be_written_and_keeps_the_disk(tmp_path, again):
    folder = tmp_path / "TEX-BACK-1.readers"
    with again().read("an earlier one"):
        pass
    said = []
    with bound_read_only(folder):
        with pytest.raises(ClusterError, match="Read-only"), again().read("stage two"):
            pass
        with again().read("restore of a", warn=said.append):
            [notice] = said
            assert "has no name" in notice
            assert "Read-only" in notice
            assert again().readers() == []
            lock = os.open(folder / "lock", os.O_RDONLY)
            try:
                with pytest.raises(BlockingIOError):  # what the mover of another node would meet
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(lock)
    with again().exclusive():
        pass


@needs("mount")
def test_a_restore_reads_where_there_never_was_a_lease(tmp_path):
    said = []
    with (
        bound_read_only(tmp_path),
        FlockShared(tmp_path / "n.readers", "n").read("restore", warn=said.append),
    ):
        assert len(said) == 1


def test_what_killed_readers_left_is_cleared_and_a_living_one_keeps_its_lease(leases, again, tmp_path):
    folder = tmp_path / "TEX-BACK-1.readers"
    with again().read("living"):
        (folder / "vm-1-0123456789ab.json").write_text("{}")
        (folder / "vm-1-0123456789ab.draft").write_text("")
        leases.clear()
        assert [r.who for r in leases.readers()] == ["living"]
        assert not (folder / "vm-1-0123456789ab.json").exists()
    leases.clear()
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_clearing_where_nobody_ever_read_writes_nothing(leases, tmp_path):
    leases.clear()
    assert list(tmp_path.iterdir()) == []
