"""Stage two: every staged image to every destination of its policy, proved there, and staging freed.

What is owed is computed from the records (`staging.owed`), never remembered. So a night that was cut off,
drained or that found a destination away is caught up by the next one without anybody keeping a list.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from nightferry.copies.delivery import DECIDED, render_decisions
from nightferry.copies.encode import PacedOutgoing, Passed, decodes_at_once, encoded, encoded_meta
from nightferry.copies.read_back import mark_damaged, verify_copy
from nightferry.copies.side_files import NotDescribed, proven_chunks, require_described, side_files
from nightferry.destination.base import (
    DATA_NAMES,
    Continues,
    Destination,
    Measure,
    Outgoing,
    Receipt,
    Redescribes,
    Span,
    encoding_of,
)
from nightferry.destination.ours import MARKER, render_marker
from nightferry.errors import (
    CatalogError,
    CopyMissing,
    IntegrityError,
    MediumDamaged,
    NeedsRecall,
    NightferryError,
)
from nightferry.model.records import AwayRecord, CopyRecord, ImageRecord
from nightferry.progress import Cancel, Progress
from nightferry.site.destinations import destination_of
from nightferry.site.marker import require_ours
from nightferry.site.nodes import working_on
from nightferry.site.opened import OpenSite
from nightferry.site.throttles import throttle_of
from nightferry.staging.images import back_group_of, files_of
from nightferry.staging.owed import note_loss
from nightferry.staging.ownership import confirm, watching_disk
from nightferry.staging.room import quarantine
from nightferry.staging.staged import StagedDamage, StagedOutgoing, meta_of

log = logging.getLogger(__name__)


def stream_image(
    site: OpenSite, image: ImageRecord, destination: str, *, progress: Progress, cancel: Cancel
) -> CopyRecord:
    """Makes one verified copy, or finds that it is there already.

    First what an earlier try may have left is looked for at the destination itself; only when it is not there
    a new epoch begins. The copy is then read back whole: only that makes it ``verified``.

    Raises:
        DestinationError: ``retryable`` says whether another try can help.
        IntegrityError: the staged image, or what the destination gave back, is damaged.
        GroupStopping: the cluster takes the disk away.
        NotOwner: the disk that it is read from is not this node's any more; no copy was made.
        Cancelled: between two chunks.
    """
    copy = earlier_copy(site, image, destination, progress=progress, cancel=cancel)
    if copy is not None:
        return copy
    back_group = back_group_of(site, image)
    with (
        working_on(site, back_group=back_group, cancel=cancel) as narrower,
        watching_disk(site, back_group, narrower) as owned,
    ):
        return _from_staging(site, image, back_group, destination, progress=progress, cancel=owned)


def _from_staging(
    site: OpenSite,
    image: ImageRecord,
    back_group: str,
    destination: str,
    *,
    progress: Progress,
    cancel: Cancel,
) -> CopyRecord:
    try:
        outgoing = _outgoing(site, image, cancel)
        return make_copy(site, outgoing, destination, progress=progress, cancel=cancel)
    except StagedDamage as error:
        # What is read in the place of a disk that is gone says nothing of the image.
        confirm(site, back_group)
        # Left in place it would be tried, and waste tape, every night; quarantined it is staged again.
        quarantine(files_of(site, image))
        note_loss(site, image, error.message)
        log.warning("image %s is damaged on staging: quarantined", image.image)
        raise


def _outgoing(site: OpenSite, image: ImageRecord, cancel: Cancel) -> StagedOutgoing:
    """The staged image; with the catalog's chunk table when the one beside it is damaged or gone, which is put right.

    Raises:
        StagedDamage: the image itself is not what was recorded, or nobody has its chunk table.
    """
    files, order = files_of(site, image), site.catalog.order_of(image.image)
    try:
        return StagedOutgoing(image, files, order=order, cancel=cancel)
    except StagedDamage as error:
        damage = error
    try:
        chunks = proven_chunks(site, image)
    except (CatalogError, CopyMissing, IntegrityError):
        raise damage from None
    outgoing = StagedOutgoing(image, files, chunks=chunks, order=order, cancel=cancel)
    try:
        files.replace(".chunks", chunks)
    except OSError as error:
        log.warning("%s; its chunk table cannot be written again: %s", damage, error.strerror)
    else:
        log.warning("%s; its chunk table was written again from the catalog", damage)
    return outgoing


def note_away(site: OpenSite, destination: str, error: NightferryError) -> None:
    """Records why no copy could be begun at a destination, for the night's report."""
    site.catalog.append(
        AwayRecord(
            destination=destination, error=error.message[:500], hint=error.hint[:500], at=site.clock.now()
        )
    )


