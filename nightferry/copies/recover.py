"""A copy whose record is gone, and whose data, index and chunk table are whole: the record made again from them."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pyarrow.compute as pc
from pydantic import ValidationError

from nightferry.copies.encode import image_of
from nightferry.destination.base import MAXIMUM, Destination, Found, Odd, encoding_of
from nightferry.errors import IntegrityError, MediumDamaged
from nightferry.image.frames import FramedReader, plain_bytes
from nightferry.image.guard import require_proved
from nightferry.image.index import Index
from nightferry.image.reader import ImageReader
from nightferry.model.records import ImageRecord, Outcomes
from nightferry.model.site import SiteFile
from nightferry.model.stores import Tolerate
from nightferry.progress import Cancel
from nightferry.staging.adoption import state_of
from nightferry.transfer.base import ByteReader
from nightferry.transfer.digest import digest_of, image_digest, table_bytes
from nightferry.transfer.spool import Content, whole

_ENTRY_BYTES = 8
NOTE = "its record was made again from its header, its index and its chunk table"


def recovered(
    destination: Destination, odd: Odd, known: ImageRecord | None, site: SiteFile, cancel: Cancel
) -> Found:
    """The copy with a record: the one that is known of it, the one beside it, or one made again.

    Index and chunk table are held against each other and against the image's end; the data itself is proved by
    `verify`, as that of every copy which a rebuild finds.

    Args:
        destination: Where it lies.
        odd: The copy; its ``location`` says where.
        known: The image's record, where one is known.
        site: Says what a storage group tolerates.
        cancel: Seen while it is read.

    Raises:
        IntegrityError: what is there does not fit together.
        DestinationError: it cannot be read.
    """
    location = odd.location or {}
    encoded = bool(encoding_of(location))
    index = destination.side_file(location, "index", cancel=cancel)
    with destination.open(location) as reader:  # what a location says differs by destination
        data_bytes = reader.size_bytes
    most_bytes = MAXIMUM if encoded else table_bytes(data_bytes)
    chunks = whole(destination.side_file(location, "chunks", most_bytes=most_bytes, cancel=cancel))
    digest = image_digest(chunks, index)
    if odd.digest and digest != odd.digest:
        raise IntegrityError("its index and chunk table are not those that it was written with")
    record = known if known is not None and known.digest == digest else _beside(destination, odd, digest)
    if record is None:
        require_proved(index, "index", f"the index of {odd.image} at {destination.name}", cancel)
        record = _made_again(destination, odd, index, chunks, site)
    elif not encoded and record.size_bytes != data_bytes:
        raise IntegrityError(f"its data has {data_bytes} bytes, {record.size_bytes} were recorded")
    meta = record.model_dump_json(indent=1).encode()
    return Found(odd.image, odd.epoch, location, meta, odd.site)


def _beside(destination: Destination, odd: Odd, digest: str) -> ImageRecord | None:
    """``meta.json``, where it is there and of this image."""
    try:
        record = image_of(whole(destination.side_file(odd.location or {}, "meta.json")))
    except (MediumDamaged, ValidationError):
        return None
    return record if (record.image, record.digest) == (odd.image, digest) else None


def _made_again(
    destination: Destination, odd: Odd, index: Content, chunks: bytes, site: SiteFile
) -> ImageRecord:
    location = odd.location or {}
    with ExitStack() as stack:
        reader: ByteReader = stack.enter_context(destination.open(location))
        if encoding_of(location) == "zstd":
            reader = FramedReader(reader, plain_bytes(reader, len(chunks) // _ENTRY_BYTES))
        image = ImageReader(reader, chunks, index=index)
        header, end = image.header, image.end
        size_bytes = image.size_bytes
    parsed = Index(index)
    if header.image != odd.image:
        raise IntegrityError(f"its data belongs to {header.image}")
    if (end.index_bytes, end.index_digest) != (len(index), digest_of(index)):
        raise IntegrityError("its index is not the one that its data names")
    outcomes: Counter[str] = Counter()
    files = payload_bytes = 0
    for columns in parsed.tables(["type", "outcome", "payload_length"]):
        entries = pc.not_equal(columns["type"], "directory")
        of_files = columns.filter(pc.or_(entries, pc.not_equal(columns["outcome"], "whole")))["outcome"]
        outcomes.update(of_files.to_pylist())
        files += pc.sum(entries).as_py() or 0
        payloads = columns.filter(pc.equal(columns["type"], "file"))["payload_length"]
        payload_bytes += pc.sum(payloads).as_py() or 0
    counted = Outcomes(**outcomes)
    group = next((group for group in site.groups if group.name == header.group), None)
    return ImageRecord(
        image=header.image,
        run=header.run,
        group=header.group,
        store=header.store,
        source_kind=header.source_kind,
        level=header.level,
        state=state_of(counted, group.tolerate if group is not None else Tolerate()),
        size_bytes=size_bytes,
        payload_bytes=payload_bytes,
        files=files,
        outcomes=counted,
        digest=image_digest(chunks, index),
        index_offset=end.index_offset,
        index_bytes=end.index_bytes,
        index_digest=end.index_digest,
        path=f"{header.group}/{header.store}/{header.image}.tar",
        node=header.node,
        started=header.started,
        ended=header.started,
        notes=(NOTE,),
    )
