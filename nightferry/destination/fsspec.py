"""Copies as objects at any URL that fsspec opens: a folder (``file://``), or whatever a driver reaches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from nightferry.destination.base import (
    DATA_NAMES,
    MAXIMUM,
    SIDE_FILES,
    Found,
    Odd,
    Orphan,
    Outgoing,
    Receipt,
    SiteMark,
    ignore,
    large_side_file,
    nobody,
)
from nightferry.destination.copies import (
    CATALOGS_KEPT,
    COPY,
    META,
    MOST_BYTES,
    MOST_CATALOG_BYTES,
    MOST_RECORDS_BYTES,
    Lanes,
    ObjectLane,
    about,
    data_name,
    data_path,
    described_again,
    made_before,
    misfit,
    parse_about,
    place_of,
    receipt_of,
    require_length,
    safe_name,
    side_path,
    watched,
)
from nightferry.destination.objects import FolderObjects, Objects, Pieces, ReadAt
from nightferry.destination.odd import found_copy, odd_copy, require_found
from nightferry.destination.orphans import Entry, foreign, left_in, refuse_foreign
from nightferry.destination.ours import (
    MARKER,
    MARKER_BYTES,
    ORIGIN,
    Origin,
    age_of,
    in_order,
    is_catalog,
    is_image,
    is_object,
    is_partial,
    is_proved,
    is_records,
    parse_origin,
    render_origin,
    require_free,
    require_not_others,
)
from nightferry.destination.schemes import open_driver
from nightferry.destination.spec import SpecObjects
from nightferry.destination.spec_check import check_objects
from nightferry.errors import (
    DestinationError,
    IntegrityError,
    MediumDamaged,
    NightferryError,
    NotInThisRelease,
    NotOurs,
    Unavailable,
)
from nightferry.model.findings import Finding
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader
from nightferry.transfer.durable import draft_name
from nightferry.transfer.spool import Content, pieces_of, spooled

_STREAM_BYTES = 4 << 20
_MADE_FIRST = "images"
"""What the first copy makes below the root."""


class FsspecObjectReader:
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
    """See ``Destination``. Objects ``images/<image>/{origin.json,data,index,chunks,copy.json,meta.json}``.

    ``origin.json`` is written first and says whose copy it is. ``copy.json`` says epoch, size, digest and
    encoding. ``meta.json`` is written last and makes the copy whole.

    Args:
        name: The destination's name.
        url: Any URL that fsspec opens.
        lanes: How many images are written at once.
        options: Passed to the fsspec file system; secrets among them are references.
        holds_copies: Whether copies here are on record. Then what the first of them made must be there, since a
            folder without its disk must not be filled again; without any the root is made where the folder above
            it is there. None: the root must be there, and is all that is known.
        mark: This site's.

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
        mark: Callable[[], SiteMark] = nobody,
    ) -> None:
        self._name = name
        self._mark = mark
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
            return check_objects(self._objects)
        probe = draft_name()  # what a check that is killed leaves, the next night removes
        try:
            self._objects.create(probe, b"nightferry")
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
                hint="mount its disk; the next run makes the missing copies",
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
        mark = self._mark()
        require_free(
            self._name, image, epoch, self._read_in(image), self._objects_of(image), mark, outgoing.digest
        )
        self._remove(image, but=ORIGIN)
        said = about(image, epoch, outgoing)
        pieces = watched(outgoing, said, progress, cancel)
        files: dict[str, Pieces] = {DATA_NAMES[outgoing.encoding]: pieces, COPY: _as_json(said)}
        files |= {name: _side_pieces(outgoing, name) for name in SIDE_FILES if name != META}
        try:
            self._objects.write(f"{folder}/{ORIGIN}", [render_origin(mark, image, epoch)])
            self._objects.publish(folder, epoch, files, (META, outgoing.side_files[META]))
        except BaseException:
            self._tidy(image)
            raise
        return receipt_of(said, lane)

    def _tidy(self, image: str) -> None:
        """Removes what a failed put wrote; a place that does not answer keeps it for the next put to remove."""
        try:
            self._remove(image)
        except Unavailable:
            return

    def _read_in(self, image: str) -> Callable[[str], bytes | None]:
        """Gives small objects of an image's folder by name; None when they are not there, or too long."""

        def read(name: str) -> bytes | None:
            path = f"images/{image}/{name}"
            size = self._objects.size(path)
            return None if size is None or size > MARKER_BYTES else self._objects.read(path)

        return read

    def _first_side_file(self, image: str) -> bytes | None:
        """``origin.json``; None where there is none.

        Raises:
            MediumDamaged: it cannot be read, or is too long.
        """
        path = f"images/{image}/{ORIGIN}"
        return None if self._objects.size(path) is None else self._read(path, MARKER_BYTES)

    def _origin(self, image: str) -> Origin | None:
        return parse_origin(image, self._read_in(image)(ORIGIN))

    def _objects_of(self, image: str) -> list[str]:
        """The objects of a copy in an image's folder, drafts too, in the order in which they are removed."""
        folder, drafts = f"images/{image}", []
        names = self._objects.names(folder, hidden=True)
        for name in filter(is_partial, names):
            inside = self._objects.names(f"{folder}/{name}", hidden=True)
            drafts += [f"{name}/{each}" for each in inside if is_object(each)]
        return drafts + in_order(filter(is_object, names))

    def _remove(self, image: str, *, but: str = "") -> None:
        """Removes what is a copy's in an image's folder, and the folder when nothing else is in it."""
        folder = f"images/{image}"
        for name in self._objects_of(image):
            if name != but:
                self._clear_folder(f"{folder}/{name}")
                self._objects.remove(f"{folder}/{name}")
        for name in filter(is_partial, self._objects.names(folder, hidden=True)):
            self._objects.remove_empty(f"{folder}/{name}")
        self._objects.remove_empty(folder)

    def _clear_folder(self, path: str) -> None:
        """Removes an empty folder that lies where an object of a copy belongs.

        Raises:
            NotOurs: something is in it.
        """
        if not self._objects.is_folder(path):
            return
        self._objects.remove_empty(path)
        if self._objects.is_folder(path):
            raise NotOurs(
                f"{self._name}: {path} is a folder, where a file of the copy belongs",
                hint="move it away, then run the command again",
                subject=self._name,
            )

    def _copy_of(self, image: str) -> dict[str, Any] | None:
        """``copy.json`` of a whole copy; None when the image is not here or not whole."""
        folder = f"images/{image}"
        if self._objects.size(f"{folder}/{META}") is None:
            return None
        try:
            said = parse_about(image, self._read(f"{folder}/{COPY}", MOST_BYTES[COPY]))
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
            yield FsspecObjectReader(read_at, path, size)

    def side_file(
        self,
        location: Mapping[str, Any],
        name: str,
        *,
        most_bytes: int = MAXIMUM,
        cancel: Cancel | None = None,
    ) -> Content:
        path = side_path(location, name)
        self._require()
        return self._spooled(path, min(most_bytes, MOST_BYTES[name]), cancel)

    def describe(self, location: Mapping[str, Any]) -> Found:
        self._require()
        return require_found(self._name, place_of(location)[0], self._scanned)

    def redescribe(self, location: Mapping[str, Any], digest: str, side_files: Mapping[str, Content]) -> None:
        """See ``Redescribes.redescribe``."""
        self._require()
        image, recorded = place_of(location)
        path, folder, mark = data_path(location), f"images/{image}", self._mark()
        size = self._objects.size(path)
        if size != recorded:
            raise misfit(self._name, path, size, location)
        for name in (ORIGIN, COPY, *SIDE_FILES):
            self._clear_folder(f"{folder}/{name}")
        with suppress(MediumDamaged):  # what cannot be read names nobody
            require_not_others(self._name, self._origin(image), mark)
        self._objects.write(f"{folder}/{ORIGIN}", [render_origin(mark, image, location["epoch"])])
        for name, data in described_again(location, digest, side_files).items():
            self._objects.write(f"{folder}/{name}", pieces_of(data))

    def remove(self, location: Mapping[str, Any]) -> None:
        self._require()
        self._remove(place_of(location)[0])

    def locked(self, location: Mapping[str, Any]) -> None:
        """A folder locks nothing."""

    def expire(self, location: Mapping[str, Any], digest: str) -> str:
        self._require()
        image = place_of(location)[0]
        if self._objects_of(image) and not is_proved(self._read_in(image), image, self._mark(), digest):
            raise NotOurs(
                f"{self._name}: images/{image} has no proof that it is this site's copy", subject=self._name
            )
        self._remove(image)
        return ""

    def orphans(self, before: datetime) -> Iterator[Orphan]:
        self._require()
        mark = self._mark()
        for name in self._objects.names("images", hidden=True):
            path = f"images/{name}"
            if not is_image(name) or not self._objects.is_folder(path):
                yield foreign(self._entry(path))
                continue
            entries = [self._entry(f"{path}/{each}") for each in self._objects_of(name)]
            with suppress(NotInThisRelease):  # a whole copy, of a newer release
                said = self._copy_of(name)
                yield from left_in(name, said, self._origin(name), mark, entries, before)
            for each in self._objects.names(path, hidden=True):
                if not is_object(each) and not is_partial(each):
                    yield foreign(self._entry(f"{path}/{each}"))

    def _entry(self, path: str) -> Entry:
        return Entry(path, self._objects.size(path) or 0, self._changed(path))

    def _changed(self, path: str) -> datetime:
        """When it was last written; a place that does not say makes it look new."""
        seconds = self._objects.changed(path)
        return datetime.fromtimestamp(seconds, UTC) if seconds else datetime.max.replace(tzinfo=UTC)

    def clear(self, orphan: Orphan) -> None:
        self._require()
        refuse_foreign(self._name, orphan)
        if orphan.what == "unfinished":
            self._remove(safe_name(orphan.image))
        else:
            self._objects.remove(orphan.path)

    def scan(self, odd: Callable[[Odd], None] = ignore) -> Iterator[Found]:
        self._require()
        for name in self._objects.names("images", hidden=True):
            try:
                found = self._scanned(name)
            except Unavailable:
                raise
            except (DestinationError, NotInThisRelease) as error:
                found = Odd(f"images/{name}", error.message, name if is_image(name) else "")
            if isinstance(found, Found):
                yield found
            else:
                odd(found)

    def _scanned(self, image: str) -> Found | Odd:
        folder = f"images/{image}"
        if not is_image(image):  # nothing is read of what others have there
            return Odd(folder, "its name is not an image's")
        said = self._copy_of(image)
        read = self._read_in(image)
        if said is not None:
            meta = self._read(f"{folder}/{META}", MOST_BYTES[META])
            return found_copy(said, meta, image, lambda: self._first_side_file(image))
        sizes = {
            n: self._objects.size(f"{folder}/{n}") or 0 for n in self._objects.names(folder) if is_object(n)
        }
        return odd_copy(image, sizes, read(COPY), parse_origin(image, read(ORIGIN)))

    def marker(self) -> bytes | None:
        """See ``Marked.marker``. Looking makes no root."""
        size = self._objects.size(MARKER)
        return None if size is None else self._objects.read(MARKER, 0, min(size, MARKER_BYTES))

    def put_marker(self, text: bytes) -> None:
        self._require()
        self._objects.create(MARKER, text)

    def images(self) -> Iterator[str]:
        """See ``Marked.images``. Looking makes no root."""
        return (name for name in self._objects.names("images") if is_image(name))

    def has_copy(self, location: Mapping[str, Any], digest: str, mark: SiteMark) -> bool:
        self._require()
        image = place_of(location)[0]
        return is_proved(self._read_in(image), image, mark, digest)

    def put_records(self, name: str, data: bytes) -> None:
        self._keep("records", name, data, is_records)

    def records(self) -> Iterator[bytes | MediumDamaged]:
        self._require()
        for name in filter(is_records, self._objects.names("records")):
            try:
                yield self._read(f"records/{name}", MOST_RECORDS_BYTES)
            except MediumDamaged as error:
                yield error

    def put_catalog(self, name: str, data: bytes) -> None:
        self._keep("catalog", name, data, is_catalog)

    def _keep(self, folder: str, name: str, data: bytes, is_one: Callable[[str], bool]) -> None:
        """Keeps the newest few objects of a kind."""
        self._require()
        self._objects.write(f"{folder}/{safe_name(name)}", [data])
        names = filter(is_one, self._objects.names(folder))
        for old in sorted(names, key=age_of)[:-CATALOGS_KEPT]:
            self._objects.remove(f"{folder}/{old}")

    def catalog_copies(self) -> list[str]:
        self._require()
        return sorted(filter(is_catalog, self._objects.names("catalog")), key=age_of, reverse=True)

    def get_catalog(self, name: str, *, cancel: Cancel | None = None) -> Content:
        self._require()
        return self._spooled(f"catalog/{safe_name(name)}", MOST_CATALOG_BYTES, cancel)

    def _spooled(self, path: str, most_bytes: int, cancel: Cancel | None) -> Content:
        """As ``_read``, of an object that memory may have no room for."""
        size = require_length(self._name, path, self._objects.size(path), most_bytes)
        with self._objects.opened(path) as read_at:
            return spooled(FsspecObjectReader(read_at, path, size).stream(0, size), cancel)

    def _read(self, path: str, most_bytes: int) -> bytes:
        """All of an object.

        Raises:
            MediumDamaged: it is not there, cannot be read, or is longer than it may be.
        """
        size = require_length(self._name, path, self._objects.size(path), most_bytes)
        return self._objects.read(path, 0, size)

    def close(self) -> None:
        self._objects.close()


def _side_pieces(outgoing: Outgoing, name: str) -> Pieces:
    source = large_side_file(outgoing, name)
    return [outgoing.side_files[name]] if source is None else source.chunks()


def _as_json(about: Mapping[str, Any]) -> Iterator[bytes]:
    """Rendered when it is written: after the data, whose size it says."""
    yield json.dumps(about).encode()
