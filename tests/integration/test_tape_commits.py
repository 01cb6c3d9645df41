"""Every commit of a tape file on a real library behind iSCSI: killed there, its answer lost there, no room there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightferry.errors import NoScratch
from nightferry.model.records import DriveRecord
from nightferry.restore import restore
from nightferry.scsi.iscsi import IscsiTransport
from nightferry.scsi.transport import Answer
from nightferry.site.opened import OpenSite
from tests.servers.tgtd import Tgtd, serving
from tests.servers.wire import Wire, wire_to
from tests.support import night
from tests.support.brought import bring_back
from tests.support.outside import compare_tree
from tests.support.small_site import BACK_GROUP, SmallSite
from tests.support.tape_dump import dump, whole_copies
from tests.support.tape_kill import open_night
from tests.support.tapes import Said

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("tgtd")]

MIB = 1 << 20
READ, WRITE, FILEMARKS = 0x08, 0x0A, 0x10
MakeSite = Callable[..., SmallSite]
Commands = Callable[[Callable[[bytes], None]], None]


@pytest.fixture
def server(tgtd: Tgtd) -> Tgtd:
    tgtd.reset(24)
    return tgtd


@pytest.fixture
def before_each(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Sees every SCSI command before it is sent."""
    execute = IscsiTransport.execute

    def install(see: Callable[[bytes], None]) -> None:
        def watched(transport: IscsiTransport, cdb: bytes, **rest: Any) -> Answer:
            see(cdb)
            return execute(transport, cdb, **rest)

        monkeypatch.setattr(IscsiTransport, "execute", watched)

    return install


def come_back(site: SmallSite, opened: OpenSite, to: Path) -> None:
    """The newest image of every store, from tape, is the store."""
    for name in site.names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        assert bring_back(opened, to / name, copy="tape", store=name).is_complete
        assert compare_tree(site.store(name), to / name) == ""


def test_a_night_killed_at_any_write_of_a_tape_file_is_finished_right(
    make_site: MakeSite, server: Tgtd, tmp_path: Path
) -> None:
    """The first night dies at the label; each after it at one write more: two records, filemark, trailer, filemark."""
    site = make_site(tape=server.toml, copies=("tape",), stores={"SG1": ("a",)})
    points = [1, 2, 3, 4, 5, 6]
    for number, point in enumerate(points):
        command = [sys.executable, "-m", "tests.support.tape_kill", str(site.home), str(number), str(point)]
        killed = subprocess.run(command, capture_output=True, timeout=60)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        with site.open(open_night(number)) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            come_back(site, opened, tmp_path / f"back{number}")
            images = [image.image for image in opened.catalog.images()]
    assert len(images) == len(points)
    assert whole_copies(dump(server, tmp_path)) == dict.fromkeys(images, 1)