def note_there(site: OpenSite, destination: str) -> None:
    """Ends what `note_away` recorded, once the destination answers again."""
    known = site.catalog.latest(AwayRecord, destination)
    if known is not None and known.error:
        site.catalog.append(AwayRecord(destination=destination, error="", at=site.clock.now()))


def earlier_copy(
    site: OpenSite, image: ImageRecord, destination: str, *, progress: Progress, cancel: Cancel
) -> CopyRecord | None:
    """The copy that an earlier try left at the destination, verified now if it was not; None without one.

    Raises:
        OtherSite: the destination is not this site's.
        IntegrityError, DestinationError: see ``verify_copy``.
    """
    site.catalog.refresh()
    try:
        require_ours(site, destination, marking=True)
    except NightferryError as error:
        note_away(site, destination, error)
        raise
    target = destination_of(site, destination)
    copy = _arrived(site, target, image)
    if copy is None:
        return _redescribed(site, target, image, progress, cancel)
    return copy if copy.state == "verified" else _read_back(site, copy, progress, cancel)


def make_copy(
    site: OpenSite, outgoing: StagedOutgoing, destination: str, *, progress: Progress, cancel: Cancel
) -> CopyRecord:
    """Writes an image to a destination, encoded as that wants it, in a new epoch and reads it back; see
    ``stream_image``."""
    prepared = encoded(site, outgoing, destination)
    prepared = Described(site, prepared, outgoing.record)
    throttle = throttle_of(site, destination)
    if throttle is not None:
        prepared = PacedOutgoing(prepared, throttle, cancel)
    target = destination_of(site, destination)
    copy = _put(site, target, outgoing, prepared, progress=progress, cancel=cancel)
    if copy.state != "verified":
        copy = _read_back(site, copy, progress, cancel)
    for older in site.catalog.all_copies(copy.image):
        if older.destination == destination and older.state == "suspect" and older.epoch < copy.epoch:
            note = f"attempt {copy.epoch} replaced it; {older.note}"[:500]
            site.catalog.append(older.model_copy(update={"state": "lost", "note": note}))
    return copy


def _redescribed(
    site: OpenSite, target: Destination, image: ImageRecord, progress: Progress, cancel: Cancel
) -> CopyRecord | None:
    """A suspect copy whose data is right, verified with all that describes it written again; None without one."""
    copy = next((c for c in site.catalog.copies(image.image) if c.destination == target.name), None)
    if copy is None or copy.state != "suspect" or not isinstance(target, Redescribes):
        return None
    beside = side_files(site, image)
    plain = meta_of(image, site.catalog.order_of(image.image))
    meta = encoded_meta(plain, encoding_of(copy.location))
    files = {"index": beside.index, "chunks": beside.chunks, "meta.json": meta}
    try:
        target.redescribe(copy.location, image.digest, files)
        return _read_back(site, copy, progress, cancel)
    except NotDescribed:
        raise
    except (IntegrityError, MediumDamaged) as error:
        mark_damaged(site, copy, error)
        progress.say(f"the copy of {image.image} at {target.name} is made again: {error}")
        return None


