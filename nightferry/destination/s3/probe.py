"""What an endpoint really does with what a night asks of it, found with scratch objects.

`check` and the first copy of a night ask the same, by this code: what one of them finds, the other finds too.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from nightferry.destination.ours import SCRATCH
from nightferry.destination.s3.bucket import Bucket, Upload, proof, whole_crc
from nightferry.destination.s3.failure import Forbidden
from nightferry.destination.s3.listing import ListingCut
from nightferry.destination.s3.lock import NotLocked, Wanted, require_locked
from nightferry.destination.s3.parts import crc64, crc_text
from nightferry.errors import DestinationError
from nightferry.model.findings import Finding

_LOCKED_SCRATCH = f"{SCRATCH}-lock"
"""A locked object cannot be removed at once; this one is written over, and its old versions go when they may."""
_SHORT_LOCK = timedelta(minutes=20)
_BYTES = b"nightferry"
_RIGHT = crc_text(crc64(_BYTES))
_WRONG = crc_text(crc64(b"another"))
_REFUSALS = (400, 403, 404, 405, 409, 412, 501)
"""Whatever an endpoint may answer to a header that it does not know, or does not want."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a copy may ask of the endpoint, and what `check` says of it."""

    checksums: bool
    """CRC64NVME is compared with the bytes, of one request and of a whole multipart object."""
    conditions: bool
    """``If-None-Match: *`` keeps an object from being written over, and lets a new one by."""
    resumes: bool
    """Uploads that were begun, and their parts, can be listed."""
    findings: tuple[Finding, ...] = ()

    def require(self) -> None:
        """Raises:
        DestinationError: copies cannot be made as the site file wants them.
        """
        for finding in self.findings:
            if finding.severity == "fail":
                raise DestinationError(finding.text, hint=finding.fix)


_known: dict[tuple[Any, ...], Abilities] = {}
_asking: dict[tuple[Any, ...], threading.Lock] = {}
_lock = threading.Lock()


def abilities(
    bucket: Bucket, wanted: Wanted | None, storage_class: str | None, now: datetime, *, again: bool = False
) -> Abilities:
    """What the endpoint can. The answer is kept for the process, unless something fails.

    Args:
        bucket: Where the scratch objects go; those that cannot be removed stay.
        wanted: The lock of each object.
        storage_class: Of the images' data.
        now: What a lock counts from.
        again: Asks even where the answer is known.

    Raises:
        DestinationError: the store cannot be asked: it is away, or the key may not write.
    """
    where = (bucket.endpoint, bucket.bucket, bucket.key(""), wanted, storage_class)
    with _lock:
        turn = _asking.setdefault(where, threading.Lock())
    with turn:  # an endpoint that is silent keeps nobody from another one
        if again or where not in _known:
            found = _Probe(bucket, wanted, storage_class, now).run()
            _known.pop(where, None)
            if all(finding.severity != "fail" for finding in found.findings):
                _known[where] = found
            return found
        return _known[where]


def forget_abilities() -> None:
    """Asks again next time."""
    with _lock:
        _known.clear()


