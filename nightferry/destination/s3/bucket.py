"""A bucket's verbs: tried again through the endpoint's back-off, bounded, and failing in our own words."""

from __future__ import annotations

import hashlib
import logging
import threading
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from botocore.exceptions import ClientError, IncompleteReadError

from nightferry.destination.base import Span
from nightferry.destination.orphans import Entry
from nightferry.destination.s3.backoff import Backoff
from nightferry.destination.s3.client import Connection
from nightferry.destination.s3.failure import (
    EXPIRED,
    FAULTS,
    Forbidden,
    NotSupported,
    as_s3_error,
    code_of,
    is_expired,
    is_passing,
    status_of,
)
from nightferry.destination.s3.listing import Listing
from nightferry.destination.s3.parts import Streamed, crc64, crc_text
from nightferry.errors import ConfigError, DestinationError, MediumDamaged
from nightferry.progress import Cancel

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
"""What one read asks of the socket; a connection that breaks loses less than so much."""
DIGEST = "nightferry-digest"
"""User metadata of an image's data: the image's digest, by which a retry knows its own object again."""

WRITTEN_S = 5.0
"""For so long a file of keys may be on its way to the disk."""
LOOK_S = 0.25

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """What an object says of itself."""

    size_bytes: int
    etag: str
    digest: str
    """The image digest it was stored with; empty for what is no image's data."""
    crc: str
    """Its full-object CRC64NVME in base64; empty when the store keeps none."""
    storage_class: str = ""
    restore: str = ""
    """The store's words about a recall from an archived class."""
    archive: str = ""
    """The archive of an intelligent class that it was moved to by itself."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that is not complete."""

    key: str
    upload_id: str
    initiated: datetime


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object, or a delete marker."""

    path: str
    version: str
    is_marker: bool


@dataclass(frozen=True, slots=True)
class PartThere:
    """A part that the store has."""

    number: int
    size_bytes: int
    etag: str
    crc: str
    changed: datetime | None = None


class Bucket:
    """Objects below the destination's prefix, by relative path.

    Verbs raise ``Unavailable`` when the endpoint stays silent, ``Forbidden`` when the key may not, other
    ``DestinationError`` when it refuses.

    Args:
        name: The destination's name, for messages.
        connection: The opened client.
        backoff: The endpoint's.
    """

    def __init__(self, name: str, connection: Connection, backoff: Backoff) -> None:
        self.name = name
        self.bucket = connection.bucket
        self.endpoint = connection.endpoint
        self._connection = connection
        self._given_up: list[Connection] = []
        self._renewal = threading.Lock()
        self._prefix = connection.prefix
        self._backoff = backoff

    def key(self, path: str) -> str:
        return self._prefix + path

    def path(self, key: str) -> str:
        return key.removeprefix(self._prefix)

    def call(
        self,
        verb: str,
        *,
        cancel: Cancel | None = None,
        unless: Collection[int | str] = (),
        **params: Any,
    ) -> Mapping[str, Any] | None:
        """One request of boto3's client.

        Args:
            verb: The client's method.
            cancel: Seen between two tries.
            unless: HTTP statuses and S3 codes that are answers too.
            params: The method's, without the bucket.

        Returns:
            What boto3 returns; None for an answer of ``unless``.
        """

        def request(client: Any) -> Mapping[str, Any] | None:
            try:
                answer: Mapping[str, Any] = getattr(client, verb)(Bucket=self.bucket, **params)
                return answer
            except ClientError as error:
                answers = status_of(error) in unless or code_of(error) in unless
                if answers and code_of(error) not in EXPIRED:
                    return None
                raise

        try:
            return self._backoff.run(lambda: self._asked(request), cancel or Cancel())
        except FAULTS as error:
            what = f"{verb} {params.get('Key', '')}".rstrip()
            raise self._failed(error, what) from None

    def _failed(self, error: Exception, what: str) -> DestinationError:
        return as_s3_error(error, self.name, what, self._connection.secrets())

    def _asked(self, request: Callable[[Any], T]) -> T:
        """What the client answers; another one with newer keys where the store takes this one's no longer."""
        used = self._connection
        try:
            return request(used.client)
        except ClientError as error:
            if is_expired(error):
                if self._renewed(used):
                    return request(self._connection.client)
                if code_of(error).isdecimal():  # a HEAD has no words: another request is told why
                    used.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)
            raise

    def _renewed(self, used: Connection) -> bool:
        """Whether there are other keys by now than those that were used."""
        with self._renewal:
            if self._connection is used:
                try:
                    fresh = self._opened_again(used)
                except ConfigError as error:
                    log.warning(
                        "%s: the session has expired, and there are no newer keys: %s", self.name, error
                    )
                    return False
                if fresh.has_keys_of(used):
                    fresh.session.close()
                    return False
                log.info("%s: the session has expired; going on with newer keys", self.name)
                self._given_up.append(used)  # other threads may be at work with it
                self._connection = fresh
            return True

    def _opened_again(self, used: Connection) -> Connection:
        """The connection with the keys as they are now.

        Tools that log in write their file in place: for a moment it is empty, or has a half of them, which may look
        whole. Other keys of a file count when two looks at them agree.

        Raises:
            ConfigError: they cannot be read, or change, for ``WRITTEN_S``.
        """
        clock = self._backoff.clock
        ends = clock.monotonic() + WRITTEN_S
        before: Connection | None = None
        why = ConfigError(
            f"{self.name}: there are no keys, or they change at each reading", subject=self.name
        )
        while True:
            fresh: Connection | None = None
            try:
                fresh = used.again()
            except ConfigError as error:
                why = error
            if before is not None:
                before.session.close()
            if fresh is not None:
                agreed = before is not None and fresh.has_keys_of(before)
                settled = bool(fresh.credentials) and (agreed or not fresh.reads_a_file)
                if settled or fresh.has_keys_of(used):
                    return fresh
            before = fresh
            if clock.monotonic() >= ends:
                if fresh is not None:
                    fresh.session.close()
                raise why
            clock.sleep(LOOK_S)

    def require(self) -> None:
        """Raises:
        DestinationError: there is no such bucket.
        """
        try:
            there = self.call("head_bucket", unless=(404,)) is not None
        except Forbidden:  # it is there; its name is all we wanted to know
            there = True
        if not there:
            raise DestinationError(
                f"{self.name}: there is no bucket {self.bucket!r} at {self.endpoint}",
                subject=self.name,
                hint="create the bucket, or correct the url",
            )

    def time_there(self) -> datetime | None:
        """What the endpoint's clock says; None when it does not say."""
        answer = self.call("head_bucket", unless=(403,)) or {}
        said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
        try:
            return parsedate_to_datetime(said)
        except ValueError:
            return None

    def head(self, path: str) -> Head | None:
        """What an object says of itself; None when it is not there.

        Raises:
            Forbidden: the key may not read.
        """
        found = self.call("head_object", Key=self.key(path), ChecksumMode="ENABLED", unless=(404,))
        if found is None:
            self.require()
            return None
        return Head(
            int(found.get("ContentLength", -1)),
            str(found.get("ETag", "")),
            str(found.get("Metadata", {}).get(DIGEST, "")),
            whole_crc(found),
            str(found.get("StorageClass", "")),
            str(found.get("Restore", "")),
            str(found.get("ArchiveStatus", "")),
        )

    def is_readable(self, path: str) -> bool:
        """Whether an object that is there gives its bytes, or must be recalled first. Reads one of them."""
        found = self.call("get_object", Key=self.key(path), Range="bytes=0-0", unless=("InvalidObjectState",))
        if found is None:
            return False
        found["Body"].close()
        return True

    def get(self, path: str, most_bytes: int, version: str = "") -> bytes | None:
        """A small object's bytes, or those of one version of it; None when it is not there.

        Raises:
            MediumDamaged: it is longer than ``most_bytes``.
        """
        key = self.key(path)
        which: dict[str, Any] = {"VersionId": version} if version else {}

        def request(client: Any) -> bytes | None:
            try:
                answer = client.get_object(Bucket=self.bucket, Key=key, **which)
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise
            body = answer["Body"]
            try:
                length = answer.get("ContentLength")
                if length is None:
                    raise MediumDamaged(f"{self.name}: {key} came without a length", subject=self.name)
                if length > most_bytes:
                    raise MediumDamaged(
                        f"{self.name}: {key} has {length} bytes, but at most {most_bytes} are plausible",
                        subject=self.name,
                    )
                data = bytearray(length)
                _read_into(body, memoryview(data))
                return bytes(data)
            finally:
                body.close()

        try:
            data = self._backoff.run(lambda: self._asked(request), Cancel())
        except FAULTS as error:
            raise self._failed(error, f"get {key}") from None
        if data is None:
            self.require()
        return data

    def get_range(self, path: str, offset: int, into: memoryview, etag: str, size_bytes: int) -> None:
        """Fills ``into`` with an object's bytes from ``offset`` on. A cut continues where it was cut; the tries
        are counted again whenever bytes came.

        Raises:
            MediumDamaged: the object is gone, or is not any more the one with this ``etag`` and size.
        """
        key, done = self.key(path), 0

        def request(client: Any) -> None:
            nonlocal done
            first, last = offset + done, offset + len(into) - 1
            answer = client.get_object(
                Bucket=self.bucket, Key=key, Range=f"bytes={first}-{last}", IfMatch=etag
            )
            body = answer["Body"]
            try:
                said = answer.get("ContentRange", "")
                if said != f"bytes {first}-{last}/{size_bytes}":
                    raise DestinationError(
                        f"{self.name}: asked for bytes {first}-{last}/{size_bytes} of {key}, "
                        f"it answers with {said[:80]!r}",
                        subject=self.name,
                    )
                while done < len(into):
                    done += _read_some(body, into[done:])
            finally:
                body.close()

        while done < len(into):
            before = done
            try:
                self._backoff.run(lambda: self._asked(request), Cancel())
            except FAULTS as error:
                if done > before and is_passing(error):
                    continue
                if status_of(error) in (404, 412, 416):
                    self.require()
                    raise MediumDamaged(
                        f"{self.name}: {key}is no longer the object that was stored", subject=self.name
                    ) from error
                raise self._failed(error, f"get {key}") from None

    def send_part(
        self, key: str, upload_id: str, number: int, span: Span, proved: Mapping[str, str], cancel: Cancel
    ) -> str | None:
        """Sends a part from a source that every try reads again.

        Args:
            key: The object's.
            upload_id: Its upload.
            number: The part's.
            span: Its bytes.
            proved: Its checksum, as the request says it.
            cancel: Seen between two tries.

        Returns:
            Its ETag; None when there is no such upload any more.

        Raises:
            NightferryError: what the source raised.
        """

        def request(client: Any) -> str | None:
            body = Streamed(span)
            try:
                answer = client.upload_part(
                    Bucket=self.bucket,
                    Key=key,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=body,
                    ContentLength=span.size_bytes,
                    **proved,
                )
            except FAULTS as error:
                if body.error is not None:
                    raise body.error from None
                if code_of(error) == "NoSuchUpload":
                    return None
                raise
            return str(answer["ETag"])

        try:
            return self._backoff.run(lambda: self._asked(request), cancel)
        except FAULTS as error:
            raise self._failed(error, f"upload_part {key}") from None

    def delete(self, path: str, version: str = "") -> bool:
        """Removes an object, or one version of it; none there is fine.

        Returns:
            Whether a delete marker was put there: in a versioned bucket that only hides the object.
        """
        which: dict[str, Any] = {"VersionId": version} if version else {}
        answer = self.call(
            "delete_object", Key=self.key(path), unless=("NoSuchKey", "NoSuchVersion"), **which
        )
        return not version and bool((answer or {}).get("DeleteMarker"))

    def tree(self, prefix: str) -> Iterator[Entry]:
        """Every object whose path begins so, however deep."""
        for page in self._pages("list_objects_v2", self.key(prefix)):
            for entry in page.get("Contents", ()):
                yield Entry(self.path(str(entry["Key"])), int(entry["Size"]), entry["LastModified"])

    def versions(self, prefix: str) -> Iterator[Version]:
        """Every version, and every delete marker, of the objects whose path begins so.

        Raises:
            Forbidden: the key may not list them, or the store does not know how.
        """
        for page in self._pages("list_object_versions", self.key(prefix), unless=(405, 501)):
            for kind in ("Versions", "DeleteMarkers"):
                for entry in page.get(kind, ()):
                    yield Version(
                        self.path(str(entry["Key"])), str(entry["VersionId"]), kind == "DeleteMarkers"
                    )

    def folders(self, folder: str) -> Iterator[str]:
        """Names of the folders in a folder, in order of the store."""
        for page in self._pages("list_objects_v2", self.key(f"{folder}/"), Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield str(entry.get("Prefix", "")).rstrip("/").rpartition("/")[2]

    def objects(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Paths of the objects in a folder with when they were written."""
        for page in self._pages("list_objects_v2", self.key(f"{folder}/"), Delimiter="/"):
            for entry in page.get("Contents", ()):
                yield self.path(str(entry["Key"])), entry["LastModified"]

    def contents(self, folder: str = "") -> Iterator[str]:
        """Paths of the objects and folders right below a folder, or the prefix; a folder's ends in a slash."""
        below = self.key(f"{folder}/" if folder else "")
        for page in self._pages("list_objects_v2", below, Delimiter="/"):
            for entry in page.get("Contents", ()):
                if str(entry["Key"]) != below:  # some stores keep an object for the folder itself
                    yield self.path(str(entry["Key"]))
            for entry in page.get("CommonPrefixes", ()):
                yield self.path(str(entry.get("Prefix", "")))

    def uploads(self, path: str) -> Iterator[Upload]:
        """Multipart uploads that were begun and neither completed nor aborted, below a path.

        Raises:
            Forbidden: the key may not list them, or the store does not know how.
        """
        for page in self._pages("list_multipart_uploads", self.key(path), unless=(405, 501)):
            for entry in page.get("Uploads", ()):
                yield Upload(str(entry["Key"]), str(entry["UploadId"]), entry["Initiated"])

    def parts(self, upload: Upload) -> Iterator[PartThere]:
        """The parts that an upload has so far.

        Raises:
            Forbidden: the key may not list them, or the store does not know how.
        """
        where = {"Key": upload.key, "UploadId": upload.upload_id}
        for page in self._pages("list_parts", None, unless=(405, 501), **where):
            for entry in page.get("Parts", ()):
                yield PartThere(
                    int(entry["PartNumber"]),
                    int(entry["Size"]),
                    str(entry["ETag"]),
                    str(entry.get("ChecksumCRC64NVME", "")),
                    entry.get("LastModified"),
                )

    def abort(self, key: str, upload_id: str) -> None:
        """Gives an upload's parts up; none there is fine."""
        self.call("abort_multipart_upload", Key=key, UploadId=upload_id, unless=(404,))

    def close(self) -> None:
        """Closes the connections. May be called twice."""
        for connection in (self._connection, *self._given_up):
            connection.session.close()

    def _pages(
        self, verb: str, prefix: str | None, *, unless: Collection[int] = (), **params: Any
    ) -> Iterator[Mapping[str, Any]]:
        """A listing page by page, each through the back-off, to its end.

        Raises:
            NotSupported: the answer has a status of ``unless``.
            ListingCut: it is not all of the listing, whatever it says.
        """
        where: dict[str, Any] = {} if prefix is None else {"Prefix": prefix}
        listing = Listing(f"{self.name}: {verb}", verb, prefix or "", params.get("Delimiter", ""))
        marks: Mapping[str, Any] | None = {}
        while marks is not None:
            page = self.call(verb, unless=unless, **where, **params, **marks)
            if page is None:
                raise NotSupported(f"{self.name}: {verb} is not supported there", subject=self.name)
            marks = listing.following(page)
            yield page


def proof(data: bytes | bytearray, checksums: bool) -> dict[str, str]:
    """The digest that a request carries: buckets with object lock take none without."""
    if checksums:
        return {"ChecksumCRC64NVME": crc_text(crc64(data))}
    return {"ContentMD5": b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()}


def whole_crc(answer: Mapping[str, Any]) -> str:
    """The CRC64NVME of the whole object that an answer names, in base64; empty when it names none."""
    full = answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    return str(answer.get("ChecksumCRC64NVME", "")) if full else ""


def _read_some(body: Any, into: memoryview) -> int:
    """Reads at least one byte.

    Raises:
        IncompleteReadError: the connection ended.
    """
    count = int(body.readinto(into[:READ_BYTES]))
    if count == 0:
        raise IncompleteReadError(actual_bytes=0, expected_bytes=len(into))
    return count


def _read_into(body: Any, into: memoryview) -> None:
    done = 0
    while done < len(into):
        done += _read_some(body, into[done:])
