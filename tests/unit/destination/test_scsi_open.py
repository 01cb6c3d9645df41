"""A library behind the kernel's devices, opened: which of its drives can be leased between hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.library import scsi_open
from nightferry.destination.tape.library.scsi_library import ScsiLibrary
from nightferry.destination.tape.library.scsi_open import Options, open_scsi
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive


class NoLeases:
    """Leases that are never asked for one."""

    token = "ours"

    def try_take(self, serial: str, dead: str) -> None:
        raise AssertionError(serial)

    def close(self) -> None:
        """Nothing to give back."""


def opened(monkeypatch: pytest.MonkeyPatch, drive: str, options: Options) -> ScsiLibrary:
    """The library of one drive, which is reached through ``drive``."""
    device = ScriptedDrive("HU1")
    devices = {"/dev/sg9": ScriptedChanger([device], [], 4), drive: device}
    monkeypatch.setattr(scsi_open, "SgTransport", lambda path: devices[str(path)])
    monkeypatch.setattr(scsi_open, "is_tape_node", lambda path: "nst" in path.name)
    return open_scsi(Path("/dev/sg9"), (Path(drive),), options, SYSTEM_CLOCK)


@pytest.mark.parametrize(
    ("drive", "leases", "one_host", "fails"),
    [
        ("/dev/nst0", NoLeases(), False, True),
        ("/dev/nst0", NoLeases(), True, False),
        ("/dev/nst0", None, False, False),
        ("/dev/sg1", NoLeases(), False, False),
    ],
)
def test_check_fails_where_hosts_share_a_drive_that_cannot_be_reset(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    drive: str,
    leases: NoLeases | None,
    one_host: bool,
    fails: bool,
) -> None:
    options = Options(locks=(tmp_path,), leases=leases, one_host=one_host)
    library = opened(monkeypatch, drive, options)
    found = {f.id: f for f in library.check()}
    assert ("NF-TAPE-012" in found) is fails
    if fails:
        assert found["NF-TAPE-012"].severity == "fail"
        assert "/dev/sg*" in found["NF-TAPE-012"].fix
    library.close()