class _Probe:
    def __init__(
        self, bucket: Bucket, wanted: Wanted | None, storage_class: str | None, now: datetime
    ) -> None:
        self._bucket = bucket
        self._wanted = wanted
        self._class = storage_class
        self._now = now
        self._who = f"destination {bucket.name}"
        # A name of its own, so that any number of processes may ask at once.
        self._path = f"{SCRATCH}-{secrets.token_hex(8)}"
        self._scratch: dict[str, Any] = {
            "Key": bucket.key(self._path),
            "Body": _BYTES,
            **proof(_BYTES, checksums=False),
        }
        self._found: list[Finding] = []

    def run(self) -> Abilities:
        self._bucket.call("put_object", **self._scratch)
        try:
            checksums = self._checks_objects() and self._checks_whole_uploads()
            conditions = claims_once(self._bucket)
            self._found += [*self._without(checksums, conditions), *self._listing(), *self._reading()]
            self._found += [*self._storage_class(), *self._locking()]
            resumes = self._resumes(checksums)
        finally:
            self._removing()
        return Abilities(checksums, conditions, resumes, tuple(self._found))

    def _say(self, number: int, severity: Any, text: str, fix: str) -> Finding:
        return Finding(f"NF-S3-{number:03}", severity, f"{self._who}{text}", fix)

    def _checks_objects(self) -> bool:
        """An honest store refuses bytes under a wrong checksum, and takes them under the right one."""
        scratch: dict[str, Any] = {"Key": self._bucket.key(self._path), "Body": _BYTES}
        put = self._bucket.call
        wrong = put("put_object", ChecksumCRC64NVME=_WRONG, unless=_REFUSALS, **scratch)
        return wrong is None and (
            put("put_object", ChecksumCRC64NVME=_RIGHT, unless=_REFUSALS, **scratch) is not None
        )

    def _checks_whole_uploads(self) -> bool:
        """A refusal is worth something only when the right checksum is taken; that is seen in the part."""
        kind: dict[str, Any] = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        begun = self._bucket.call(
            "create_multipart_upload", Key=self._bucket.key(self._path), unless=_REFUSALS, **kind
        )
        if begun is None:
            return False
        upload: dict[str, Any] = {"Key": self._bucket.key(self._path), "UploadId": begun["UploadId"]}
        try:
            part = self._bucket.call(
                "upload_part", PartNumber=1, Body=_BYTES, ChecksumCRC64NVME=_RIGHT, unless=_REFUSALS, **upload
            )
            if part is None or whole_crc(part) != _RIGHT:
                return False
            listed = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC64NVME": _RIGHT}]
            kept = self._bucket.call(
                "complete_multipart_upload",
                MultipartUpload={"Parts": listed},
                ChecksumType="FULL_OBJECT",
                ChecksumCRC64NVME=_WRONG,
                unless=_REFUSALS,
                **upload,
            )
            return kept is None
        finally:
            _tidy(lambda: self._bucket.abort(upload["Key"], upload["UploadId"]))

    def _without(self, checksums: bool, conditions: bool) -> Iterator[Finding]:
        if not checksums:
            yield self._say(
                2,
                "note",
                " does not check CRC64NVME: every copy is read back instead",
                "reading back needs the right to read, and may cost",
            )
        if not conditions:
            yield self._say(
                3,
                "note",
                " does not honour If-None-Match: nothing there keeps an object from being written over",
                "let no other program write below the url",
            )

    def _listing(self) -> Iterator[Finding]:
        try:
            if self._path not in [entry.path for entry in self._bucket.tree(self._path)]:
                raise ListingCut(
                    f"{self._bucket.name}: its listing lacks an object that was just written",
                    hint="update the store, or reach it without the gateway that alters its listings",
                )
        except Forbidden:
            return  # what reads would find out; writing needs no listing
        except ListingCut as error:
            yield self._say(11, "fail", f" is unreliable: {error.message}", error.hint)

    def _reading(self) -> Iterator[Finding]:
        try:
            self._bucket.get(self._path, 1 << 16)
        except Forbidden as error:
            yield self._say(
                4,
                "note",
                f": this key may only write ({error})",
                "copies are made with it; restores and verify need one that may read",
            )

    def _storage_class(self) -> Iterator[Finding]:
        if self._class is None:
            return
        refused = self._refusal(
            lambda: self._bucket.call("put_object", StorageClass=self._class, **self._scratch)
        )
        if refused is not None:
            yield self._say(
                12,
                "fail",
                f" does not take objects of storage_class {self._class}: {refused.message}",
                "correct storage_class to one that the store has, or leave it out",
            )

    def _locking(self) -> Iterator[Finding]:
        if self._wanted is None:
            return
        if self._has_no_lock():
            yield self._say(
                6,
                "fail",
                f": lock is asked for, and the bucket {self._bucket.bucket!r} has no object lock",
                "make a bucket with object lock, or take lock out",
            )
            return
        refused: DestinationError | None = None
        for span in (_SHORT_LOCK, timedelta(days=self._wanted.days)):
            # Some buckets take only locks of a certain length.
            refused = self._refusal(partial(self._lock_scratch, self._wanted, self._now + span))
            if refused is None or isinstance(refused, NotLocked):
                break
        if refused is not None:
            yield self._say(
                13,
                "fail",
                f" does not lock what is stored: {refused.message}",
                "give the key s3:PutObjectRetention and s3:GetObjectRetention; else the store, or a gateway before "
                "it, drops locks",
            )
        with suppress(DestinationError):
            for version in list(self._bucket.versions(_LOCKED_SCRATCH)):
                with suppress(DestinationError):  # its lock has not ended
                    self._bucket.delete(version.path, version.version)

    def _lock_scratch(self, wanted: Wanted, until: datetime) -> None:
        scratch = self._scratch | {"Key": self._bucket.key(_LOCKED_SCRATCH)}
        self._bucket.call("put_object", **scratch, **wanted.headers(until))
        require_locked(self._bucket, _LOCKED_SCRATCH, wanted, until)

    def _has_no_lock(self) -> bool:
        """Whether the bucket says that it locks nothing; one that does not say is tried."""
        none = ("ObjectLockConfigurationNotFoundError", 404)
        try:
            said = self._bucket.call("get_object_lock_configuration", unless=none)
        except DestinationError:
            return False
        return bool((said or {}).get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") != "Enabled")

    def _resumes(self, checksums: bool) -> bool:
        """Whether an upload can be begun as a copy begins it, and is found again with its part."""
        about: dict[str, Any] = {"Key": self._bucket.key(self._path)}
        extra: dict[str, Any] = {"StorageClass": self._class} if self._class else {}
        if checksums:
            extra |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        if any(finding.severity == "fail" for finding in self._found):
            return False
        begun: dict[str, Any] = {}
        refused = self._refusal(
            lambda: begun.update(self._bucket.call("create_multipart_upload", **about, **extra) or {})
        )
        if refused is not None:
            self._found.append(
                self._say(
                    14,
                    "fail",
                    f" takes no multipart uploads: {refused.message}",
                    "give the key s3:PutObject for them, or use a store that has them",
                )
            )
            return False
        upload = Upload(about["Key"], str(begun["UploadId"]), self._now)
        try:
            body: dict[str, Any] = {"Body": _BYTES, **proof(_BYTES, checksums)}
            self._bucket.call("upload_part", **about, UploadId=upload.upload_id, PartNumber=1, **body)
            there = [u.upload_id for u in self._bucket.uploads(self._path)]
            if upload.upload_id in there and [part.number for part in self._bucket.parts(upload)] == [1]:
                return True
            why = "they are not in its lists"
        except ListingCut as error:
            self._found.append(self._say(11, "fail", f" is unreliable: {error.message}", error.hint))
            return False
        except DestinationError as error:
            if error.retryable:
                raise
            why = error.message
        finally:
            _tidy(lambda: self._bucket.abort(upload.key, upload.upload_id))
        self._found.append(
            self._say(
                15,
                "note",
                f" does not list unfinished uploads and their parts ({why}): one that is cut begins again, and what "
                "was sent of it stays there",
                "give the key s3:ListBucketMultipartUploads and s3:ListMultipartUploadParts; else let a lifecycle "
                "rule end unfinished uploads",
            )
        )
        return False

    def _removing(self) -> None:
        try:
            self._bucket.delete(self._path)
        except DestinationError as error:
            self._found.append(
                self._say(
                    5,
                    "note",
                    f": this key may not remove ({error})",
                    "a damaged copy can then not be made again in its place",
                )
            )

    @staticmethod
    def _refusal(work: Callable[[], object]) -> DestinationError | None:
        """What the store says against it; None when it does it.

        Raises:
            DestinationError: it is away.
        """
        try:
            work()
        except DestinationError as error:
            if error.retryable:
                raise
            return error
        return None


def _tidy(removing: Callable[[], object]) -> None:
    """A key that may only write leaves the scratch object, and parts that `expire` finds, behind."""
    with suppress(Forbidden):
        removing()


def claims_once(bucket: Bucket) -> bool:
    """Whether a name can be claimed with ``If-None-Match: *``: taken when it is free, refused when it is not.

    The scratch objects have names of their own, so that any number of processes may ask at once; they are
    removed.

    Raises:
        DestinationError: the store cannot be asked.
    """
    taken, free = (f"{SCRATCH}-{secrets.token_hex(8)}" for _ in range(2))

    def put(path: str, **condition: Any) -> bool:
        scratch: dict[str, Any] = {"Key": bucket.key(path), "Body": _BYTES, **proof(_BYTES, checksums=False)}
        return (
            bucket.call("put_object", unless=_REFUSALS if condition else (), **scratch, **condition)
            is not None
        )

    try:
        put(taken)
        if put(taken, IfNoneMatch="*"):
            return False
        if put(free, IfNoneMatch="*"):
            return True
        try:
            # Where the first one's answer was lost its second try was refused: what counts is that it is there.
            return bucket.head(free) is not None
        except Forbidden:
            return False
    finally:
        for path in (taken, free):
            _tidy(partial(bucket.delete, path))