def _read_back(site: OpenSite, copy: CopyRecord, progress: Progress, cancel: Cancel) -> CopyRecord:
    """The copy, verified; as it is where it lies in an archive: no night waits for a recall, or pays for it."""
    try:
        return verify_copy(site, copy, progress=progress, cancel=cancel)
    except NeedsRecall as error:
        progress.say(f"not read back: {error}")
        return copy


def _arrived(site: OpenSite, target: Destination, image: ImageRecord) -> CopyRecord | None:
    """A copy that an earlier try finished, whether or not it lived to record it.

    That an attempt came to nothing is remembered: a tape library mounts cartridges to find that out.
    """
    for copy in site.catalog.all_copies(image.image):
        if copy.destination != target.name:
            continue
        if copy.state in ("verified", "whole"):
            return copy
        if copy.state == "writing" and copy.ended is None:
            receipt = target.find(image.image, copy.epoch)
            if receipt is not None:
                return _arrival(site, copy, _proved(site, copy, receipt))
            ended = _ended(site, target, copy)
            if ended != copy:
                site.catalog.append(ended)
    return None


def _proved(site: OpenSite, copy: CopyRecord, receipt: Receipt) -> Receipt:
    """What an earlier try left is verified by its data's checksum only with all that describes it."""
    if not receipt.verified:
        return receipt
    try:
        require_described(site, copy.model_copy(update={"location": receipt.location}), site.cancel)
    except NotDescribed as error:
        log.warning("%s", error)
        return replace(receipt, verified=False)
    return receipt


def _ended(site: OpenSite, target: Destination, copy: CopyRecord) -> CopyRecord:
    """The record of an attempt that came to nothing: with its whole parts, and ended, if that is known for certain."""
    if not isinstance(target, Continues):
        return copy
    try:
        left = target.unfinished(copy.image, copy.epoch)
    except NightferryError as error:
        log.warning("the state of %s at %s is unknown: %s", copy.image, target.name, error)
        return copy
    if left is None:
        return copy
    return copy.model_copy(update={"location": left, "ended": site.clock.now()})


def _put(
    site: OpenSite,
    target: Destination,
    staged: StagedOutgoing,
    outgoing: Outgoing,
    *,
    progress: Progress,
    cancel: Cancel,
) -> CopyRecord:
    """Writes ``outgoing``, which is ``staged`` as the destination wants it."""
    image = staged.record
    subject = f"{image.group}/{image.store} → {target.name}"
    _give_up_damaged(site, target, image)
    with target.lane(progress=progress, cancel=cancel) as lane:
        copy = _begin(site, target, image, lane.name)
        progress.begin(subject, "stream", image.size_bytes)
        try:
            receipt = lane.put(
                outgoing, copy.epoch, progress=Renamed(progress, subject, staged), cancel=cancel
            )
        except NightferryError as error:
            progress.end(subject, "failed")
            failed = copy.model_copy(update={"note": str(error)[:500], "hint": error.hint[:500]})
            site.catalog.append(_ended(site, target, failed))
            raise
    progress.end(subject, "whole")
    return _arrival(site, copy, receipt)


def _begin(site: OpenSite, target: Destination, image: ImageRecord, lane: str) -> CopyRecord:
    """A new attempt on record: the newest one is gone on with where the destination can and nothing is unknown of it.

    Raises:
        BusyError: another process goes on with it.
    """
    copies = [c for c in site.catalog.all_copies(image.image) if c.destination == target.name]
    begun = next((c for c in copies[-1:] if c.state == "writing" and c.ended is not None), None)
    if begun is not None and isinstance(target, Continues):
        newest = site.catalog.latest_event(CopyRecord, begun.subject)
        copy = begun.model_copy(
            update={"lane": lane, "started": site.clock.now(), "ended": None, "note": "", "hint": ""}
        )
        site.catalog.append(copy, "intent", expect=newest.sequence if newest is not None else 0)
        target.remember(copy.image, copy.epoch, copy.location)
    else:
        copy = CopyRecord(
            image=image.image,
            destination=target.name,
            epoch=site.catalog.next_epoch(image.image, target.name),
            state="writing",
            run=image.run,
            lane=lane,
            started=site.clock.now(),
        )
        site.catalog.append(copy, "intent")
    site.catalog.append(copy)
    for older in copies:
        if older.state == "writing" and older.ended is not None and older.epoch != copy.epoch:
            note = f"it never arrived; attempt {copy.epoch} replaced it"
            site.catalog.append(older.model_copy(update={"state": "lost", "note": note}))
    return copy


