"""What every destination must do, whatever it is made of."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import struct
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
from botocore.awsrequest import AWSResponse

from nightferry.copies.encode import EncodedOutgoing
from nightferry.destination.base import Outgoing, Receipt, SiteMark, encoding_of
from nightferry.destination.fsspec import FsspecDestination
from nightferry.destination.s3.destination import open_s3
from nightferry.destination.s3.wire import BoundedSession
from nightferry.destination.tape.library.destination import TapeDestination
from nightferry.destination.tape.library.pool import Pool
from nightferry.destination.tape.library.virtual import open_virtual
from nightferry.errors import (
    Cancelled,
    ConfigError,
    DestinationError,
    IntegrityError,
    MediumDamaged,
    MediumFull,
    NoScratch,
    NotOurs,
)
from nightferry.image.frames import FramedReader
from nightferry.model.destinations import S3Settings
from nightferry.model.records import CartridgeRecord, DriveRecord
from nightferry.progress import QUIET, Cancel
from nightferry.transfer.base import ByteReader
from tests.servers.ftp import PASSWORD, Ftp
from tests.servers.seaweed import KEYS, Seaweed
from tests.servers.sshd import Sshd
from tests.support.disks import small_disk
from tests.support.outgoing import MIB, at_chunk, mark, put, read_all
from tests.support.outgoing import PlainImage as Image
from tests.support.tapes import named

pytestmark = pytest.mark.usefixtures("no_power_cuts")

IMAGE = "20261110-TEX-BACK-1.SG1.a.L0"


class FileRegister:
    """Keeps cartridge records as JSON files, as a catalog would: they survive the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: dict[str, list[str]] = {}
        self.drives: list[DriveRecord] = []
        folder.mkdir(exist_ok=True)

    def cartridge(self, barcode: str) -> CartridgeRecord | None:
        path = self.folder / barcode
        return CartridgeRecord.model_validate_json(path.read_text()) if path.exists() else None

    def cartridges(self) -> list[CartridgeRecord]:
        names = [n for n in sorted(os.listdir(self.folder)) if not n.startswith(".")]
        return [CartridgeRecord.model_validate_json((self.folder / name).read_text()) for name in names]

    def record(self, cartridge: CartridgeRecord, phase: str = "result") -> None:
        fresh = self.folder / f".{cartridge.barcode}"
        fresh.write_text(cartridge.model_dump_json())
        fresh.replace(self.folder / cartridge.barcode)

    def record_after(self, known: CartridgeRecord, cartridge: CartridgeRecord) -> bool:
        if self.cartridge(cartridge.barcode) != known:
            return False
        self.record(cartridge)
        return True

    def record_drive(self, drive: DriveRecord) -> None:
        self.drives.append(drive)

    def live_images(self, barcode: str) -> list[str]:
        return self.live.get(barcode, [])


def damaged() -> None:
    raise IntegrityError("a chunk of the image is damaged")


@dataclass
class Place:
    """A destination under test: ``again`` opens it as another process would; ``flip`` damages stored data."""

    kind: str
    open: Callable[[], Any]
    flip: Callable[[bytes, int], None]
    root: Path | None = None
    """Where its objects lie as files."""
    opened: list[Any] = field(default_factory=list)

    def again(self) -> Any:
        for destination in self.opened:
            destination.close()
        self.opened.append(self.open())
        return self.opened[-1]


def _flip_in_files(folder: Path, pattern: str) -> Callable[[bytes, int], None]:
    def flip(sample: bytes, offset: int) -> None:
        for path in folder.glob(pattern):
            data = bytearray(path.read_bytes())
            at = data.find(sample)
            if at >= 0:
                data[at + offset] ^= 1
                path.write_bytes(data)
                return
        raise AssertionError("not found")

    return flip


