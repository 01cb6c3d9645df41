"""A staged image is proved by its own bytes before the catalog hears of it: at the end of stage one, and when a process
stopped between giving it its name and recording it."""

from __future__ import annotations

import logging
import random

from nightferry.errors import Cancelled, ClusterError, IntegrityError, NightferryError
from nightferry.image.index import Index
from nightferry.image.reader import ImageReader
from nightferry.model.records import ImageRecord, ImageState, Outcomes
from nightferry.model.stores import Tolerate
from nightferry.model.text import safe
from nightferry.progress import Cancel, Progress
from nightferry.site.opened import OpenSite
from nightferry.staging.room import WHOLE
from nightferry.staging.staged_files import StagedFiles
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import check_chunk, image_digest, table_bytes
from nightferry.transfer.spool import Content, spooled
from nightferry.units import counted, format_size

log = logging.getLogger(__name__)


def state_of(outcomes: Outcomes, tolerate: Tolerate) -> ImageState:
    """Whole, or partial when more files came out badly than the storage group tolerates, or a directory was not listed:
    how much is missing is not known then, so no bound can allow it."""
    exceeded = tolerate.exceeded(
        vanished=outcomes.vanished, changed=outcomes.changed, unreadable=outcomes.unreadable
    )
    return "partial" if exceeded or outcomes.unlisted else "whole"


def prove_chunks(files: StagedFiles, chunks: bytes, share: float, *, cancel: Cancel) -> None:
    """Reads staged chunks again, past the page cache, and compares them with the chunk table.

    Args:
        files: The staged image.
        chunks: Its chunk table.
        share: How much of it, 0 to 1; a sample always holds the first and the last chunk.
        cancel: Seen at every chunk.

    Raises:
        IntegrityError: the disk gave back something else than was written.
    """
    if share == 0:
        return
    count = len(chunks) // 8
    numbers = set(range(count))
    if share < 1:
        wanted = max(2, round(count * share))
        numbers = {0, count - 1} | set(random.sample(range(count), min(wanted, count)))
    with files.reader() as reader:
        for number in sorted(numbers):
            cancel.check()
            offset = number * CHUNK_BYTES
            length = min(CHUNK_BYTES, reader.size_bytes - offset)
            for data in reader.stream(offset, length):
                check_chunk(chunks, number, data)


def read_index(files: StagedFiles, chunks: bytes) -> Content:
    """The index out of an image file, checked against the chunk table.

    Raises:
        IntegrityError: the image is cut off or damaged.
    """
    with files.reader() as reader:
        image = ImageReader(reader, chunks)
        return spooled(image.reader.stream(image.end.index_offset, image.end.index_bytes))


def adopt_image(
    site: OpenSite, target: StagedFiles, progress: Progress, cancel: Cancel
) -> ImageRecord | None:
    """Takes over an image that was renamed but not recorded, after checking every byte; removes it if it
    fails.

    Raises:
        ClusterError: the disk cannot be read now; the image stays.
        Cancelled: stopped at a chunk; the image stays, and is looked at again.
    """
    try:
        record = target.record()
        chunks = target.read(".chunks", table_bytes(record.size_bytes))
        prove_chunks(target, chunks, 1.0, cancel=cancel)
        index = read_index(target, chunks)
        if image_digest(chunks, index) != record.digest:
            raise IntegrityError(
                f"{target.image} is not the image its side files describe", subject=record.image
            )
    except Cancelled:
        raise
    except (FileNotFoundError, ValueError, NightferryError) as error:
        progress.say(f"an interrupted image is staged again: {error}", subject=target.image)
        target.remove(*WHOLE)
        return None
    except OSError as error:
        raise ClusterError(
            f"cannot read the interrupted image {target.tar}: {error.strerror}",
            hint="check the disk and the kernel log, then run again",
            subject=target.image,
        ) from error
    progress.say(f"{record.group}/{record.store} was staged before the interruption", subject=target.image)
    record_image(site, record, index, chunks)
    return record


def record_image(site: OpenSite, record: ImageRecord, index: Content, chunks: bytes) -> None:
    site.catalog.keep_index(record.image, index, chunks)
    log_image(site, record, index)
    site.catalog.append(record)
    log.info("staged %s: %s, %s", record.image, format_size(record.size_bytes), record.state)


def log_image(site: OpenSite, image: ImageRecord, index: Content) -> None:
    """Adds an image to its run's log, the figures of the image itself on one line.

    ``[site] log``: ``full`` names every file, ``summary`` those that are not whole or have a note, ``none`` writes no
    log.
    """
    level = site.file.site.log
    if level == "none":
        return
    zone = site.file.tz
    counts = image.outcomes
    lines = [
        f"{image.ended.astimezone(zone):%Y-%m-%d %H:%M:%S} {image.image} {image.state}: "
        f"{counted(image.files, 'file')}, "
        f"{counted(image.size_bytes, 'byte')}, {counts.vanished} vanished, {counts.changed} changed, "
        f"{counts.unreadable} unreadable"
        + (f", {counts.unlisted} of them not listed" if counts.unlisted else "")
    ]
    lines += [f"  {note}" for note in image.notes]
    for row in Index(index):
        if level == "full" or row.outcome != "whole" or (row.note and row.stored):
            note = f" ({safe(row.note)})" if row.note else ""
            lines.append(f"  {row.outcome} {row.type} {row.size} {safe(row.path)}{note}")
    site.catalog.add_log(image.run, image.image, "\n".join(lines) + "\n")
