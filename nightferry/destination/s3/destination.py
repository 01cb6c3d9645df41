"""Copies as objects in a bucket: the layout of a folder destination, on any store that speaks S3."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.base import (
    MAXIMUM,
    SIDE_FILES,
    Archived,
    Found,
    Locked,
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
    CRC,
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
    location_of,
    made_before,
    misfit,
    parse_about,
    place_of,
    plain_spans,
    receipt_of,
    require_length,
    safe_name,
    side_path,
    watched,
    watched_spans,
)
from nightferry.destination.odd import found_copy, odd_copy, require_found
from nightferry.destination.ours import (
    MARKER,
    MARKER_BYTES,
    NAMES,
    ORIGIN,
    age_of,
    is_catalog,
    is_image,
    is_proved,
    is_records,
    parse_origin,
    render_origin,
    require_free,
    require_not_others,
)
from nightferry.destination.s3 import expiry
from nightferry.destination.s3.archive import archived, ask
from nightferry.destination.s3.backoff import Backoff
from nightferry.destination.s3.bucket import Bucket, proof
from nightferry.destination.s3.check import check_bucket
from nightferry.destination.s3.client import READ_TIMEOUT_S, connect
from nightferry.destination.s3.failure import Forbidden, is_passing
from nightferry.destination.s3.lock import NotLocked, Wanted, require_locked
from nightferry.destination.s3.parts import Memory, crc64, crc_text, joined_crc
from nightferry.destination.s3.probe import Abilities, abilities
from nightferry.destination.s3.reader import READ_AHEAD_BYTES, ObjectReader
from nightferry.destination.s3.upload import Stored, Uploader
from nightferry.errors import (
    Cancelled,
    DestinationError,
    MediumDamaged,
    NeedsRecall,
    NightferryError,
    NotInThisRelease,
    NotVisible,
    Unavailable,
)
from nightferry.model.destinations import Lock, Recall, S3Settings
from nightferry.model.findings import Finding
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader
from nightferry.transfer.spool import HELD_BYTES, Content, spooled, whole

DEFAULT_LANES = 4
_AS_EVER = Recall()

_backoffs: dict[str, Backoff] = {}
_backoffs_lock = threading.Lock()


def open_s3(
    settings: S3Settings,
    *,
    clock: Clock = SYSTEM_CLOCK,
    lanes: int = DEFAULT_LANES,
    read_timeout_s: float = READ_TIMEOUT_S,
    mark: Callable[[], SiteMark] = nobody,
) -> S3Destination:
    """The destination that a site file describes. Nothing is sent yet.

    Raises:
        ConfigError: see ``client.connect``.
    """
    connection = connect(settings, read_timeout_s=read_timeout_s)
    bucket = Bucket(settings.name, connection, backoff_of(connection.endpoint, clock))
    uploader = Uploader(bucket, most_parts=settings.max_parts, object_bytes=settings.max_object)
    return S3Destination(
        bucket,
        uploader,
        lanes=lanes,
        lock=settings.lock,
        storage_class=settings.storage_class,
        recall=settings.recall,
        clock=clock,
        remover=remover_of(settings, clock, read_timeout_s),
        mark=mark,
    )


def remover_of(settings: S3Settings, clock: Clock, read_timeout_s: float) -> Remover | None:
    """The one with the keys that the settings give to expiring; None when they give none."""
    if settings.expire is None:
        return None
    keyed = settings.model_copy(update=dict(settings.expire))

    def opened() -> Bucket:
        connection = connect(keyed, read_timeout_s=read_timeout_s)
        return Bucket(settings.name, connection, backoff_of(connection.endpoint, clock))

    return Remover(opened)


def backoff_of(endpoint: str, clock: Clock) -> Backoff:
    """The one back-off of this process for an endpoint."""
    with _backoffs_lock:
        return _backoffs.setdefault(endpoint, Backoff(is_passing, clock=clock))


class S3Destination:
    """See ``Destination``. Objects ``images/<image>/{origin.json,data,index,chunks,copy.json,meta.json}``.

    ``origin.json`` is written first and says whose copy it is. ``copy.json`` says epoch, size, digest and
    encoding. ``meta.json`` is written last and makes the copy whole. A copy
    whose data the store checked against our CRC64NVME, all of it, is verified on arrival.

    A key that may only write suffices for ``put``: what cannot be looked at is then written over, after
    ``copy.json`` has been made to say that nothing whole is here.

    Args:
        bucket: Where the objects lie.
        uploader: Stores images' data.
        lanes: Images written at once.
        lock: Object lock of all that belongs to a copy.
        storage_class: Of the data.
        recall: How what lies in an archived class is asked for.
        clock: The lock's days count from its now.
        remover: Who removes what has expired; None: the key that writes.
        mark: This site's.
    """

    def __init__(
        self,
        bucket: Bucket,
        uploader: Uploader,
        *,
        lanes: int = DEFAULT_LANES,
        lock: Lock | None = None,
        storage_class: str | None = None,
        recall: Recall = _AS_EVER,
        clock: Clock = SYSTEM_CLOCK,
        remover: Remover | None = None,
        mark: Callable[[], SiteMark] = nobody,
    ) -> None:
        self._bucket = bucket
        self._mark = mark
        self._remover = remover or Remover(lambda: bucket)
        self._uploader = uploader
        self._lanes = Lanes(lanes)
        self._lock = None if lock is None else Wanted(lock.mode.upper(), lock.days)
        self._storage_class = storage_class
        self._recall = recall
        self._clock = clock
        self._read_ahead = Memory(READ_AHEAD_BYTES)
        self._has_said = False

    @property
    def name(self) -> str:
        return self._bucket.name

    @property
    def lanes(self) -> int:
        return self._lanes.count

    def check(self) -> list[Finding]:
        return check_bucket(self._bucket, self._lock, self._clock, self._storage_class)

    @contextmanager
    def lane(self, *, progress: Progress, cancel: Cancel) -> Iterator[ObjectLane]:
        with self._lanes.lease(cancel) as name:
            yield ObjectLane(self.put, name)

    def put(self, outgoing: Outgoing, epoch: int, lane: str, progress: Progress, cancel: Cancel) -> Receipt:
        """See ``Lane.put``."""
        image = safe_name(outgoing.image)
        folder, mark = f"images/{image}", self._mark()
        able = self._require_able(progress)
        self._uploader.require_room(outgoing.size_bytes, outgoing.most_bytes)
        began = self._clock.now()
        origin = render_origin(mark, image, epoch)
        try:
            whole, _ = self._copy_of(image)
            if whole is not None:
                there = made_before(self.name, whole, outgoing, epoch, lane)
                if there is not None and self._is_locked(image, whole):
                    return there
            require_free(
                self.name, image, epoch, self._read_in(image), self._objects_of(image), mark, outgoing.digest
            )
            if whole is not None:
                self._remove(image)
            self._write(f"{folder}/{ORIGIN}", origin, cancel)
        except Forbidden:
            self._write(f"{folder}/{ORIGIN}", origin, cancel)
            self._write(f"{folder}/{COPY}", json.dumps({"image": image, "unfinished": epoch}).encode())
        try:
            said = about(image, epoch, outgoing)
            stored = self._put_data(outgoing, said, f"{folder}/{data_name(said)}", able, progress, cancel)
            for name in SIDE_FILES:
                if name != META:
                    self._put_side(outgoing, name, able, cancel)
            if stored.verified:
                said[CRC] = crc_text(stored.crc)
            self._write(f"{folder}/{COPY}", json.dumps(said).encode(), cancel)
            self._write(f"{folder}/{META}", outgoing.side_files[META], cancel)
            self._require_locked(image, said, began)
        except NightferryError as error:
            if not error.retryable and not isinstance(error, Cancelled):
                self._tidy(image)
            raise
        return Receipt(location_of(said), stored.size_bytes, lane=lane, verified=stored.verified)

    def _abilities(self) -> Abilities:
        return abilities(self._bucket, self._lock, self._storage_class, self._clock.now())

    def _require_able(self, progress: Progress) -> Abilities:
        """What the endpoint can; what is done without is said, once.

        Raises:
            DestinationError: copies cannot be made as the site file wants them; `check` says the same.
        """
        able = self._abilities()
        able.require()
        if not self._has_said:
            self._has_said = True
            for finding in able.findings:
                progress.say(finding.text)
        return able

    def _is_locked(self, image: str, said: Mapping[str, Any]) -> bool:
        """Whether a copy that is there has the lock that is wanted, for as long as is left of it."""
        try:
            self._require_locked(image, said, self._clock.now(), days=0)
        except NotLocked:
            return False
        return True

    def _require_locked(
        self, image: str, said: Mapping[str, Any], began: datetime, *, days: int | None = None
    ) -> None:
        """Raises:
        NotLocked: an object of the copy lacks the lock that it was stored with.
        """
        if self._lock is None:
            return
        until = began + timedelta(days=self._lock.days if days is None else days)
        for name in (data_name(said), ORIGIN, COPY, *SIDE_FILES):
            require_locked(self._bucket, f"images/{image}/{name}", self._lock, until)

    def _put_data(
        self,
        outgoing: Outgoing,
        said: dict[str, Any],
        path: str,
        able: Abilities,
        progress: Progress,
        cancel: Cancel,
    ) -> Stored:
        there = self._there(outgoing, said, path, able.checksums, progress, cancel)
        if there is not None:
            return there
        extra: dict[str, Any] = self._locked()
        if self._storage_class:
            extra["StorageClass"] = self._storage_class
        said["size_bytes"] = outgoing.size_bytes
        return self._uploader.store(
            path,
            watched(outgoing, said, progress, cancel),
            None if outgoing.encoding else outgoing.size_bytes,
            most_bytes=outgoing.most_bytes,
            spans=partial(watched_spans, outgoing, said, progress, cancel),
            digest=outgoing.digest,
            able=able,
            cancel=cancel,
            extra=extra,
        )

    def _put_side(self, outgoing: Outgoing, name: str, able: Abilities, cancel: Cancel) -> None:
        """A side file, written over if it is there: in parts when it is large."""
        path = f"images/{outgoing.image}/{name}"
        source = large_side_file(outgoing, name)
        if source is None:
            self._write(path, outgoing.side_files[name], cancel)
            return
        self._uploader.store(
            path,
            source.chunks(),
            source.size_bytes,
            most_bytes=source.size_bytes,
            spans=partial(plain_spans, source.chunks),
            digest=outgoing.digest,
            able=replace(able, conditions=False),
            cancel=cancel,
            extra=self._locked(),
        )

    def _there(
        self,
        outgoing: Outgoing,
        said: dict[str, Any],
        path: str,
        checksums: bool,
        progress: Progress,
        cancel: Cancel,
    ) -> Stored | None:
        """Data that an earlier try stored and did not live to make a copy of; what is not it is removed.

        The staged bytes are read for their CRC: what the store says it holds must be what we would send.
        """
        try:
            head = self._bucket.head(path)
        except Forbidden:
            return None
        if head is None:
            return None
        if head.digest == outgoing.digest:
            crc = 0
            for piece in watched(outgoing, said, progress, cancel):
                crc = joined_crc(crc, crc64(piece), len(piece))
            proved = checksums and head.crc == crc_text(crc)
            if head.size_bytes == said["size_bytes"] and (proved or not checksums):
                return Stored(head.size_bytes, crc, proved)
        self._bucket.delete(path)
        return None

    def _write(self, path: str, data: bytes, cancel: Cancel | None = None, *, locked: bool = True) -> None:
        """A small object, written over if it is there."""
        self._bucket.call(
            "put_object",
            cancel=cancel,
            Key=self._bucket.key(path),
            Body=data,
            **proof(data, self._abilities().checksums),
            **(self._locked() if locked else {}),
        )

    def _locked(self) -> dict[str, Any]:
        if self._lock is None:
            return {}
        return self._lock.headers(self._clock.now() + timedelta(days=self._lock.days))

    def _tidy(self, image: str) -> None:
        """Removes what a failed put wrote. What cannot be removed now, or by this key, is not a whole copy."""
        try:
            self._remove(image)
        except DestinationError:
            return

    def _remove(self, image: str) -> None:
        for name in NAMES:
            self._bucket.delete(f"images/{image}/{name}")

    def _read_in(self, image: str) -> Callable[[str], bytes | None]:
        """Gives small objects of an image's folder by name; None when they are not there."""
        return lambda name: self._bucket.get(f"images/{image}/{name}", MOST_BYTES.get(name, MARKER_BYTES))

    def _objects_of(self, image: str) -> Iterator[str]:
        """The objects of a copy in an image's folder."""
        folder = f"images/{image}/"
        names = (entry.path.removeprefix(folder) for entry in self._bucket.tree(folder))
        return (name for name in names if name in NAMES)

    def _copy_of(self, image: str, seen_by: Bucket | None = None) -> tuple[dict[str, Any] | None, bool]:
        """``copy.json`` of a whole copy, None when the image is not here or not whole; and whether its data is
        still what the store compared with our checksum."""
        folder, bucket = f"images/{image}", seen_by or self._bucket
        text = bucket.get(f"{folder}/{COPY}", MOST_BYTES[COPY])
        said = None if text is None else parse_about(image, text)
        if said is None or bucket.head(f"{folder}/{META}") is None:
            return None, False
        data = bucket.head(f"{folder}/{data_name(said)}")
        if data is None or data.size_bytes != said["size_bytes"]:
            return None, False
        return said, bool(data.crc) and data.crc == said.get(CRC)

    def find(self, image: str, epoch: int) -> Receipt | None:
        """See ``Destination.find``. A key that may not read finds nothing; a copy without the lock that is wanted
        is none."""
        try:
            said, proved = self._copy_of(safe_name(image))
        except Forbidden:
            return None
        if said is None or said["epoch"] != epoch or not self._is_locked(image, said):
            return None
        return replace(receipt_of(said), verified=proved)

    @contextmanager
    def open(self, location: Mapping[str, Any]) -> Iterator[ByteReader]:
        path = data_path(location)
        head = self._bucket.head(path)
        if head is None or head.size_bytes != location["size_bytes"]:
            raise misfit(self.name, path, None if head is None else head.size_bytes, location)
        away = archived(self._bucket, path, head, self._recall)
        if away is not None:
            raise NeedsRecall(
                f"{self.name}: {path} lies in {away.storage_class} and must be recalled before it is read",
                subject=place_of(location)[0],
            )
        yield ObjectReader(self._bucket, path, head, memory=self._read_ahead)

    def archived(self, location: Mapping[str, Any]) -> Archived | None:
        """See ``Recalls.archived``. What is not there is not archived; ``open`` says more."""
        path = data_path(location)
        head = self._bucket.head(path)
        return None if head is None else archived(self._bucket, path, head, self._recall)

    def recall(self, location: Mapping[str, Any]) -> None:
        """See ``Recalls.recall``."""
        path = data_path(location)
        head = self._bucket.head(path)
        if head is None:
            raise self._missing(path)
        ask(self._bucket, path, head, self._recall)

    def side_file(
        self,
        location: Mapping[str, Any],
        name: str,
        *,
        most_bytes: int = MAXIMUM,
        cancel: Cancel | None = None,
    ) -> Content:
        return self._spooled(side_path(location, name), min(most_bytes, MOST_BYTES[name]), cancel)

    def _spooled(self, path: str, most_bytes: int, cancel: Cancel | None) -> Content:
        """As ``_get``, of an object that memory may have no room for."""
        head = self._bucket.head(path)
        if head is None or head.size_bytes <= min(most_bytes, HELD_BYTES):
            return self._get(path, min(most_bytes, HELD_BYTES))
        size = require_length(self.name, path, head.size_bytes, most_bytes)
        return spooled(
            ObjectReader(self._bucket, path, head, memory=self._read_ahead).stream(0, size), cancel
        )

    def describe(self, location: Mapping[str, Any]) -> Found:
        return require_found(self.name, place_of(location)[0], self._scanned)

    def redescribe(self, location: Mapping[str, Any], digest: str, side_files: Mapping[str, Content]) -> None:
        image, recorded = place_of(location)
        path, folder, mark = data_path(location), f"images/{image}", self._mark()
        head = self._bucket.head(path)
        if head is None or head.size_bytes != recorded:
            raise misfit(self.name, path, None if head is None else head.size_bytes, location)
        with suppress(MediumDamaged):  # what cannot be read names nobody
            require_not_others(self.name, parse_origin(image, self._read_in(image)(ORIGIN)), mark)
        self._write(f"{folder}/{ORIGIN}", render_origin(mark, image, location["epoch"]))
        for name, data in described_again(location, digest, side_files).items():
            self._write(f"{folder}/{name}", whole(data))

    def _get(self, path: str, most_bytes: int) -> bytes:
        data = self._bucket.get(path, most_bytes)
        if data is None:
            raise self._missing(path)
        return data

    def _missing(self, path: str) -> MediumDamaged:
        return MediumDamaged(f"{self.name}: {path} is not there", subject=self.name)

    def remove(self, location: Mapping[str, Any]) -> None:
        self._remove(place_of(location)[0])

    def locked(self, location: Mapping[str, Any]) -> Locked | None:
        return expiry.locked_until(self._remover.bucket, place_of(location)[0], self._clock.now())

    def expire(self, location: Mapping[str, Any], digest: str) -> str:
        return expiry.remove_copy(
            self._remover.bucket,
            place_of(location)[0],
            self._clock.now(),
            locks=self._lock is not None,
            mark=self._mark(),
            digest=digest,
        )

    def orphans(self, before: datetime) -> Iterator[Orphan]:
        bucket = self._remover.bucket
        return expiry.orphans(bucket, lambda image: self._copy_of(image, bucket)[0], before, self._mark())

    def clear(self, orphan: Orphan) -> None:
        expiry.clear(self._remover.bucket, orphan)

    def scan(self, odd: Callable[[Odd], None] = ignore) -> Iterator[Found]:
        for path in self._bucket.contents("images"):
            if not path.endswith("/"):
                odd(Odd(path, "it is not in an image's folder"))
                continue
            name = path.removeprefix("images/").rstrip("/")
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
        folder, read = f"images/{image}", self._read_in(image)
        if not is_image(image):  # nothing is read of what others have there
            return Odd(folder, "its name is not an image's")
        said, _ = self._copy_of(image)
        meta = None if said is None else read(META)
        if said is not None and meta is not None:
            return found_copy(said, meta, image, lambda: self._bucket.get(f"{folder}/{ORIGIN}", MARKER_BYTES))
        sizes = {
            entry.path.removeprefix(f"{folder}/"): entry.size_bytes
            for entry in self._bucket.tree(f"{folder}/")
        }
        return odd_copy(image, sizes, read(COPY), expiry.origin_of(self._bucket, image))

    def marker(self) -> bytes | None:
        try:
            return self._bucket.get(MARKER, MARKER_BYTES)
        except Forbidden as error:
            raise NotVisible(error.message, subject=self.name, hint=error.hint) from error

    def put_marker(self, text: bytes) -> None:
        """See ``Marked.put_marker``. Where conditions are not honoured two at once may both write it."""
        able = self._abilities()
        marker: dict[str, Any] = {"Key": self._bucket.key(MARKER), "Body": text} | proof(text, able.checksums)
        put = None
        if able.conditions:
            put = self._bucket.call("put_object", IfNoneMatch="*", unless=(409, 412), **marker)
        try:
            if put is None and self._bucket.head(MARKER) is None:
                self._bucket.call("put_object", **marker)
        except Forbidden:
            return  # it was refused because one is there, or because nothing can be known of it

    def images(self) -> Iterator[str]:
        return (name for name in self._bucket.folders("images") if is_image(name))

    def has_copy(self, location: Mapping[str, Any], digest: str, mark: SiteMark) -> bool:
        image = place_of(location)[0]
        return is_proved(self._read_in(image), image, mark, digest)

    def put_records(self, name: str, data: bytes) -> None:
        self._keep("records", name, data, is_records)

    def records(self) -> Iterator[bytes | MediumDamaged]:
        for path, _ in self._of_kind("records", is_records):
            try:
                yield self._get(path, MOST_RECORDS_BYTES)
            except MediumDamaged as error:
                yield error

    def put_catalog(self, name: str, data: bytes) -> None:
        """See ``Destination.put_catalog``. A key that may only write keeps them all."""
        self._keep("catalog", name, data, is_catalog)

    def _keep(self, folder: str, name: str, data: bytes, is_one: Callable[[str], bool]) -> None:
        """Keeps the newest few objects of a kind."""
        self._write(f"{folder}/{safe_name(name)}", data, locked=False)
        try:
            kept = sorted((path for path, _ in self._of_kind(folder, is_one)), key=_age)
            for path in kept[:-CATALOGS_KEPT]:
                self._bucket.delete(path)
        except Forbidden:
            return

    def _of_kind(self, folder: str, is_one: Callable[[str], bool]) -> Iterator[tuple[str, datetime]]:
        found = self._bucket.objects(folder)
        return ((path, at) for path, at in found if is_one(path.rpartition("/")[2]))

    def catalog_copies(self) -> list[str]:
        found = self._of_kind("catalog", is_catalog)
        return sorted((path.rpartition("/")[2] for path, _ in found), key=age_of, reverse=True)

    def get_catalog(self, name: str, *, cancel: Cancel | None = None) -> Content:
        return self._spooled(f"catalog/{safe_name(name)}", MOST_CATALOG_BYTES, cancel)

    def close(self) -> None:
        self._uploader.close()
        self._bucket.close()
        self._remover.close()


def _age(path: str) -> tuple[int, str]:
    return age_of(path.rpartition("/")[2])


class Remover:
    """The bucket as the key sees it that removes what has expired; opened when it is first needed, so that a
    night needs no such key."""

    def __init__(self, opened: Callable[[], Bucket]) -> None:
        self._open = opened
        self._bucket: Bucket | None = None

    @property
    def bucket(self) -> Bucket:
        """Raises:
        ConfigError: its key's reference or profile cannot be resolved.
        """
        if self._bucket is None:
            self._bucket = self._open()
        return self._bucket

    def close(self) -> None:
        """May be called twice."""
        if self._bucket is not None:
            self._bucket.close()
