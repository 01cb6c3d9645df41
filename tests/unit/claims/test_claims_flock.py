import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightferry.claims.flock import FlockClaim, FlockClaims
from nightferry.errors import BusyError, CatalogError

ROOT = Path(__file__).parents[3]
AT = datetime(2026, 3, 8, 2, 0, tzinfo=UTC)

HOLDER = """
import sys
from pathlib import Path
from nightferry.claims.flock import FlockClaim
lock = FlockClaim(Path(sys.argv[1]), "TEX-BACK-1", node="TEX-ACTV-1").acquire("20260307-TEX-BACK-1", "20260307")
print("held", flush=True)
sys.stdin.readline()
"""


class StoppedClock:
    def __init__(self) -> None:
        self.waited = 0.0

    def now(self) -> datetime:
        return AT

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.waited += seconds


def lock(folder: Path, back_group: str = "TEX-BACK-1") -> FlockClaim:
    return FlockClaim(folder, back_group, node="TEX-PASS-1", clock=StoppedClock())


def test_a_second_process_is_told_who_holds_the_lock_until_it_dies(tmp_path: Path) -> None:
    program = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        mine = lock(tmp_path)
        with pytest.raises(BusyError) as caught:
            mine.acquire("20260308-TEX-BACK-1", "20260308")
        for part in ("TEX-BACK-1 is busy", "20260307-TEX-BACK-1", "TEX-ACTV-1", str(process.pid)):
            assert part in caught.value.message
        assert not mine.held
        holder = mine.holder()
        assert holder is not None
        assert (holder.run, holder.window, holder.pid) == ("20260307-TEX-BACK-1", "20260307", process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert mine.holder() is None
    with mine.acquire("20260308-TEX-BACK-1", "20260308"):
        assert mine.held


def test_locks_of_two_back_groups_do_not_meet(tmp_path: Path) -> None:
    with (
        lock(tmp_path, "A").acquire("r1", "20260308"),
        lock(tmp_path, "B").acquire("r2", "20260308"),
    ):
        pass


def test_a_released_lock_is_free_and_names_nobody(tmp_path: Path) -> None:
    one, two = lock(tmp_path), lock(tmp_path)
    assert two.holder() is None
    one.acquire("r1", "20260308")
    holder = two.holder()
    assert holder is not None
    assert (holder.node, holder.pid, holder.since) == ("TEX-PASS-1", os.getpid(), AT)
    with pytest.raises(BusyError, match="already locked by this process"):
        one.acquire("r1", "20260308")
    with pytest.raises(BusyError, match="run r1 on node TEX-PASS-1"):
        two.acquire("r2", "20260308")
    one.release()
    one.release()
    assert two.holder() is None
    two.acquire("r2", "20260308").release()


def test_a_program_started_under_the_lock_does_not_keep_it(tmp_path: Path) -> None:
    mine = lock(tmp_path).acquire("r1", "20260308")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
        mine.release()
        lock(tmp_path).acquire("r2", "20260308").release()


def test_a_note_that_a_crash_cut_off_does_not_hide_the_lock(tmp_path: Path) -> None:
    mine = lock(tmp_path).acquire("r1", "20260308")
    path = tmp_path / "locks" / "TEX-BACK-1.lock"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b'{"run": ')
    with pytest.raises(BusyError, match="another process"):
        lock(tmp_path).acquire("r2", "20260308")
    mine.release()


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(CatalogError, match="not a name"):
            FlockClaim(tmp_path, name)
        with pytest.raises(CatalogError, match="not a name"):
            FlockClaims(tmp_path).shared(name)


def test_a_catalog_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="absent"):
        lock(tmp_path / "absent").acquire("r", "20260308")
