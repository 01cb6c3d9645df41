"""Copies as objects at any fsspec URL; a folder (``file://``) is written durably."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nightferry.destination.base import (
    DATA_NAMES,
    SIDE_FILES,
    Found,
    Outgoing,
    Receipt,
    encoding_of,
)
from nightferry.destination.objects import FolderObjects, Objects, Pieces, SpecObjects
from nightferry.errors import (
    ConfigError,
    DestinationError,
    IntegrityError,
    MediumDamaged,
    NightferryError,
    Unavailable,
)
from nightferry.model.findings import Finding
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader

_CATALOGS_KEPT = 3
_STREAM_BYTES = 4 << 20
_COPY = "copy.json"
_META = "meta.json"


class ObjectReader:
    """See ``ByteReader``: an object read by range."""

    def __init__(self, objects: Objects, path: str, size_bytes: int) -> None:
        self._objects = objects
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
        data = self._objects.read(self._path, offset, length)
        if len(data) != length:
            raise MediumDamaged(f"{self._path} ends after {offset + len(data)} bytes", subject=self._path)
        return data

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        while length:
            piece = self.read(offset, min(length, _STREAM_BYTES))
            yield memoryview(piece)
            offset += len(piece)
            length -= len(piece)


class FsspecLane:
    """See ``Lane``: one of the parallel writers."""

    def __init__(self, destination: FsspecDestination, number: int) -> None:
        self._destination = destination
        self._number = number

    @property
    def name(self) -> str:
        return f"writer {self._number}"

    def put(self, outgoing: Outgoing, epoch: int, *, progress: Progress, cancel: Cancel) -> Receipt:
        return self._destination.put(outgoing, epoch, self.name, progress, cancel)


class FsspecDestination:
    """See ``Destination``. Objects ``images/<image>/{data,index,chunks,copy.json,meta.json}``.

    ``copy.json`` says epoch, size, digest and encoding; ``meta.json`` is written last and makes the copy whole.

    Args:
        name: The destination's name.
        url: Any fsspec URL; its root must exist, since a folder that is made where a disk should be mounted
        fills the
            wrong disk.
        lanes: How many images are written at once.
        options: Passed to the fsspec file system.

    Raises:
        ConfigError: no such kind of URL.
    """

    def __init__(
        self, name: str, url: str, *, lanes: int = 4, options: Mapping[str, Any] | None = None
    ) -> None:
        self._name = name
        self._url = url
        self._objects: Objects = _objects(name, url, dict(options or {}))
        self._free = list(range(lanes, 0, -1))
        self._lanes = lanes
        self._turn = threading.Condition()

    @property
    def name(self) -> str:
        return self._name

    @property
    def lanes(self) -> int:
        return self._lanes

    def check(self) -> list[Finding]:
        try:
            self._objects.require_root()
        except NightferryError as error:
            return [
                Finding("NF-DEST-001", "fail", f"destination {self._name}: {error}", "mount or create it")
            ]
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

    @contextmanager
    def lane(self, *, progress: Progress, cancel: Cancel) -> Iterator[FsspecLane]:
        with self._turn:
            while not self._free:
                cancel.check()
                self._turn.wait(0.2)
            number = self._free.pop()
        try:
            yield FsspecLane(self, number)
        finally:
            with self._turn:
                self._free.append(number)
                self._turn.notify()

    def put(self, outgoing: Outgoing, epoch: int, lane: str, progress: Progress, cancel: Cancel) -> Receipt:
        """See ``Lane.put``."""
        self._objects.require_root()
        image = _safe(outgoing.image)
        whole = self._copy_of(image)
        if whole is not None:
            if whole["digest"] != outgoing.digest:
                raise DestinationError(
                    f"{self._name} holds another {image}: digest {whole['digest']}, not {outgoing.digest}",
                    subject=image,
                    hint="two images have one name; look at both with `nightferry copies`",
                )
            if whole["epoch"] == epoch:
                return _receipt(whole, lane)
            # A new epoch is asked for because what is here was found damaged: it only looks whole.
        folder = f"images/{image}"
        self._objects.remove(f"{folder}/{_META}")
        self._objects.remove(folder)
        about: dict[str, Any] = {"image": image, "epoch": epoch, "digest": outgoing.digest}
        if outgoing.encoding:
            about["encoding"] = outgoing.encoding
        pieces = _watched(outgoing, about, progress, cancel)
        files: dict[str, Pieces] = {DATA_NAMES[outgoing.encoding]: pieces, _COPY: _as_json(about)}
        files |= {name: [outgoing.side_files[name]] for name in SIDE_FILES if name != _META}
        try:
            self._objects.publish(folder, epoch, files, (_META, outgoing.side_files[_META]))
        except BaseException:
            self._tidy(folder)
            raise
        return _receipt(about, lane)

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
        if self._objects.size(f"{folder}/{_META}") is None:
            return None
        try:
            about = json.loads(self._objects.read(f"{folder}/{_COPY}"))
            sound = (
                about["image"] == image
                and {*about} - {"encoding"} == {"image", "epoch", "size_bytes", "digest"}
                and self._objects.size(f"{folder}/{_data(about)}") == about["size_bytes"]
            )
        except (ValueError, KeyError, TypeError, MediumDamaged):
            sound = False
        if not sound:
            return None
        return dict(about)

    def find(self, image: str, epoch: int) -> Receipt | None:
        self._objects.require_root()
        about = self._copy_of(_safe(image))
        return _receipt(about) if about is not None and about["epoch"] == epoch else None

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        self._objects.require_root()
        image, size_bytes = _place(location)
        path = f"images/{image}/{_data(location)}"
        size = self._objects.size(path)
        if size != size_bytes:
            found = "is not there" if size is None else f"has {size} bytes"
            raise MediumDamaged(f"{self._name}: {path} {found}, {size_bytes} were recorded", subject=image)
        yield ObjectReader(self._objects, path, size_bytes)

    def side_file(self, location: Mapping[str, Any], name: str) -> bytes:
        if name not in SIDE_FILES:
            raise DestinationError(f"{name!r} is no side file", subject=name)
        self._objects.require_root()
        return self._objects.read(f"images/{_place(location)[0]}/{name}")

    def remove(self, location: Mapping[str, Any]) -> None:
        self._objects.require_root()
        folder = f"images/{_place(location)[0]}"
        self._objects.remove(f"{folder}/{_META}")
        self._objects.remove(folder)

    def scan(self) -> Iterator[Found]:
        self._objects.require_root()
        for image in self._objects.names("images"):
            about = self._copy_of(_safe(image))
            if about is not None:
                meta = self._objects.read(f"images/{image}/{_META}")
                yield Found(image, about["epoch"], _location(about), meta)

    def put_catalog(self, name: str, data: bytes) -> None:
        self._objects.require_root()
        self._objects.write(f"catalog/{_safe(name)}", [data])
        kept = sorted(
            self._objects.names("catalog"), key=lambda n: (self._objects.changed(f"catalog/{n}"), n)
        )
        for old in kept[:-_CATALOGS_KEPT]:
            self._objects.remove(f"catalog/{old}")

    def close(self) -> None:
        """Nothing is held between calls."""


def _objects(name: str, url: str, options: dict[str, Any]) -> Objects:
    from fsspec.core import url_to_fs

    try:
        fs, root = url_to_fs(url, **options)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"destination {name}: {url!r} cannot be opened: {error}", subject=name) from error
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return FolderObjects(name, root) if "file" in protocols else SpecObjects(name, fs, root)


def _watched(
    outgoing: Outgoing, about: dict[str, Any], progress: Progress, cancel: Cancel
) -> Iterator[memoryview]:
    """The data on its way; ``about`` has its ``size_bytes`` when it has passed."""
    done = 0
    for chunk in outgoing.chunks():
        cancel.check()
        yield chunk
        done += len(chunk)
        progress.advance(outgoing.image, done)
    cancel.check()
    if not outgoing.encoding and done != outgoing.size_bytes:
        raise IntegrityError(
            f"{outgoing.image} has {done} bytes on staging, {outgoing.size_bytes} were recorded"
        )
    about["size_bytes"] = done


def _as_json(about: Mapping[str, Any]) -> Iterator[bytes]:
    """Rendered when it is written: after the data, whose size it says."""
    yield json.dumps(about).encode()


def _data(said: Mapping[str, Any]) -> str:
    return DATA_NAMES[encoding_of(said)]


def _safe(name: str) -> str:
    """Names come from validated places; one that could leave its folder is refused all the same."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise ConfigError(f"not a name for an object: {name!r}", subject=name)
    return name


def _location(about: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("image", "epoch", "size_bytes", "encoding")
    return {key: about[key] for key in keys if key in about}


def _receipt(about: Mapping[str, Any], lane: str = "") -> Receipt:
    return Receipt(_location(about), about["size_bytes"], lane=lane)


def _place(location: Mapping[str, Any]) -> tuple[str, int]:
    image, size_bytes = location.get("image"), location.get("size_bytes")
    if not isinstance(image, str) or not isinstance(size_bytes, int):
        raise ConfigError(f"not the location of a copy: {dict(location)!r}")
    return _safe(image), size_bytes