def killed_at(commit: int, work: Callable[[], None]) -> bool:
    """Runs ``work`` in a fork, killed before its nth fsync or rename; False when it ended before that."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count() -> None:
            nonlocal seen
            seen += 1
            if seen == commit:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(real: Callable[[int], None]) -> Callable[[int], None]:
            return lambda fd: (count(), real(fd))[1]

        try:
            os.fsync, os.fdatasync = counted(os.fsync), counted(os.fdatasync)
            sys.addaudithook(lambda event, args: count() if event == "os.rename" else None)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def random_bytes(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def folder_place(tmp: Path) -> Place:
    root = tmp / "folder"
    root.mkdir(exist_ok=True)
    return Place(
        "folder",
        lambda: FsspecDestination("cloud", f"file://{root}", mark=mark),
        _flip_in_files(root, "images/*/data"),
    )


class EncodingFolder(FsspecDestination):
    """A folder with what ops puts before it: images go there encoded and are read as they were."""

    def put(self, outgoing: Outgoing, epoch: int, *rest: Any) -> Receipt:
        return super().put(EncodedOutgoing(outgoing, 1), epoch, *rest)

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        assert encoding_of(location) == "zstd"
        with super().open(location) as reader:
            chunks = len(self.side_file(location, "chunks")) // 8
            yield FramedReader(reader, plain_bytes(reader, chunks))


def plain_bytes(reader: ByteReader, chunks: int) -> int:
    """What the seek table says of an encoded image of so many chunks: each frame's plain bytes."""
    count = -(-chunks // 4)
    table = reader.read(reader.size_bytes - 9 - 12 * count, 12 * count)
    return sum(plain for _, plain, _ in struct.iter_unpack("<III", table))


def encoded_place(tmp: Path) -> Place:
    root = tmp / "folder"
    root.mkdir(exist_ok=True)
    return Place(
        "encoded",
        lambda: EncodingFolder("cloud", f"file://{root}", mark=mark),
        _flip_in_files(root, "images/*/data.zst"),
    )


def memory_place(tmp: Path) -> Place:
    root = f"/{uuid.uuid4().hex}"
    fs = fsspec.filesystem("memory")
    fs.mkdirs(root)

    def flip(sample: bytes, offset: int) -> None:
        path = next(p for p in fs.find(root) if p.endswith("/data"))
        data = bytearray(fs.cat_file(path))
        data[data.find(sample) + offset] ^= 1
        fs.pipe_file(path, bytes(data))

    return Place("memory", lambda: FsspecDestination("cloud", f"memory:/{root}", mark=mark), flip)


def sftp_place(server: Sshd) -> Place:
    root = server.folder()
    return Place(
        "sftp",
        lambda: FsspecDestination("cloud", server.url(root), options=server.options, mark=mark),
        _flip_in_files(root, "images/*/data"),
        root,
    )


def ftp_place(server: Ftp, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("NF_TEST_PASSWORD", PASSWORD)
    root = server.folder()
    return Place(
        "ftp",
        lambda: FsspecDestination(
            "cloud", server.url(root), options={"password": "env:NF_TEST_PASSWORD"}, mark=mark
        ),
        _flip_in_files(root, "images/*/data"),
        root,
    )


def tape_place(tmp: Path) -> Place:
    root = tmp / "library"

    def opened() -> TapeDestination:
        pool = Pool("daily", wait_for_media_s=0)
        library = open_virtual(root, drives=2, slots=4, cartridge_bytes=16 * MIB)
        return TapeDestination("tape", library, pool, FileRegister(tmp / "register"))

    return Place("tape", opened, _flip_in_files(root, "cartridges/*/*.tape"))


def s3_place(tmp: Path, server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Place:
    prefix = server.prefix()
    monkeypatch.setenv("NF_TEST_ACCESS", KEYS[0])
    monkeypatch.setenv("NF_TEST_SECRET", KEYS[1])
    settings = S3Settings(
        name="cloud",
        kind="s3",
        url=f"s3://{server.bucket}/{prefix}",
        endpoint=server.endpoint,
        access_key="env:NF_TEST_ACCESS",
        secret_key="env:NF_TEST_SECRET",
    )

    def flip(sample: bytes, offset: int) -> None:
        client = server.client()
        (key,) = [k for k in server.keys_below(prefix) if k.endswith("/data")]
        data = bytearray(client.get_object(Bucket=server.bucket, Key=key)["Body"].read())
        data[data.index(sample) + offset] ^= 1
        client.put_object(Bucket=server.bucket, Key=key, Body=bytes(data))

    return Place("s3", lambda: open_s3(settings, mark=mark), flip)


PLACES: dict[str, Callable[[Path], Place]] = {
    "folder": folder_place,
    "encoded": encoded_place,
    "memory": memory_place,
    "tape": tape_place,
}


@pytest.fixture(
    params=[
        *PLACES,
        pytest.param("s3", marks=[pytest.mark.server, pytest.mark.xdist_group("seaweed")]),
        pytest.param("ftp", marks=[pytest.mark.server]),
        pytest.param("sftp", marks=[pytest.mark.server, pytest.mark.xdist_group("sshd")]),
    ]
)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_power_cuts: None
) -> Iterator[Place]:
    if request.param == "s3":
        place = s3_place(tmp_path, request.getfixturevalue("seaweed"), monkeypatch)
    elif request.param == "sftp":
        place = sftp_place(request.getfixturevalue("sshd"))
    elif request.param == "ftp":
        place = ftp_place(request.getfixturevalue("ftp"), monkeypatch)
    else:
        place = PLACES[request.param](tmp_path)
    yield place
    for destination in place.opened:
        destination.close()


def test_put_then_open_gives_the_same_bytes(place: Place) -> None:
    image = Image(named("i1"), random_bytes(1, 3 * MIB + 5))
    receipt = put(place.again(), image)
    assert (receipt.size_bytes == image.size_bytes) != (place.kind == "encoded")
    assert receipt.verified == (place.kind == "s3")  # its store checks all bytes against our CRC
    assert read_all(place.again(), receipt) == image.data


def test_ranges_at_odd_offsets_are_exact(place: Place) -> None:
    image = Image(named("i1"), random_bytes(2, 2 * MIB + 77))
    destination = place.again()
    receipt = put(destination, image)
    size = image.size_bytes
    with destination.open(receipt.location) as reader:
        assert reader.size_bytes == size
        for offset, length in [
            (0, 1),
            (MIB - 1, 2),
            (size - 1, 1),
            (1, MIB),
            (MIB, 0),
            (MIB + 3, MIB),
            (5, 2 * MIB),
        ]:
            assert reader.read(offset, length) == image.data[offset : offset + length]
        with pytest.raises(IntegrityError):
            reader.read(size - 1, 2)


def test_side_files_stand_beside_the_data(place: Place) -> None:
    image = Image(named("i1"), random_bytes(3, MIB), index=random_bytes(4, 2 * MIB + 1))
    receipt = put(place.again(), image)
    destination = place.again()
    for name, data in image.side_files.items():
        if (place.kind, name) != ("encoded", "meta.json"):
            assert destination.side_file(receipt.location, name) == data
    with pytest.raises(DestinationError):
        destination.side_file(receipt.location, "../x")


def test_find_knows_a_whole_copy_and_nothing_else(place: Place) -> None:
    destination = place.again()
    assert destination.find(named("i1"), 1) is None
    receipt = put(destination, Image(named("i1"), random_bytes(1, MIB)))
    found = place.again().find(named("i1"), 1)
    assert found is not None
    assert found.location == receipt.location
    assert place.again().find(named("i1"), 2) is None
    assert place.again().find(named("i2"), 1) is None


def test_a_second_put_of_the_same_copy_writes_no_second_one(place: Place) -> None:
    image = Image(named("i1"), random_bytes(1, MIB))
    first = put(place.again(), image)
    second = put(place.again(), image)
    assert second.location == first.location
    assert len(list(place.again().scan())) == 1


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_interrupted_put_then_another_leaves_one_copy(place: Place, epoch: int) -> None:
    def crash() -> None:
        raise RuntimeError("crash")

    data = random_bytes(5, 3 * MIB)
    with pytest.raises(RuntimeError):
        put(place.again(), Image(named("i1"), data, on_chunk=at_chunk(2, crash)), 1)
    assert place.again().find(named("i1"), 1) is None
    assert list(place.again().scan()) == []
    receipt = put(place.again(), Image(named("i1"), data), epoch)
    assert read_all(place.again(), receipt) == data
    assert [(f.image, f.epoch) for f in place.again().scan()] == [(named("i1"), epoch)]


def test_cancel_stops_between_chunks_and_leaves_nothing_whole(place: Place) -> None:
    cancel = Cancel()
    image = Image(named("i1"), random_bytes(6, 4 * MIB), on_chunk=at_chunk(2, lambda: cancel.set("by hand")))
    destination = place.again()
    with pytest.raises(Cancelled):
        put(destination, image, cancel=cancel)
    assert destination.find(named("i1"), 1) is None
    assert list(destination.scan()) == []


def test_damaged_outgoing_bytes_leave_nothing_whole(place: Place) -> None:
    destination = place.again()
    with pytest.raises(IntegrityError):
        put(destination, Image(named("i1"), random_bytes(7, 3 * MIB), on_chunk=at_chunk(1, damaged)))
    assert destination.find(named("i1"), 1) is None
    whole = Image(named("i2"), random_bytes(8, MIB + 1))
    assert read_all(destination, put(destination, whole)) == whole.data
    assert [f.image for f in destination.scan()] == [named("i2")]


def test_scan_finds_exactly_the_whole_copies(place: Place) -> None:
    destination = place.again()
    images = {named(f"i{n}"): Image(named(f"i{n}"), random_bytes(n, MIB + n)) for n in range(1, 4)}
    receipts = {name: put(destination, image, epoch=n) for n, (name, image) in enumerate(images.items(), 1)}
    with pytest.raises(IntegrityError):
        put(destination, Image(named("i9"), random_bytes(9, 2 * MIB), on_chunk=at_chunk(1, damaged)))
    found = {f.image: f for f in place.again().scan()}
    assert {name: f.epoch for name, f in found.items()} == {named("i1"): 1, named("i2"): 2, named("i3"): 3}
    for name, image in images.items():
        assert found[name].location == receipts[name].location
        if place.kind == "encoded":
            assert json.loads(found[name].meta) == {"image": name, "encoding": "zstd", "data": "data.zst"}
        else:
            assert found[name].meta == image.side_files["meta.json"]


def test_an_encoded_image_is_refused_where_only_plain_ones_lie(tmp_path: Path) -> None:
    destination = tape_place(tmp_path).again()
    with pytest.raises(ConfigError, match="images on tape are plain"):
        put(destination, EncodedOutgoing(Image(named("i1"), random_bytes(1, MIB)), 1))
    assert destination.find(named("i1"), 1) is None
    destination.close()


def test_two_lanes_write_at_once(place: Place) -> None:
    destination = place.again()
    meet = threading.Barrier(2, timeout=20)
    images = [
        Image(named(f"i{n}"), random_bytes(n, 2 * MIB), on_chunk=at_chunk(1, meet.wait)) for n in (1, 2)
    ]
    receipts: dict[str, Receipt] = {}

    def work(image: Image) -> None:
        receipts[image.image] = put(destination, image)

    threads = [threading.Thread(target=work, args=(image,)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receipts[named("i1")].lane != receipts[named("i2")].lane
    for image in images:
        assert read_all(destination, receipts[image.image]) == image.data


def test_lanes_beyond_the_last_wait_until_one_is_free(place: Place) -> None:
    destination = place.again()
    cancel = Cancel()
    cancel.set("enough")
    lanes = [destination.lane(progress=QUIET, cancel=Cancel()) for _ in range(destination.lanes)]
    holders = [threading.Thread(target=lane.__enter__) for lane in lanes]
    for holder in holders:
        holder.start()
        holder.join()
    with pytest.raises(Cancelled), destination.lane(progress=QUIET, cancel=cancel):
        pass
    for lane in lanes:
        lane.__exit__(None, None, None)
    with destination.lane(progress=QUIET, cancel=cancel):
        pass


def test_a_removed_copy_is_not_found_where_room_comes_back_at_once(place: Place) -> None:
    destination = place.again()
    receipt = put(destination, Image(named("i1"), random_bytes(1, MIB)))
    destination.remove(receipt.location)
    if place.kind == "tape":
        assert destination.find(named("i1"), 1) is not None
    else:
        assert destination.find(named("i1"), 1) is None
        with pytest.raises(MediumDamaged), destination.open(receipt.location):
            pass


def test_an_expired_copy_leaves_nothing_and_expires_again_without_complaint(place: Place) -> None:
    destination = place.again()
    kept = put(destination, Image(named("i2"), random_bytes(2, MIB)))
    receipt = put(destination, Image(named("i1"), random_bytes(1, MIB)))
    assert destination.locked(receipt.location) is None
    for _ in range(2):
        assert destination.expire(receipt.location, "d1") == ""
    if place.kind != "tape":
        assert [found.image for found in destination.scan()] == [named("i2")]
    assert len(read_all(destination, kept)) == MIB


def test_whole_copies_are_no_orphans_however_old(place: Place) -> None:
    destination = place.again()
    put(destination, Image(IMAGE, random_bytes(1, MIB)))
    assert list(destination.orphans(datetime.now(UTC) + timedelta(days=400))) == []


def test_what_another_site_wrote_is_neither_written_over_nor_removed(place: Place) -> None:
    if place.kind == "tape":
        return  # a cartridge is known by its label
    first = place.again()
    image = Image(IMAGE, random_bytes(1, MIB))
    receipt = put(first, image)
    first._mark = lambda: SiteMark("OHIO", "f" * 32)
    with pytest.raises(NotOurs, match=r"belongs to site TEX \(id 01234567\), not to site OHIO"):
        put(first, image, 2)
    with pytest.raises(NotOurs):
        first.expire(receipt.location, "d1")
    assert list(first.orphans(datetime.now(UTC) + timedelta(days=400))) == []
    assert read_all(place.again(), receipt) == image.data


def test_a_flipped_byte_reaches_the_caller_who_compares(place: Place) -> None:
    image = Image(named("i1"), random_bytes(1, 2 * MIB))
    receipt = put(place.again(), image)
    place.flip(image.data[MIB : MIB + 64], 3)  # random bytes lie in a frame as they are
    if place.kind == "encoded":
        with pytest.raises(IntegrityError, match="frame 0 of the encoded copy is damaged"):
            read_all(place.again(), receipt)
        return
    read = read_all(place.again(), receipt)
    assert [n for n, (a, b) in enumerate(zip(read, image.data, strict=True)) if a != b] == [MIB + 3]


def test_no_room_is_said_and_leaves_nothing_whole(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = place.again()
    if place.kind == "tape":
        with pytest.raises(NoScratch, match="1 missing"):
            put(destination, Image(named("i1"), random_bytes(1, 70 * MIB)))
    elif place.kind in ("sftp", "ftp"):
        assert place.root is not None
        with small_disk(place.root, 8 * MIB):
            # FTP has no word for it that a client could read, and may just see a connection that was cut.
            with pytest.raises(MediumFull if place.kind == "sftp" else DestinationError) as caught:
                put(destination, Image(named("i1"), random_bytes(1, 10 * MIB)))
            assert place.kind == "ftp" or not caught.value.retryable
            assert destination.find(named("i1"), 1) is None
            assert list(destination.scan()) == []
            assert [p for p in place.root.rglob("*") if p.is_file()] == []
            put(destination, Image(named("i1"), random_bytes(1, MIB)))
        return
    else:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def answer_507(self: BoundedSession, request: Any, **_: Any) -> AWSResponse:
            answer = send(self, request)
            if request.method != "PUT":
                return answer
            return AWSResponse(answer.url, 507, answer.headers, answer.raw)

        send = BoundedSession.send
        with monkeypatch.context() as patch:
            patch.setattr(BoundedSession, "send", answer_507)
            patch.setattr(os, "write", full)
            patch.setattr("fsspec.implementations.memory.MemoryFile.write", full)
            destination = place.again()
            with pytest.raises(MediumFull) as caught:
                put(destination, Image(named("i1"), random_bytes(1, MIB)))
        destination = place.again()
        assert not caught.value.retryable
    assert destination.find(named("i1"), 1) is None
    assert list(destination.scan()) == []


def test_catalog_copies_are_taken(place: Place) -> None:
    destination = place.again()
    for number in range(5):
        destination.put_catalog(f"catalog-2026111{number}T000000Z.parquet", random_bytes(number, 1000))
    image = Image(named("i1"), random_bytes(1, MIB))
    receipt = put(destination, image)
    assert read_all(place.again(), receipt) == image.data
    assert [f.image for f in destination.scan()] == [named("i1")]
    later = place.again()
    kept = later.catalog_copies()
    assert kept[:3] == [f"catalog-2026111{number}T000000Z.parquet" for number in (4, 3, 2)]
    assert len(kept) == (5 if place.kind == "tape" else 3)
    for name in kept[:3]:
        assert later.get_catalog(name) == random_bytes(int(name[15]), 1000)
    with pytest.raises(MediumDamaged):
        later.get_catalog("catalog-20261119T000000Z.parquet")


def test_check_finds_nothing_but_what_a_scheme_cannot_do_where_all_is_well(place: Place) -> None:
    found = [(f.id, f.severity) for f in place.again().check()]
    cannot = {"memory": (4, 5, 6, 7), "ftp": (5, 6, 7)}.get(place.kind, ())
    notes = [(f"NF-FS-00{number}", "note") for number in cannot]
    assert found == ([("NF-FS-001", "warn")] if place.kind == "memory" else []) + notes
    assert list(place.again().scan()) == []


@pytest.mark.parametrize(
    ("kind", "commit"),
    [
        *((kind, n) for kind in ("folder", "encoded") for n in range(1, 16)),
        *(("tape", n) for n in range(1, 27)),
    ],
)
def test_kill_between_any_two_commits_leaves_one_copy_after_the_next_put(
    tmp_path: Path, kind: str, commit: int
) -> None:
    place = PLACES[kind](tmp_path)
    image = Image(named("i1"), random_bytes(1, MIB + 5))

    def work() -> None:
        destination = place.open()
        put(destination, image)
        destination.close()

    killed_at(commit, work)
    found = place.again().find(named("i1"), 1)
    if found is not None:
        assert read_all(place.again(), found) == image.data
    receipt = put(place.again(), image, 1 if found else 2)
    assert read_all(place.again(), receipt) == image.data
    assert [f.location for f in place.again().scan()] == [receipt.location]
    place.opened[-1].close()