def _give_up_damaged(site: OpenSite, target: Destination, image: ImageRecord) -> None:
    """Takes a damaged copy out of the new one's way.

    It is damaged on record until it is gone: one that is lost on record and still lies there would be taken
    for the new one.
    """
    for copy in site.catalog.all_copies(image.image):
        if copy.destination == target.name and copy.state == "damaged":
            target.remove(copy.location)
            note = f"given up for a new copy; {copy.note}"[:500]
            site.catalog.append(copy.model_copy(update={"state": "lost", "note": note}))


def _arrival(site: OpenSite, copy: CopyRecord, receipt: Receipt) -> CopyRecord:
    image = site.catalog.image(copy.image)
    now = site.clock.now()
    # That an encoded file arrived says nothing of what it decodes to, unless it was decoded before it left.
    proved = not encoding_of(receipt.location) or decodes_at_once(site, copy.destination)
    verified = receipt.verified and proved
    arrived = copy.model_copy(
        update={
            "state": "verified" if verified else "whole",
            "location": receipt.location,
            "size_bytes": receipt.size_bytes,
            "digest": image.digest,
            "lane": receipt.lane or copy.lane,
            "ended": now,
            "verified": now if verified else None,
            "note": "; ".join(receipt.notes),
            "hint": "",
            "streamed": receipt.streamed,
        }
    )
    site.catalog.append(arrived)
    return arrived


class Described(Passed):
    """Another outgoing, with what its site decided about it among its side files; implements ``Outgoing``.

    A tape puts both into the image's trailer; where copies are objects, people's decisions lie beside all of them.
    """

    def __init__(self, site: OpenSite, outgoing: Outgoing, image: ImageRecord) -> None:
        super().__init__(outgoing)
        mark = site.mark()
        self._described = {
            DECIDED: render_decisions(site.catalog, mark, image),
            MARKER: render_marker(mark),
        }

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return {**self._outgoing.side_files, **self._described}

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        return self._outgoing.chunks(first_chunk)

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return self._outgoing.spans(span_bytes, measure)


class Renamed:
    """Passes progress on under the op's own subject, in bytes of the image whatever is made of them."""

    def __init__(self, sink: Progress, subject: str, staged: StagedOutgoing) -> None:
        self._sink = sink
        self._subject = subject
        self._staged = staged

    def begin(self, subject: str, phase: str, total_bytes: int | None = None) -> None:
        """The op has begun already."""

    def advance(self, subject: str, done_bytes: int, current: str = "") -> None:
        self._sink.advance(self._subject, self._staged.done_bytes, current)

    def end(self, subject: str, result: str) -> None:
        """The op ends it."""

    def say(self, text: str, subject: str = "") -> None:
        self._sink.say(text, subject or self._subject)


def describe_location(copy: CopyRecord) -> str:
    """One line that tells a person where a copy lies."""
    parts = copy.location.get("parts")
    if isinstance(parts, list):
        return ", ".join(f"{p['barcode']} file {p['file']}" for p in parts)
    if "image" in copy.location:
        return f"images/{copy.location['image']}/{DATA_NAMES[encoding_of(copy.location)]}"
    return json.dumps(copy.location, sort_keys=True) if copy.location else ""
