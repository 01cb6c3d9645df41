"""Copies as objects at any URL that fsspec opens: a folder (``file://``), or whatever a driver reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from nightferry.destination.base import DATA_NAMES, SIDE_FILES, Found, Leftover, Outgoing, Receipt
from nightferry.destination.copies import (
    CATALOGS_KEPT,
    COPY,
    META,
    Lanes,
    ObjectLane,
    about,
    data_name,
    data_path,
    location_of,
    made_before,
    misfit,
    parse_about,
    place_of,
    receipt_of,
    safe_name,
    side_path,
    watched,
)
from nightferry.destination.drivers import open_driver
from nightferry.destination.leftovers import Entry, left_in
from nightferry.destination.objects import FolderObjects, Objects, Pieces, ReadAt
from nightferry.destination.spec import SpecObjects
from nightferry.destination.spec_check import look
from nightferry.errors import (
    IntegrityError,
    MediumDamaged,
    NightferryError,
    Unavailable,
)
from nightferry.model.findings import Finding
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader

_STREAM_BYTES = 4 << 20
_MADE_FIRST = "images"
"""What the first copy makes below the root."""


class ObjectReader:
    """See ``ByteReader``: an object read by range."""

    def __init__(self, read_at: ReadAt, path: str, size_bytes: int) -> None:
        self._read_at = read_at
        self._path = path
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self._size_bytes:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} lie beyond the {self._size_bytes} of {self._path}"
            )
        data = self._read_at(offset, length)
        if len(data) != length:
            raise MediumDamaged(f"{self._path} ends after {offset + len(data)} bytes", subject=self._path)
        return data

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        while length:
            piece = self.read(offset, min(length, _STREAM_BYTES))
            yield memoryview(piece)
            offset += len(piece)
            length -= len(piece)


class FsspecDestination:
    """See ``Destination``. Objects ``images/<image>/{data,index,chunks,copy.json,meta.json}``.

    ``copy.json`` says epoch, size, digest and encoding; ``meta.json`` is written last and makes the copy whole.

    Args:
        name: The destination's name.
        url: Any URL that fsspec opens.
        lanes: How many images are written at once.
        options: Passed to the fsspec file system; secrets among them are references.
        holds_copies: Whether copies here are on record. Then what the first of them made must be there, since a
            folder without its disk must not be filled anew; without any the root is made where the folder above
            it is there. None: the root must be there, and is all that is known.

    Raises:
        ConfigError: see ``drivers.open_driver``.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        lanes: int = 4,
        options: Mapping[str, Any] | None = None,
        holds_copies: bool | None = None,
    ) -> None:
        self._name = name
        self._objects: Objects
        if url.startswith("file://"):
            self._objects = FolderObjects(name, url.removeprefix("file://"))
        else:
            self._objects = SpecObjects(open_driver(name, url, options or {}))
        self._url = url
        self._lanes = Lanes(lanes)
        self._holds_copies = holds_copies

    @property
    def name(self) -> str:
        return self._name

    @property
    def lanes(self) -> int:
        return self._lanes.count

    def check(self) -> list[Finding]:
        try:
            self._require()
        except NightferryError as error:
            return [Finding("NF-DEST-001", "fail", f"destination {self._name}: {error}", error.hint)]
        if isinstance(self._objects, SpecObjects):
            return look(self._objects)
        probe = ".nightferry-check"
        try:
            self._objects.write(probe, [b"nightferry"])
            self._objects.remove(probe)
        except NightferryError as error:
            return [
                Finding(
                    "NF-DEST-002", "fail", f"destination {self._name} cannot be written: {error}", error.hint
                )
            ]
        return []

    def _require(self) -> None:
        """The root, made on first use.

        Raises:
            Unavailable: it is not there, or what was in it is not.
        """
        if self._holds_copies is False:
            self._objects.make_root()
            self._holds_copies = None  # a root that goes away from now on is not made again
        self._objects.require_root()
        if self._holds_copies and not self._objects.exists(_MADE_FIRST):
            raise Unavailable(
                f"destination {self._name} holds copies, and {self._url.removeprefix('file://').rstrip('/')}/"
                f"{_MADE_FIRST} is not there",
                hint="mount its disk; what is owed is delivered by the next run",
                subject=self._name,
            )
        self._holds_copies = None

    @contextmanager
    def lane(self, *, progress: Progress, cancel: Cancel) -> Iterator[ObjectLane]:
        with self._lanes.lease(cancel) as name:
            yield ObjectLane(self.put, name)

    def put(self, outgoing: Outgoing, epoch: int, lane: str, progress: Progress, cancel: Cancel) -> Receipt:
        """See ``Lane.put``."""
        self._require()
        image = safe_name(outgoing.image)
        whole = self._copy_of(image)
        if whole is not None:
            there = made_before(self._name, whole, outgoing, epoch, lane)
            if there is not None:
                return there
        folder = f"images/{image}"
        self._objects.remove(f"{folder}/{META}")
        self._objects.remove(folder)
        said = about(image, epoch, outgoing)
        pieces = watched(outgoing, said, progress, cancel)
        files: dict[str, Pieces] = {DATA_NAMES[outgoing.encoding]: pieces, COPY: _as_json(said)}
        files |= {name: [outgoing.side_files[name]] for name in SIDE_FILES if name != META}
        try:
            self._objects.publish(folder, epoch, files, (META, outgoing.side_files[META]))
        except BaseException:
            self._tidy(folder)
            raise
        return receipt_of(said, lane)

    def _tidy(self, folder: str) -> None:
        """Removes what a failed put wrote; a place that does not answer keeps its leftover for the next put
        to remove."""
        try:
            self._objects.remove(folder)
        except Unavailable:
            return

    def _copy_of(self, image: str) -> dict[str, Any] | None:
        """``copy.json`` of a whole copy; None when the image is not here or not whole."""
        folder = f"images/{image}"
        if self._objects.size(f"{folder}/{META}") is None:
            return None
        try:
            said = parse_about(image, self._objects.read(f"{folder}/{COPY}"))
        except MediumDamaged:
            return None
        if said is None or self._objects.size(f"{folder}/{data_name(said)}") != said["size_bytes"]:
            return None
        return said

    def find(self, image: str, epoch: int) -> Receipt | None:
        self._require()
        said = self._copy_of(safe_name(image))
        return receipt_of(said) if said is not None and said["epoch"] == epoch else None

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        self._require()
        path = data_path(location)
        size = self._objects.size(path)
        if size is None or size != location["size_bytes"]:
            raise misfit(self._name, path, size, location)
        with self._objects.opened(path) as read_at:
            yield ObjectReader(read_at, path, size)

    def side_file(self, location: Mapping[str, Any], name: str) -> bytes:
        path = side_path(location, name)
        self._require()
        return self._objects.read(path)

    def remove(self, location: Mapping[str, Any]) -> None:
        self._require()
        folder = f"images/{place_of(location)[0]}"
        self._objects.remove(f"{folder}/{META}")
        self._objects.remove(folder)

    def locked(self, location: Mapping[str, Any]) -> None:
        """A folder locks nothing."""

    def expire(self, location: Mapping[str, Any]) -> str:
        self.remove(location)
        return ""

    def leftovers(self, before: datetime) -> Iterator[Leftover]:
        self._require()
        for image in self._objects.names("images"):
            yield from left_in(image, self._copy_of(safe_name(image)), self._entries(image), before)

    def _entries(self, image: str) -> list[Entry]:
        folder = f"images/{image}"
        paths = [f"{folder}/{name}" for name in self._objects.names(folder, ours=True)]
        found = [Entry(p, self._objects.size(p) or 0, self._changed(p)) for p in paths]
        # A put that was cut off at its very beginning leaves an empty folder.
        if isinstance(self._objects, FolderObjects):
            found.append(Entry(folder, 0, self._changed(folder)))
        return found

    def _changed(self, path: str) -> datetime:
        """When it was last written; a place that does not say makes it look new."""
        seconds = self._objects.changed(path)
        return datetime.fromtimestamp(seconds, UTC) if seconds else datetime.max.replace(tzinfo=UTC)

    def clear(self, leftover: Leftover) -> None:
        self._require()
        self._objects.remove(leftover.path)

    def scan(self) -> Iterator[Found]:
        self._require()
        for image in self._objects.names("images"):
            said = self._copy_of(safe_name(image))
            if said is not None:
                meta = self._objects.read(f"images/{image}/{META}")
                yield Found(image, said["epoch"], location_of(said), meta)

    def put_catalog(self, name: str, data: bytes) -> None:
        self._require()
        self._objects.write(f"catalog/{safe_name(name)}", [data])
        kept = sorted(
            self._objects.names("catalog"), key=lambda n: (self._objects.changed(f"catalog/{n}"), n)
        )
        for old in kept[:-CATALOGS_KEPT]:
            self._objects.remove(f"catalog/{old}")

    def catalog_copies(self) -> list[str]:
        self._require()
        return sorted(self._objects.names("catalog"), reverse=True)

    def get_catalog(self, name: str) -> bytes:
        self._require()
        return self._objects.read(f"catalog/{safe_name(name)}")

    def close(self) -> None:
        self._objects.close()


def _as_json(about: Mapping[str, Any]) -> Iterator[bytes]:
    """Rendered when it is written: after the data, whose size it says."""
    yield json.dumps(about).encode()
