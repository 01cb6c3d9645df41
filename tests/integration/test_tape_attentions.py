"""A drive or changer that answers one command with a unit attention has not done it, and is not broken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nightferry.model.records import DriveRecord
from nightferry.scsi.iscsi import IscsiTransport
from nightferry.scsi.transport import Answer
from tests.servers.tgtd import Tgtd
from tests.support import night
from tests.support.brought import bring_back
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, SmallSite
from tests.support.tape_dump import dump, whole_copies
from tests.support.tapes import Said

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]

MIB = 1 << 20
CHECK_CONDITION = 2
POWER_ON = bytes([0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0])
"""Fixed-format sense 6/29/00: power on, reset, or a new session (SPC-5, clause 4.4.3 and annex F)."""
MakeSite = Callable[..., SmallSite]


class Attentions:
    """Answers commands by their numbers, from 1, with an attention; the device never sees those."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, numbers: set[int]) -> None:
        self.sent = 0
        execute = IscsiTransport.execute

        def answered(transport: IscsiTransport, cdb: bytes, **rest: Any) -> Answer:
            self.sent += 1
            if self.sent in numbers:
                return Answer(CHECK_CONDITION, POWER_ON, b"", 0)
            return execute(transport, cdb, **rest)

        monkeypatch.setattr(IscsiTransport, "execute", answered)


@pytest.fixture
def night_with(make_site: MakeSite, tgtd: Tgtd, tmp_path: Path) -> Callable[[set[int]], int]:
    """A night to a blank library, a restore, and what must be true after them; returns how many commands it took."""

    def run(numbers: set[int]) -> int:
        tgtd.reset(24)
        site = make_site(tape=tgtd.toml, copies=("tape",), stores={"SG1": ("a",)})
        (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(3 * MIB))
        with pytest.MonkeyPatch.context() as patch, site.open() as opened:
            attentions = Attentions(patch, numbers)
            record = night.stage_one(opened, BACK_GROUP)
            night.stage_two(opened, record, Said())
            back = tmp_path / "back"
            assert bring_back(opened, back, copy="tape", store="SG1/a").is_complete
            assert compare_tree(site.store("SG1/a"), back) == ""
            assert [r.note for r in opened.catalog.all(DriveRecord)] == [], f"commands {numbers}"
            images = [image.image for image in opened.catalog.images()]
        assert whole_copies(dump(tgtd, tmp_path)) == dict.fromkeys(images, 1)
        shutil.rmtree(back)
        shutil.rmtree(site.home)
        return attentions.sent

    return run


@pytest.mark.parametrize("gap", [0, 1], ids=["one", "two in a row"])
def test_an_attention_sets_no_drive_aside(night_with: Callable[[set[int]], int], gap: int) -> None:
    """At each of the commands by which the first cartridge is loaded, learnt and labelled."""
    whole = night_with(set())
    for number in range(whole // 3, whole // 2, 2):
        night_with({number, number + gap})


@pytest.mark.soak
@pytest.mark.parametrize("gap", range(4))
def test_an_attention_at_any_command_sets_no_drive_aside(
    night_with: Callable[[set[int]], int], gap: int
) -> None:
    for number in count(1):
        if night_with({number, number + gap}) < number:
            break