@pytest.fixture
def wire(server: Tgtd) -> Iterator[Wire]:
    with wire_to(server.port) as wire:
        yield wire


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize(
    ("code", "number", "mib", "what"),
    [
        (WRITE, 1, 0, ""),
        (FILEMARKS, 1, 0, ""),
        (FILEMARKS, 2, 0, "the filemark"),
        (WRITE, -1, 0, "record 0 of the trailer"),
        (FILEMARKS, 3, 0, "the filemark of the trailer"),
        (FILEMARKS, 2, 30, "the filemark"),
        (WRITE, -1, 30, "record 0 of the trailer"),
        (FILEMARKS, 3, 30, "the filemark of the trailer"),
    ],
    ids=[
        "the label",
        "its filemark",
        "the image's filemark",
        "the trailer",
        "the trailer's filemark",
        "a part's filemark",
        "a part's trailer",
        "its trailer's filemark",
    ],
)
def test_a_commit_that_was_never_acknowledged_leaves_the_tape_as_if_it_had_been(
    make_site: MakeSite,
    server: Tgtd,
    wire: Wire,
    before_each: Commands,
    tmp_path: Path,
    code: int,
    number: int,
    mib: int,
    what: str,
    done: bool,
) -> None:
    """The label's filemark is the first; the first write behind the second is the trailer's."""
    toml = server.toml.replace(str(server.port), str(wire.port))
    site = make_site(tape=toml, copies=("tape",), stores={"SG1": ("a",)})
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(mib * MIB))
    seen: Counter[int] = Counter()
    cut: list[int] = []

    def see(cdb: bytes) -> None:
        # WRITE FILEMARKS of none only asks for early warning.
        seen[cdb[0]] += cdb[0] == WRITE or (cdb[0] == FILEMARKS and any(cdb[2:5]))
        due = seen[FILEMARKS] == 2 if number < 0 else seen[code] == number
        if cdb[0] == code and due and not cut:
            cut.append(0 if done else server.cut_sessions())
            if done:
                wire.cut_before_answer()

    before_each(see)
    said = Said()
    with site.open() as opened:
        record = night.stage_one(opened, BACK_GROUP)
        night.stage_two(opened, record, said)
        come_back(site, opened, tmp_path / "back")
        images = [image.image for image in opened.catalog.images()]
        assert not list(opened.catalog.all(DriveRecord))
        notes = [cartridge.note for cartridge in opened.catalog.cartridges("tape")]
        assert not [note for note in notes if "dead space" in note]
    assert wire.lost == done
    outcome = "was written" if done else "was not written"
    assert not what or [line for line in said.lines if f"{what} {outcome}: continuing after it" in line]
    tapes = dump(server, tmp_path)
    assert whole_copies(tapes) == dict.fromkeys(images, 1)
    # Behind the label an image, its trailer, and so on: nothing is there that no trailer names.
    assert len(tapes) == (2 if mib else 1)
    for files in tapes.values():
        trailers = [data.startswith(b".nightferry/trailer.json\0") for data in files[1:]]
        assert trailers == [False, True] * (len(files) // 2)


def test_a_full_pool_is_waited_for_and_then_says_how_many_cartridges_are_missing(
    make_site: MakeSite, tmp_path: Path
) -> None:
    with serving(tmp_path / "t", drives=1, tapes=2, cartridge_mib=8) as server:
        toml = server.toml.replace("}", ', cartridge_bytes = "6 MiB", early_warning_reserve = "1 MiB" }')
        site = make_site(tape=toml, copies=("tape",), stores={"SG1": ("a",)})
        (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(30 * MIB))
        said = Said()
        with site.open(open_night(0)) as opened:
            record = night.stage_one(opened, BACK_GROUP)
            with pytest.raises(
                NoScratch, match=r"no scratch cartridge in pool daily: \d missing for 1\d"
            ) as none:
                night.stage_two(opened, record, said)
            missing = int(none.value.message.split(": ")[1].split()[0])
            [image] = opened.catalog.images()
            [begun] = opened.catalog.copies(image.image)
            assert (begun.epoch, begun.state, len(begun.location["parts"])) == (1, "writing", 2)
            used = {c.barcode: c.used_bytes for c in opened.catalog.cartridges("tape")}
        assert [line for line in said.lines if line.startswith("waiting for")]
        assert used == {barcode: sum(map(len, files)) for barcode, files in dump(server, tmp_path).items()}
        # As many more cartridges as it said, and the rerun goes on behind what the first try wrote.
        before = dump(server, tmp_path)
        server.kill()
        server.tapes = 2 + missing
        server.start()
        with site.open(open_night(0)) as opened:
            assert night.night(opened, BACK_GROUP).result == "whole"
            [copy] = opened.catalog.all_copies(image.image)
            assert (copy.epoch, copy.state, copy.location["parts"][:2]) == (
                1,
                "verified",
                begun.location["parts"],
            )
            come_back(site, opened, tmp_path / "back")
        after = dump(server, tmp_path)
        assert {barcode: after[barcode] for barcode in before} == before
        assert set(whole_copies(dump(server, tmp_path)).values()) == {1}


def test_one_file_of_a_spanned_image_costs_three_records_and_tar_alone_reads_the_pair(
    make_site: MakeSite, server: Tgtd, before_each: Commands, tmp_path: Path
) -> None:
    site = make_site(tape=server.toml, copies=("tape",), stores={"SG1": ("a",)})
    (site.store("SG1/a") / "large.bin").write_bytes(os.urandom(30 * MIB))
    (site.store("SG1/a") / "zz.txt").write_text("the last file of the first cartridge or the next")
    with site.open() as opened:
        assert night.night(opened, BACK_GROUP).result == "whole"
    reads = []
    before_each(lambda cdb: reads.append(cdb[0]) if cdb[0] == READ else None)
    for file in ("deep/letter.txt", "zz.txt"):
        reads.clear()
        with site.open() as opened:
            image = restore.find_image(opened, "SG1", "a")
            [copy] = opened.catalog.copies(image.image)
            [full] = [
                c
                for c in opened.catalog.cartridges("tape")
                if c.barcode == copy.location["parts"][0]["barcode"]
            ]
            assert full.state == "full"
            to = tmp_path / file.replace("/", "-")
            assert bring_back(opened, to, [file], "tape", image=image).is_complete
        assert 0 < len(reads) <= 3
    # What lies on the pair, joined as dd would read it, is a tar to GNU tar.
    tapes = dump(server, tmp_path)
    parts = [tapes[part["barcode"]][part["file"]] for part in copy.location["parts"]]
    assert len(parts) == 2
    (tmp_path / "whole").mkdir()
    tar = ["tar", "--exclude=.nightferry", "-C", str(tmp_path / "whole"), "-xpf", "-"]
    subprocess.run(tar, input=b"".join(parts), check=True)
    assert compare_tree(site.store("SG1/a"), tmp_path / "whole") == ""
