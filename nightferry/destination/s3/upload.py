"""Storing an object so that it is there once, whole, and proved where the store can prove it.

Memory: part buffers are at most ``parts.MEMORY_BYTES`` for all uploads of a destination together, whatever
the images' size; the whole program stays below 300 MiB.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from nightferry.destination.base import Measure, Span
from nightferry.destination.s3.bucket import DIGEST, Bucket, PartThere, proof, whole_crc
from nightferry.destination.s3.failure import Forbidden, KeysRefused
from nightferry.destination.s3.parts import (
    IN_FLIGHT,
    MEMORY_BYTES,
    MOST_PARTS,
    PART_BYTES,
    Memory,
    MemoryPart,
    StreamedPart,
    crc64,
    crc_text,
    cut,
    joined_crc,
    part_size,
    streamed,
)
from nightferry.destination.s3.probe import Abilities
from nightferry.errors import Cancelled, DestinationError, NightferryError, Unavailable
from nightferry.progress import Cancel
from nightferry.units import TIB, format_size

log = logging.getLogger(__name__)

THREADS = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that is there. ``verified``: the store's own CRC of all of it is ours."""

    size_bytes: int
    crc: int
    verified: bool


@dataclass(frozen=True, slots=True)
class _Sent:
    number: int
    size_bytes: int
    etag: str
    crc: int


