"""Copies read back and compared, and what is found out about them put on record."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

from nightferry.copies.encode import open_copy
from nightferry.copies.side_files import NotDescribed, is_foreign, require_described, side_files
from nightferry.errors import (
    BusyError,
    CatalogError,
    IntegrityError,
    MediumDamaged,
    NeedsRecall,
    NightferryError,
)
from nightferry.image.chunks import checked
from nightferry.image.format import TAIL_BYTES, ImageEnd
from nightferry.image.reader import ImageReader
from nightferry.model.records import OUTLIVED, CopyRecord, CopyState, ImageRecord
from nightferry.progress import Cancel, Progress
from nightferry.site.opened import OpenSite
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import ENTRY_BYTES, digest_of
from nightferry.transfer.spool import Content

log = logging.getLogger(__name__)


def verify_copy(
    site: OpenSite,
    copy: CopyRecord,
    *,
    sample: float = 1.0,
    must_record: bool = True,
    progress: Progress,
    cancel: Cancel,
) -> CopyRecord:
    """Reads a copy back and compares it with the image's chunk table.

    Args:
        site: The site.
        copy: A copy that is not lost.
        sample: Share of chunks to read; only a full reading makes a copy ``verified``.
        must_record: Whether what was found must get into the catalog; else one that cannot be written is warned of,
            and what was found still counts for whoever asked.
        progress: Told of every chunk.
        cancel: Seen at every chunk.

    Returns:
        The copy's newest record: ``verified``, or as before after a sample.

    Raises:
        IntegrityError: a chunk is not what it should be; the copy was recorded ``damaged``.
        MediumDamaged: the destination cannot give it back; recorded ``damaged``.
        NotDescribed: what was read of its data is right, and what describes it is not; recorded ``suspect``.
        NeedsRecall: its data lies in an archive; nothing was asked for, and what describes it is right.
        CatalogError: the catalog cannot be written, and it must be recorded.
    """
    image = site.catalog.image(copy.image)
    subject = f"{image.group}/{image.store} at {copy.destination}"
    progress.begin(subject, "verify", image.size_bytes)
    away: NeedsRecall | None = None
    try:
        _require_data(site, copy, image, sample, subject, progress, cancel)
    except (IntegrityError, MediumDamaged) as error:
        mark_damaged(site, copy, error, must_record=must_record)
        progress.end(subject, "failed")
        raise
    except NeedsRecall as error:
        away = error
    try:
        require_described(site, copy, cancel)
    except NotDescribed as error:
        # Of a copy that was found damaged, nothing less than all of its data says that it is more than that.
        if copy.state != "damaged" or (sample >= 1 and away is None):
            _mark(site, copy, "suspect", error, must_record)
        progress.end(subject, "failed")
        raise
    if away is not None:
        progress.end(subject, "archived")
        raise away
    progress.end(subject, "verified" if sample >= 1 else "sampled")
    if sample < 1:
        return copy
    proved = {"state": "verified", "verified": site.clock.now(), "note": "", "hint": ""}
    verified = copy.model_copy(update=proved)
    return _unless_outlived(site, verified, must_record)


def _require_data(
    site: OpenSite,
    copy: CopyRecord,
    image: ImageRecord,
    sample: float,
    subject: str,
    progress: Progress,
    cancel: Cancel,
) -> None:
    """Raises:
    IntegrityError, MediumDamaged, NeedsRecall: see ``verify_copy``.
    """
    beside = side_files(site, image)
    chunks = beside.chunks
    tail = bytearray()
    with open_copy(site, copy) as reader:
        if reader.size_bytes != image.size_bytes:
            raise IntegrityError(
                f"the copy of {image.image} at {copy.destination} has {reader.size_bytes} bytes, "
                f"not {image.size_bytes}",
                subject=image.image,
            )
        for run in _sampled(len(chunks) // ENTRY_BYTES, sample):
            cancel.check()
            done = run.start * CHUNK_BYTES
            length = min(len(run) * CHUNK_BYTES, image.size_bytes - done)
            for data in checked(reader.stream(done, length), chunks, run.start, length):
                cancel.check()
                if done + len(data) > image.size_bytes - TAIL_BYTES:
                    tail += data[max(0, image.size_bytes - TAIL_BYTES - done) :]
                done += len(data)
                progress.advance(subject, done)
        if sample >= 1:
            _require_own_index(copy, bytes(tail), beside.index, image.size_bytes)
            # What this catalog indexed itself is proved by its digest; what others described must be as they say.
            if copy.state in ("damaged", "suspect") or is_foreign(site, image):
                _require_members(ImageReader(reader, chunks, index=beside.index), cancel)


def _require_own_index(copy: CopyRecord, tail: bytes, index: Content, size_bytes: int) -> None:
    """Raises:
    IntegrityError: the index that is on record is not the one that the image itself names.
    """
    end = ImageEnd.decode(tail, size_bytes)
    if (end.index_bytes, end.index_digest) != (len(index), digest_of(index)):
        raise IntegrityError(
            f"the index of {copy.image} is not the one that its copy at {copy.destination} holds",
            subject=copy.image,
        )


def _require_members(image: ImageReader, cancel: Cancel) -> None:
    """Reads every member by its row: a copy that was found damaged by what a restore looks at, or whose index others
    may have made, is cleared by no less.

    Raises:
        IntegrityError: a row and its member disagree.
    """
    for row in sorted(image.index, key=lambda row: row.offset):
        cancel.check()
        if not row.stored:
            continue
        image.member(row)
        image.attributes(row)
        if row.type in ("file", "hardlink"):
            for _ in image.payload(row):
                cancel.check()


def _sampled(count: int, share: float) -> Iterator[range]:
    """Runs of chunk numbers to read: one run of all, or single ones spread evenly over the image, others each
    time."""
    if share >= 1:
        if count:
            yield range(count)
        return
    step = max(1, min(count, round(1 / share)))
    for number in range(random.randrange(step), count, step):
        yield range(number, number + 1)


def mark_damaged(
    site: OpenSite, copy: CopyRecord, error: NightferryError, *, must_record: bool = True
) -> CopyRecord:
    """Records that a copy cannot be trusted any more, and why; ``must_record`` as in ``verify_copy``."""
    return _mark(site, copy, "damaged", error, must_record)


def _mark(
    site: OpenSite, copy: CopyRecord, state: CopyState, error: NightferryError, must_record: bool
) -> CopyRecord:
    found = {"state": state, "note": str(error)[:500], "hint": error.hint[:500]}
    marked = copy.model_copy(update=found)
    recorded = _unless_outlived(site, marked, must_record)
    if recorded is marked:
        log.warning("copy of %s at %s is %s: %s", copy.image, copy.destination, state, error)
    return recorded


def _unless_outlived(site: OpenSite, copy: CopyRecord, must_record: bool) -> CopyRecord:
    """Records what was found out about a copy, unless the retention took it while it was read."""
    while True:
        site.catalog.refresh()
        newest = site.catalog.latest(CopyRecord, copy.subject)
        if newest is not None and newest.state in OUTLIVED:
            return newest
        event = site.catalog.latest_event(CopyRecord, copy.subject)
        try:
            site.catalog.append(copy, expect=event.sequence if event is not None else 0)
        except BusyError:
            continue  # somebody else said something of it meanwhile: look again
        except CatalogError as unwritable:
            if must_record:
                raise
            site.warn(
                f"cannot record that the copy of {copy.image} at {copy.destination} is {copy.state}: "
                f"{unwritable.message}"
            )
        return copy
