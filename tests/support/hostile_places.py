"""Places that copies went to, in the hands of somebody who writes to them: by another program than ours where there
is one."""

from __future__ import annotations

import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blake3 import blake3

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.drives.base import RECORD_BYTES, Mark
from nightferry.destination.tape.library.changer import Address, Library
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.destination.tape.library.virtual import VirtualLibrary
from nightferry.scsi.iscsi import Portal
from tests.servers.seaweed import Seaweed
from tests.servers.tgtd import TARGET, Tgtd

SIDES = ("meta.json", "copy.json", "origin.json", "index", "chunks")

Change = Callable[[bytes], bytes]


class Place(ABC):
    """One destination. An object of a copy is named by its image and its name in docs/image-format.md."""

    destination: str

    @abstractmethod
    def images(self) -> list[str]:
        """The images that it has, sorted."""

    @abstractmethod
    def change(self, image: str, name: str, change: Change) -> None:
        """Puts other bytes in the place of a side file; whatever proves it there is made to fit."""

    @abstractmethod
    def swap(self, name: str) -> None:
        """Gives the first two images each other's side file."""

    @abstractmethod
    def change_catalogs(self, change: Change) -> None:
        """Changes every copy of the catalog."""

    def change_json(self, image: str, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        self.change(image, name, lambda text: json.dumps(change(json.loads(text))).encode())


class FilesPlace(Place):
    """A folder: one that is mounted, or one that a server for SFTP serves."""

    def __init__(self, destination: str, root: Path) -> None:
        self.destination = destination
        self.root = root

    def images(self) -> list[str]:
        return sorted(path.name for path in (self.root / "images").iterdir())

    def change(self, image: str, name: str, change: Change) -> None:
        path = self.root / "images" / image / name
        path.write_bytes(change(path.read_bytes()))

    def swap(self, name: str) -> None:
        one, other = (self.root / "images" / image / name for image in self.images()[:2])
        held = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(held)

    def change_catalogs(self, change: Change) -> None:
        for path in (self.root / "catalog").iterdir():
            path.write_bytes(change(path.read_bytes()))


class BucketPlace(Place):
    """A bucket, by boto3's own client."""

    destination = "cloud"

    def __init__(self, server: Seaweed, prefix: str) -> None:
        self.server = server
        self.prefix = prefix

    def images(self) -> list[str]:
        below = f"{self.prefix}/images/"
        keys = self.server.keys_below(below)
        return sorted({key.removeprefix(below).partition("/")[0] for key in keys})

    def change(self, image: str, name: str, change: Change) -> None:
        self._change(f"{self.prefix}/images/{image}/{name}", change)

    def swap(self, name: str) -> None:
        one, other = (f"{self.prefix}/images/{image}/{name}" for image in self.images()[:2])
        held = self._get(one)
        self._change(one, lambda _: self._get(other))
        self._change(other, lambda _: held)

    def change_catalogs(self, change: Change) -> None:
        for key in self.server.keys_below(f"{self.prefix}/catalog/"):
            self._change(key, change)

    def _get(self, key: str) -> bytes:
        return bytes(self.server.client().get_object(Bucket=self.server.bucket, Key=key)["Body"].read())

    def _change(self, key: str, change: Change) -> None:
        body = change(self._get(key))
        self.server.client().put_object(Bucket=self.server.bucket, Key=key, Body=body)


class TapePlace(Place):
    """A library whose cartridges are rewritten record by record. Side files stand in trailers: their tar and digests
    are made again with Python's own tar module, so that nothing but what they say is wrong."""

    destination = "tape"

    def __init__(self, opened: Callable[[], Library]) -> None:
        self._opened = opened

    def images(self) -> list[str]:
        found = set()
        for files in self._read().values():
            for data in files:
                head = trailer_of(data)
                if head is not None and head["kind"] == "image":
                    found.add(head["image"])
        return sorted(found)

    def change(self, image: str, name: str, change: Change) -> None:
        """``origin.json`` and ``copy.json`` of a bucket are the head of a trailer here."""

        def changed(data: bytes) -> bytes:
            head = trailer_of(data)
            if head is None or head["image"] != image:
                return data
            members = _members(data)
            if name in members:
                members[name] = change(members[name])
            else:
                text = change(json.dumps(head).encode())
                try:
                    head = dict(json.loads(text))
                except (ValueError, TypeError):
                    return _packed(text, members)
            return _trailer(head, members)

        self.rewrite(lambda files: [changed(data) for data in files])

    def swap(self, name: str) -> None:
        one, other = self.images()[:2]
        held: dict[str, bytes] = {}
        for image in (one, other):
            self.change(image, name, lambda data, image=image: held.setdefault(image, data))  # type: ignore[misc]
        self.change(one, name, lambda _: held[other])
        self.change(other, name, lambda _: held[one])

    def change_catalogs(self, change: Change) -> None:
        def changed(files: list[bytes]) -> list[bytes]:
            files = list(files)
            for number, data in enumerate(files):
                head = trailer_of(data)
                if head is not None and head["kind"] == "catalog":
                    files[number - 1] = change(files[number - 1])[: len(files[number - 1])]
            return files

        self.rewrite(changed)

    def held(self) -> dict[str, list[bytes]]:
        """All that is on the cartridges."""
        return self._read()

    def put_back(self, held: dict[str, list[bytes]]) -> None:
        """Writes what ``held`` gave."""
        for barcode, files in held.items():
            self._write(barcode, files)

    def rewrite(self, change: Callable[[list[bytes]], list[bytes]]) -> None:
        """Other tape files on every cartridge that is not blank; the first is the label."""
        for barcode, files in self._read().items():
            self._write(barcode, change(files))

    def _read(self) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for barcode, library in self._each():
            drive, files = library.drives[0], [b""]
            while (record := drive.read_record()) is not Mark.END_OF_DATA:
                if isinstance(record, Mark):
                    files.append(b"")
                else:
                    files[-1] += record
            if files != [b""]:
                found[barcode] = files if files[-1] else files[:-1]
        return found

    def _write(self, wanted: str, files: list[bytes]) -> None:
        for barcode, library in self._each():
            if barcode != wanted:
                continue
            drive = library.drives[0]
            drive.rewind()
            for data in files:
                for at in range(0, len(data), RECORD_BYTES):
                    drive.write_record(data[at : at + RECORD_BYTES])
                drive.write_filemarks(1)

    def _each(self) -> Any:
        """Each cartridge in turn, loaded in the first drive."""
        library, into = self._opened(), Address("drive", 0)
        try:
            for place in [e for e in library.changer.inventory() if e.barcode and e.address.kind == "drive"]:
                library.drives[place.address.number].unload()
                library.changer.move(place.address, _empty_slot(library))
            for place in [e for e in library.changer.inventory() if e.barcode]:
                library.changer.move(place.address, into)
                library.drives[0].load()
                yield place.barcode, library
                library.drives[0].unload()
                library.changer.move(into, _empty_slot(library))
        finally:
            library.close()


def virtual_place(path: Path) -> TapePlace:
    return TapePlace(lambda: VirtualLibrary(path))


def iscsi_place(server: Tgtd, locks: Path) -> TapePlace:
    portal = Portal(server.portal, TARGET)
    return TapePlace(lambda: open_iscsi(portal, (), Options(locks=(locks,)), SYSTEM_CLOCK))


def trailer_of(data: bytes) -> dict[str, Any] | None:
    """What the first member of a trailer says; None for what is none."""
    try:
        text = _members(data, all_of_them=True).get(".nightferry/trailer.json")
    except tarfile.TarError:
        return None
    return None if text is None else dict(json.loads(text))


def _members(data: bytes, *, all_of_them: bool = False) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            file = tar.extractfile(info) if info.isreg() else None
            if file is not None and (all_of_them or info.name != ".nightferry/trailer.json"):
                found[info.name] = file.read()
            if all_of_them:
                break
    return found


def _trailer(head: dict[str, Any], members: dict[str, bytes]) -> bytes:
    head["members"] = {name: [len(data), blake3(data).hexdigest()] for name, data in members.items()}
    return _packed(json.dumps(head).encode(), members)


def _packed(head: bytes, members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in {".nightferry/trailer.json": head, **members}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _empty_slot(library: Library) -> Address:
    return next(e.address for e in library.changer.inventory() if e.address.kind == "slot" and not e.barcode)
