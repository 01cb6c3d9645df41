"""What an endpoint really does with what we ask of it, found by asking for what it must refuse."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nightferry.destination.s3.bucket import Bucket, proof, whole_crc
from nightferry.destination.s3.failure import Forbidden
from nightferry.destination.s3.parts import crc64, crc_text

SCRATCH = ".nightferry-check"
_BYTES = b"nightferry"
_RIGHT = crc_text(crc64(_BYTES))
_WRONG = crc_text(crc64(b"another"))

_known: dict[tuple[str, str], bool] = {}
_lock = threading.Lock()


def checks_checksums(bucket: Bucket) -> bool:
    """Whether the store compares a CRC64NVME with the bytes, of one request and of a whole multipart object.

    It is asked to store bytes under a wrong checksum: an honest store refuses and keeps nothing. The answer
    is kept for the process.

    Raises:
        DestinationError: the store cannot be asked: it is away, or the key may not write.
    """
    where = (bucket.endpoint, bucket.bucket)
    with _lock:
        if where not in _known:
            _known[where] = _refuses_wrong_object(bucket) and _refuses_wrong_whole(bucket)
        return _known[where]


def forget() -> None:
    """Asks again next time."""
    with _lock:
        _known.clear()


_REFUSALS = (400, 501)


def _refuses_wrong_object(bucket: Bucket) -> bool:
    key = bucket.key(SCRATCH)
    kept = bucket.call("put_object", Key=key, Body=_BYTES, ChecksumCRC64NVME=_WRONG, unless=_REFUSALS)
    if kept is not None:
        _tidy(lambda: bucket.delete(SCRATCH))
        return False
    return True


def _tidy(removing: Callable[[], object]) -> None:
    """A key that may only write leaves the scratch object, and parts that `expire` finds, behind."""
    with suppress(Forbidden):
        removing()


def _refuses_wrong_whole(bucket: Bucket) -> bool:
    """A refusal is worth something only when the right checksum is taken; that is seen in the part."""
    key = bucket.key(SCRATCH)
    begun = bucket.call(
        "create_multipart_upload",
        Key=key,
        ChecksumAlgorithm="CRC64NVME",
        ChecksumType="FULL_OBJECT",
        unless=_REFUSALS,
    )
    if begun is None:
        return False
    upload: dict[str, Any] = {"Key": key, "UploadId": begun["UploadId"]}
    try:
        part = bucket.call(
            "upload_part", PartNumber=1, Body=_BYTES, ChecksumCRC64NVME=_RIGHT, unless=_REFUSALS, **upload
        )
        if part is None or whole_crc(part) != _RIGHT:
            return False
        listed = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC64NVME": _RIGHT}]
        kept = bucket.call(
            "complete_multipart_upload",
            MultipartUpload={"Parts": listed},
            ChecksumType="FULL_OBJECT",
            ChecksumCRC64NVME=_WRONG,
            unless=_REFUSALS,
            **upload,
        )
        if kept is not None:
            _tidy(lambda: bucket.delete(SCRATCH))
        return kept is None
    finally:
        _tidy(lambda: bucket.abort(upload["Key"], upload["UploadId"]))


def honours_conditions(bucket: Bucket) -> bool:
    """Whether ``If-None-Match: *`` keeps an object from being written over. Leaves the scratch object."""
    scratch: dict[str, Any] = {
        "Key": bucket.key(SCRATCH),
        "Body": _BYTES,
        **proof(_BYTES, checks_checksums(bucket)),
    }
    bucket.call("put_object", **scratch)
    return bucket.call("put_object", IfNoneMatch="*", unless=(409, 412), **scratch) is None


def claims_once(bucket: Bucket) -> bool:
    """Whether a name can be claimed with ``If-None-Match: *``: taken when it is free, refused when it is not.

    The scratch object has a name of its own, so that any number of processes may ask at once; it is removed.

    Raises:
        DestinationError: the store cannot be asked.
    """
    path = f"{SCRATCH}-{secrets.token_hex(8)}"
    scratch: dict[str, Any] = {"Key": bucket.key(path), "Body": _BYTES, **proof(_BYTES, checksums=False)}
    refusals = (409, 412, 501)
    bucket.call("put_object", IfNoneMatch="*", unless=refusals, **scratch)
    try:
        # Where the first one's answer was lost its second try was refused: what counts is that it is there.
        there = bucket.head(path) is not None
        return there and bucket.call("put_object", IfNoneMatch="*", unless=refusals, **scratch) is None
    finally:
        bucket.delete(path)
