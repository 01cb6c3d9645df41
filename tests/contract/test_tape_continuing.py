"""An image goes on behind its last whole part: on a virtual library, behind tgtd, and on a scripted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nightferry.destination.base import Receipt
from nightferry.destination.tape.drives.base import Mark
from nightferry.destination.tape.library.changer import Address, Library
from nightferry.errors import Cancelled, NoScratch
from nightferry.progress import Cancel
from tests.support.outgoing import MIB, at_chunk, put
from tests.support.outgoing import PlainImage as Image
from tests.support.tape_process import LastingRegister, Process
from tests.support.tape_shops import BARCODES, KINDS, Shop
from tests.support.tapes import Said, barcodes, read_all

pytestmark = pytest.mark.usefixtures("no_power_cuts")


Open = Callable[..., Process]


@pytest.fixture
def register(tmp_path: Path) -> LastingRegister:
    return LastingRegister(tmp_path / "register")


@pytest.fixture
def process(shop: Shop, register: LastingRegister) -> Iterator[Open]:
    opened: list[Process] = []

    def one(pool: list[str] = BARCODES) -> Process:
        for before in opened:
            before.tape.close()
        opened.append(Process(shop.open(), register, pool))
        return opened[-1]

    yield one
    for each in opened:
        each.tape.close()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """A tar that GNU tar made, of about 30 MiB: five cartridges."""
    (tmp_path / "content").write_bytes(os.urandom(30 * MIB - 12_345))
    subprocess.run(["tar", "cf", "image.tar", "content"], cwd=tmp_path, check=True)
    return Image("20261130-TEX-BACK-1.SG1.a.L0", (tmp_path / "image.tar").read_bytes())


def by_hand(library: Library, receipt: Receipt) -> bytes:
    """The parts of a copy, read by nothing but a drive, in the order of its location."""
    found = b""
    drive = library.drives[0]
    for part in receipt.location["parts"]:
        slot = next(e.address for e in library.changer.inventory() if e.barcode == part["barcode"])
        library.changer.move(slot, Address("drive", 0))
        drive.load()
        drive.space_filemarks(part["file"])
        while isinstance(record := drive.read_record(), bytes):
            found += record
        drive.unload()
        library.changer.move(Address("drive", 0), slot)
    return found


def compares(data: bytes, folder: Path) -> bool:
    """Whether GNU tar finds in the archive what lies in the folder."""
    return subprocess.run(["tar", "df", "-"], cwd=folder, input=data, check=False).returncode == 0


def test_an_image_that_ran_out_of_cartridges_goes_on_behind_its_last_whole_part(
    shop: Shop, process: Open, image: Image, tmp_path: Path
) -> None:
    first = process(BARCODES[:2])
    with pytest.raises(NoScratch, match="no scratch cartridge in pool daily"):
        put(first.tape, image)
    left = first.tape.unfinished(image.image, 1)
    assert left is not None
    assert [part["barcode"] for part in left["parts"]] == BARCODES[:2]
    second = process()
    said = Said()
    receipt = put(second.tape, image, progress=said)
    assert receipt.location["parts"][:2] == left["parts"]
    assert f"{image.image} continues after part 2, on {BARCODES[1]}" in said.lines
    assert receipt.streamed is not None
    assert receipt.streamed.size_bytes == sum(p["bytes"] for p in receipt.location["parts"][2:])
    # Each cartridge of the parts was mounted once to prove them, and never written to.
    assert [second.mounted.count(barcode) for barcode in BARCODES[:2]] == [1, 1]
    assert [(f.image, f.epoch, f.location) for f in second.tape.scan()] == [
        (image.image, 1, receipt.location)
    ]
    assert read_all(second.tape, receipt) == image.data
    second.tape.close()
    library = shop.open()
    assert compares(by_hand(library, receipt), tmp_path)
    library.close()


def test_the_number_of_cartridges_that_are_missing_is_enough(process: Open, image: Image) -> None:
    first = process(BARCODES[:1])
    with pytest.raises(NoScratch) as refused:
        put(first.tape, image)
    missing = int(refused.value.message.split(": ")[1].split()[0])
    assert f"put {missing} blank cartridges" in refused.value.hint
    enough = process(BARCODES[: 1 + missing])
    assert len(set(barcodes(put(enough.tape, image)))) > 1


def missing_of(process: Open, image: Image, pool: list[str]) -> tuple[int, float]:
    """How many cartridges are missing by the message, and for how many MiB, when the pool has but these."""
    tape = process(pool).tape
    if tape.find(image.image, 1) is None:  # as the night looks before it goes on
        tape.remember(image.image, 1, tape.unfinished(image.image, 1) or {})
    with pytest.raises(NoScratch) as refused:
        put(tape, image)
    number, _, _, size, unit = refused.value.message.split(": ")[1].split()
    assert unit == "MiB"
    return int(number), float(size)


def require_no_fewer(process: Open, image: Image, had: int) -> None:
    """As many cartridges as the message says are enough, and one fewer is not."""
    missing, size = missing_of(process, image, BARCODES[:had])
    left = process(BARCODES[:had]).tape.unfinished(image.image, 1)
    assert left is not None
    assert size == round((image.size_bytes - sum(part["bytes"] for part in left["parts"])) / MIB, 1)
    if missing > 1:
        assert missing_of(process, image, BARCODES[: had + missing - 1])[0] == 1
    enough = process(BARCODES[: had + missing])
    enough.tape.unfinished(image.image, 1)
    receipt = put(enough.tape, image)
    assert read_all(enough.tape, receipt) == image.data
    assert set(barcodes(receipt)) - set(BARCODES[:had]) == set(BARCODES[had : had + missing])


@pytest.mark.parametrize("mib", [8, 14, 15, 21, 22, 30])
def test_no_fewer_cartridges_would_do_than_are_said_to_be_missing(
    request: pytest.FixtureRequest, tmp_path: Path, register: LastingRegister, mib: int
) -> None:
    """Seven records fit on a cartridge of 8 MiB, and the final trailer behind them: at 14 and 21 MiB two and three."""
    shop = KINDS["virtual"](tmp_path, request)
    image = Image("20261130-TEX-BACK-1.SG1.a.L0", os.urandom(mib * MIB))
    require_no_fewer(lambda pool: Process(shop.open(), register, pool), image, 1)


@pytest.mark.parametrize("at", ["label", "part", "trailer", "claim", "record"])
def test_no_fewer_cartridges_would_do_after_a_kill_than_are_said_to_be_missing(
    request: pytest.FixtureRequest, tmp_path: Path, register: LastingRegister, image: Image, at: str
) -> None:
    shop = KINDS["virtual"](tmp_path, request)
    command = [sys.executable, "-m", "tests.support.tape_dying", str(tmp_path), shop.portal, image.image, at]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    register.reload()
    require_no_fewer(lambda pool: Process(shop.open(), register, pool), image, 2)


def test_an_empty_pool_costs_no_mounts(process: Open, image: Image) -> None:
    with pytest.raises(NoScratch):
        put(process(BARCODES[:2]).tape, image)
    before = process(BARCODES[:2]).tape.unfinished(image.image, 1)
    assert before is not None
    again = process(BARCODES[:2])
    again.tape.remember(image.image, 1, before)
    left = image.size_bytes - sum(part["bytes"] for part in before["parts"])
    for _ in range(3):
        with pytest.raises(NoScratch, match=f"missing for {left / MIB:.1f} MiB"):
            put(again.tape, image)
        assert again.tape.unfinished(image.image, 1) == before
    assert again.mounted == []


def test_looking_for_earlier_epochs_mounts_each_cartridge_once_and_never_a_retired_one(
    process: Open, register: LastingRegister, image: Image
) -> None:
    with pytest.raises(NoScratch):
        put(process(BARCODES[:3]).tape, image)
    register.record(register.kept[BARCODES[1]].model_copy(update={"state": "retired"}))
    looking = process()
    for epoch in (1, 2, 3, 1):
        assert looking.tape.find(image.image, epoch) is None
    assert sorted(looking.mounted) == [BARCODES[0], BARCODES[2]]


@pytest.mark.parametrize("harm", ["record", "label", "away"])
def test_a_part_that_is_not_proven_is_not_gone_on_behind(
    process: Open, register: LastingRegister, image: Image, harm: str
) -> None:
    """It goes on behind those before it, or from the beginning, and the copy is whole."""
    with pytest.raises(NoScratch):
        put(process(BARCODES[:2]).tape, image)
    second = process(BARCODES[2:])
    if harm == "record":
        for drive in second.library.drives:

            def garbled(*limit: int, read: Callable[..., bytes | Mark] = drive.read_record) -> bytes | Mark:
                data = read(*limit)
                return bytes(MIB) if isinstance(data, bytes) and len(data) == MIB else data

            drive.read_record = garbled  # type: ignore[method-assign]
    elif harm == "label":
        known = register.kept[BARCODES[1]]
        register.record(known.model_copy(update={"label": "0" * 32}))
    else:
        place = next(e.address for e in second.library.changer.inventory() if e.barcode == BARCODES[0])
        second.library.changer.move(place, Address("port", 0))
    receipt = put(second.tape, image)
    kept = {"record": 0, "label": 1, "away": 0}[harm]
    assert barcodes(receipt)[:kept] == BARCODES[:kept]
    assert not set(barcodes(receipt)[kept:]) & set(BARCODES[:2])
    if harm != "record":
        assert read_all(second.tape, receipt) == image.data


def test_an_image_with_other_content_begins_from_its_beginning(process: Open, image: Image) -> None:
    with pytest.raises(NoScratch):
        put(process(BARCODES[:2]).tape, image)
    other = Image(image.image, os.urandom(30 * MIB))
    tape = process(BARCODES[2:]).tape
    receipt = put(tape, other)
    assert not set(barcodes(receipt)) & set(BARCODES[:2])
    assert read_all(tape, receipt) == other.data


def test_a_stopped_image_goes_on_behind_its_parts(process: Open, image: Image) -> None:
    stop = Cancel()
    image.on_chunk = at_chunk(20, lambda: stop.set("by hand"))
    with pytest.raises(Cancelled):
        put(process().tape, image, cancel=stop)
    image.on_chunk = lambda number: None
    tape = process().tape
    said = Said()
    receipt = put(tape, image, progress=said)
    assert [line for line in said.lines if "continues after part" in line]
    assert read_all(tape, receipt) == image.data
    assert [(f.image, f.epoch) for f in tape.scan()] == [(image.image, 1)]


KILLABLE = [
    pytest.param("virtual"),
    pytest.param("tgtd", marks=[pytest.mark.server, pytest.mark.xdist_group("tgtd")]),
]


@pytest.mark.parametrize("at", ["label", "part", "trailer", "claim", "record"])
@pytest.mark.parametrize("kind", KILLABLE)
def test_a_killed_process_leaves_parts_that_the_next_goes_on_behind(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    register: LastingRegister,
    image: Image,
    kind: str,
    at: str,
) -> None:
    """Killed with the second part under way: between two parts, within one, within its trailer."""
    shop = KINDS[kind](tmp_path, request)
    command = [sys.executable, "-m", "tests.support.tape_dying", str(tmp_path), shop.portal, image.image, at]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    register.reload()
    process = Process(shop.open(), register, BARCODES)
    assert process.tape.find(image.image, 1) is None
    left = process.tape.unfinished(image.image, 1)
    assert left is not None
    whole = len(left["parts"])
    # A trailer that lacks nothing but its filemark is whole where the drive has kept it.
    assert whole in {"label": [1], "part": [1], "trailer": [1, 2], "claim": [2], "record": [2]}[at]
    assert [part["barcode"] for part in left["parts"]] == BARCODES[:whole]
    receipt = put(process.tape, image)
    assert receipt.location["parts"][:whole] == left["parts"]
    assert read_all(process.tape, receipt) == image.data
    assert [(f.image, f.epoch, f.location) for f in process.tape.scan()] == [
        (image.image, 1, receipt.location)
    ]
    process.tape.close()
    library = shop.open()
    assert compares(by_hand(library, receipt), tmp_path)
    library.close()
