"""A whole night on a library that plays what no target on loopback does: a drive that asks for cleaning in mid-image,
cartridges that refuse, a foreign one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nightferry.destination.tape.drives.scsi import ScsiDrive
from nightferry.destination.tape.library import scsi_open
from nightferry.destination.tape.library.scsi_changer import ScsiChanger
from nightferry.destination.tape.library.scsi_library import ScsiLibrary
from nightferry.errors import WrongCartridge
from nightferry.model.records import DriveRecord
from nightferry.progress import Quiet
from nightferry.site.destinations import destination_of
from tests.support.brought import bring_back
from tests.support.night import night
from tests.support.outside import compare_tree
from tests.support.scripted_library import ScriptedChanger, ScriptedDrive, Tape
from tests.support.small_site import BACK_GROUP, SmallSite

CLEAN_NOW = 20
FOREIGN = [b"somebody else's backup", None]


class AsksInMidImage(Quiet):
    """Sets a drive's flag when the first image is on its way, and keeps what is said."""

    def __init__(self, drives: list[ScriptedDrive]) -> None:
        self._drives = drives
        self.said: list[str] = []

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        while self._drives:
            self._drives.pop().alerts.add(CLEAN_NOW)

    def say(self, text: str, subject: str = "") -> None:
        self.said.append(text)


def test_a_drive_is_cleaned_between_two_images_and_what_refuses_or_is_foreign_is_left_alone(
    make_site: Callable[..., SmallSite], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drives = [ScriptedDrive("HU0")]
    tapes = {
        "protected": Tape("A00001L9", write_protected=True),
        "foreign": Tape("A00002L9", blocks=list(FOREIGN)),
        "worm": Tape("A00003L9", worm=True),
        "cleaning": Tape("CLN001L1", cleaning=True),
        "plain": Tape("A00004L9"),
    }
    changer = ScriptedChanger(drives, list(tapes.values()), slots=8)

    def opened_library(*_: Any) -> ScsiLibrary:
        over = ScsiChanger(changer)
        devices = [
            ScsiDrive(n, d, 256 << 10, lambda d=d: d.tape is not None)  # type: ignore[misc] # d has a default
            for n, d in enumerate(drives)
        ]
        over.watch(devices, [500 + n for n in range(len(drives))])
        return ScsiLibrary("scripted", over, devices, [d.serial for d in drives], (tmp_path,))

    monkeypatch.setattr(scsi_open, "open_iscsi", opened_library)
    names = ("a", "b", "c")
    site = make_site(
        tape='{ kind = "iscsi", portal = "127.0.0.1:1", target = "iqn.scripted" }',
        copies=("tape",),
        stores={"SG1": names},
    )
    for name in names:
        (site.store(f"SG1/{name}") / "large.bin").write_bytes(os.urandom(3 << 20))
    progress = AsksInMidImage(list(drives))
    with site.open() as opened:
        assert night(opened, BACK_GROUP, progress).result == "whole"
        copies = [opened.catalog.copies(image.image)[0] for image in opened.catalog.images()]
        # The image at hand was finished where it began, then the drive was cleaned, then the next one came.
        assert [c.lane for c in copies] == ["drive 0"] * 3
        assert [d.state for d in opened.catalog.all(DriveRecord)][:1] == ["cleaned"]
        assert len([line for line in progress.said if "loading cleaning cartridge CLN001L1" in line]) == 1
        assert not drives[0].alerts
        states = {record.barcode: record.state for record in opened.catalog.cartridges("tape")}
        assert (states["A00002L9"], states["CLN001L1"]) == ("foreign", "cleaning")
        assert [line for line in progress.said if "A00001L9 is write-protected" in line]
        for name in names:
            assert bring_back(opened, tmp_path / name, copy="tape", store=f"SG1/{name}").is_complete
            assert compare_tree(site.store(f"SG1/{name}"), tmp_path / name) == ""
    assert tapes["protected"].blocks == []
    assert tapes["foreign"].blocks == FOREIGN
    used = {part["barcode"] for copy in copies for part in copy.location["parts"]}
    assert used == {"A00003L9", "A00004L9"}
    # Only `media erase` makes the foreign one ours; `label` refuses it.
    with site.open() as opened:
        tape = destination_of(opened, "tape")
        with pytest.raises(WrongCartridge):
            tape.label("A00002L9", "daily")  # type: ignore[attr-defined] # a tape library
        assert tapes["foreign"].blocks == FOREIGN
        tape.handling.erase("A00002L9", "test")  # type: ignore[attr-defined] # a tape library
    assert tapes["foreign"].blocks[0] is not None
    assert tapes["foreign"].blocks[0].startswith(b"NIGHTFERRY TAPE LABEL 1\n")