class Uploader:
    """Stores objects in a bucket, parts of all of them in the same threads and memory.

    Args:
        bucket: Where to.
        most_parts: The provider's limit.
        part_bytes: The smallest part; tests make it small.
        memory_bytes: For part buffers.
        object_bytes: The largest image that the store takes as one object.
        threads: Requests at once.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        most_parts: int = MOST_PARTS,
        part_bytes: int = PART_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        object_bytes: int = 5 * TIB,
        threads: int = THREADS,
    ) -> None:
        self._bucket = bucket
        self._most_parts = most_parts
        self._part_bytes = part_bytes
        self._object_bytes = object_bytes
        self.memory = Memory(memory_bytes)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"{bucket.name}-part")

    def require_room(self, size_bytes: int, most_bytes: int) -> None:
        """Raises:
        DestinationError: an image of so many bytes, and of ``most_bytes`` on its way, fits into no object here.
        """
        if size_bytes > self._object_bytes:
            raise DestinationError(
                f"{self._bucket.name}: an image of {format_size(size_bytes)} is larger than the "
                f"{format_size(self._object_bytes)} that an object there may have",
                hint="shard the store; or raise max_object where the store takes larger objects",
            )
        self._part_size(most_bytes)

    def store(
        self,
        path: str,
        pieces: Iterator[memoryview],
        length: int | None,
        *,
        most_bytes: int,
        spans: Callable[[int, Measure], Iterator[Span]],
        digest: str,
        able: Abilities,
        cancel: Cancel,
        extra: Mapping[str, Any] | None = None,
    ) -> Stored:
        """Stores a stream under a name that nothing has yet.

        Parts have one size, by which ``most_bytes`` fit. They are held in memory where four of them fit there,
        else streamed. What an earlier try left of the same upload is continued, part by part where the bytes
        are the same. An answer that was lost is looked for: an object with our size and digest is ours.

        Args:
            path: Below the prefix.
            pieces: The bytes in order; a piece is copied before the next is asked for.
            length: Bytes to come, None when nobody knows.
            most_bytes: Bytes to come at most.
            spans: The same bytes as parts of a size that are too large to be held.
            digest: Kept with the object, to know it again.
            able: What the store can.
            cancel: Seen at every part and between tries.
            extra: More of what boto3's ``put_object`` takes: lock, storage class.

        Raises:
            DestinationError: ``retryable`` says whether another try can help; then the parts stay for it.
            NightferryError: what ``pieces`` raised; the parts are given up, unless it was a stop.
        """
        one = _Object(self._bucket, path, digest, able, cancel, dict(extra or {}))
        size = self._part_size(most_bytes)
        if IN_FLIGHT * min(size, most_bytes) > self.memory.size_bytes:
            return self._in_parts(one, streamed(spans(size, crc64), self.memory, cancel))
        parts = cut(pieces, repeat(size, self._most_parts), length, self.memory, cancel)
        first = next(parts)
        if len(first.data) < first.reserved or len(first.data) == length:
            try:
                return one.put(first.data)
            finally:
                first.drop()
        return self._in_parts(one, chain((first,), parts))

    def _part_size(self, most_bytes: int) -> int:
        return part_size(most_bytes, most_parts=self._most_parts, part_bytes=self._part_bytes)

    def close(self) -> None:
        """Ends the threads. May be called twice."""
        self._threads.shutdown()

    def _in_parts(self, one: _Object, parts: Iterator[MemoryPart | StreamedPart]) -> Stored:
        stop = threading.Event()
        sent: list[Future[_Sent]] = []
        upload_id = ""
        part: MemoryPart | StreamedPart | None = None
        try:
            part = next(parts)
            upload_id, there = one.begin()
            while part is not None and not stop.is_set():
                sent.append(self._threads.submit(_send, one, upload_id, part, there.get(part.number), stop))
                part = None
                part = next(parts, None)
            return one.complete(upload_id, [future.result() for future in sent], continued=bool(there))
        except BaseException as error:
            stop.set()
            wait(sent)
            if upload_id and isinstance(error, NightferryError) and not _continues(error):
                one.give_up(upload_id)
            raise
        finally:
            if part is not None:
                part.drop()


def _continues(error: NightferryError) -> bool:
    """Whether the next try can go on from the parts that are up, or somebody must see to the keys first."""
    return error.retryable or isinstance(error, Cancelled | Forbidden | KeysRefused)


def _send(
    one: _Object,
    upload_id: str,
    part: MemoryPart | StreamedPart,
    there: PartThere | None,
    stop: threading.Event,
) -> _Sent:
    try:
        if stop.is_set():
            raise Cancelled("another part failed")
        return one.send(upload_id, part, there)
    except BaseException:
        stop.set()
        raise
    finally:
        part.drop()


class _Object:
    """One object on its way: the requests of its upload."""

    def __init__(
        self, bucket: Bucket, path: str, digest: str, able: Abilities, cancel: Cancel, extra: dict[str, Any]
    ) -> None:
        self._bucket = bucket
        self._path = path
        self._key = bucket.key(path)
        self._digest = digest
        self._checksums = able.checksums
        self._condition = {"IfNoneMatch": "*"} if able.conditions else {}
        self._resumes = able.resumes
        self._cancel = cancel
        self._about = {"Metadata": {DIGEST: digest}, "ContentType": "application/octet-stream", **extra}

    def put(self, data: bytearray) -> Stored:
        crc = crc64(data)
        params = {"Key": self._key, "Body": data, **self._about, **proof(data, self._checksums)}
        return self._commit("put_object", params, len(data), crc)

    def begin(self) -> tuple[str, dict[int, PartThere]]:
        """The upload to go on with: the newest that an earlier try left, else a new one; others are given
        up."""
        there: dict[int, PartThere] = {}
        left = self._left()
        for older in left[:-1]:
            self._bucket.abort(older.key, older.upload_id)
        if left:
            there = {part.number: part for part in self._bucket.parts(left[-1])}
            if there:
                log.info("%s: continuing %s after %d parts", self._bucket.name, self._key, len(there))
                return left[-1].upload_id, there
            self._bucket.abort(left[-1].key, left[-1].upload_id)
        kind = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"} if self._checksums else {}
        begun = self._bucket.call(
            "create_multipart_upload", Key=self._key, cancel=self._cancel, **self._about, **kind
        )
        return str((begun or {})["UploadId"]), {}

    def _left(self) -> list[Any]:
        """Uploads of this key, the newest last; none where they cannot be listed."""
        if not self._resumes:
            return []
        try:
            found = [u for u in self._bucket.uploads(self._path) if u.key == self._key]
        except Forbidden:
            return []
        return sorted(found, key=lambda upload: upload.initiated)

    def send(self, upload_id: str, part: MemoryPart | StreamedPart, there: PartThere | None) -> _Sent:
        """A part that is up already with the same bytes is not sent again."""
        if isinstance(part, StreamedPart):
            return self._send_span(upload_id, part.number, part.span, there)
        size, crc = len(part.data), crc64(part.data)
        if there is not None and _is_same(there, part.data, crc):
            return _Sent(part.number, size, there.etag, crc)
        answer = self._bucket.call(
            "upload_part",
            cancel=self._cancel,
            Key=self._key,
            UploadId=upload_id,
            PartNumber=part.number,
            Body=part.data,
            unless=("NoSuchUpload",),
            **proof(part.data, self._checksums),
        )
        if answer is None:
            raise self._ended()
        return _Sent(part.number, size, str(answer["ETag"]), crc)

    def _send_span(self, upload_id: str, number: int, span: Span, there: PartThere | None) -> _Sent:
        size, crc = span.size_bytes, span.checksum
        if there is not None and _has_span(there, span):
            return _Sent(number, size, there.etag, crc)
        etag = self._bucket.send_part(self._key, upload_id, number, span, self._crc(crc), self._cancel)
        if etag is None:
            raise self._ended()
        return _Sent(number, size, etag, crc)

    def _ended(self) -> Unavailable:
        return Unavailable(
            f"{self._bucket.name}: the upload of {self._key} was ended by somebody else",
            subject=self._bucket.name,
        )

    def complete(self, upload_id: str, sent: list[_Sent], *, continued: bool) -> Stored:
        crc = size = 0
        for part in sent:
            crc = joined_crc(crc, part.crc, part.size_bytes)
            size += part.size_bytes
        listed = [{"PartNumber": part.number, "ETag": part.etag, **self._crc(part.crc)} for part in sent]
        kind = {"ChecksumType": "FULL_OBJECT", **self._crc(crc)} if self._checksums else {}
        params = {"Key": self._key, "UploadId": upload_id, "MultipartUpload": {"Parts": listed}, **kind}
        stored = self._commit("complete_multipart_upload", params, size, crc, upload_id)
        if continued and self._ours(size, crc) is None:
            self._bucket.delete(self._path)
            raise Unavailable(
                f"{self._bucket.name}: {self._key} was begun for another image; it is sent again",
                subject=self._bucket.name,
            )
        return stored

    def give_up(self, upload_id: str) -> None:
        """Aborts the upload; a store that does not let us keeps it, and `check` lists it."""
        try:
            self._bucket.abort(self._key, upload_id)
        except DestinationError as error:
            log.warning("%s: the parts of %s are left there: %s", self._bucket.name, self._key, error)

    def _commit(self, verb: str, params: dict[str, Any], size: int, crc: int, upload_id: str = "") -> Stored:
        """The request that makes the object appear, and what became of it.

        A try whose answer was lost may have done it: the next one then meets our own object (409, 412) or no
        upload any more (404). Its size and digest tell.
        """
        answer = self._bucket.call(
            verb,
            cancel=self._cancel,
            unless=(409, 412, "NoSuchUpload", "NotImplemented"),
            **self._condition,
            **params,
        )
        if answer is not None:
            return Stored(size, crc, self._proves(whole_crc(answer), crc))
        try:
            ours = self._ours(size, crc)
        except Forbidden:
            # A key that may only write cannot look, and nobody but us writes below an image's name.
            answer = self._bucket.call(verb, cancel=self._cancel, **params)
            return Stored(size, crc, self._proves(whole_crc(answer or {}), crc))
        if ours is None and self._bucket.head(self._path) is None:
            # The name is free: the condition met a passing conflict.
            answer = self._bucket.call(verb, cancel=self._cancel, unless=("NoSuchUpload",), **params)
            if answer is not None:
                return Stored(size, crc, self._proves(whole_crc(answer), crc))
        if ours is None:
            raise Unavailable(
                f"{self._bucket.name}: the upload of {self._key} did not complete",
                subject=self._bucket.name,
            )
        if upload_id:
            self.give_up(upload_id)
        return ours

    def _ours(self, size: int, crc: int) -> Stored | None:
        there = self._bucket.head(self._path)
        if there is None or there.size_bytes != size or there.digest != self._digest:
            return None
        if self._checksums and there.crc and not self._proves(there.crc, crc):
            return None
        return Stored(size, crc, self._proves(there.crc, crc))

    def _proves(self, said: str, crc: int) -> bool:
        return self._checksums and said == crc_text(crc)

    def _crc(self, crc: int) -> dict[str, str]:
        return {"ChecksumCRC64NVME": crc_text(crc)} if self._checksums else {}


def _has_span(there: PartThere, span: Span) -> bool:
    """The same of a part that is not held; where only an MD5 can tell it is read once more."""
    if there.size_bytes != span.size_bytes:
        return False
    if there.crc:
        return there.crc == crc_text(span.checksum)
    digest = hashlib.md5(usedforsecurity=False)
    for piece in span.opened():
        digest.update(piece)
    return there.etag.strip('"') == digest.hexdigest()


def _is_same(there: PartThere, data: bytearray, crc: int) -> bool:
    """Whether a part that is up has these bytes: by its CRC, else by its ETag where that is an MD5."""
    if there.size_bytes != len(data):
        return False
    if there.crc:
        return there.crc == crc_text(crc)
    return there.etag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()
