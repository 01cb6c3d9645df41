"""Where an image can be read from now. Copies in archives are read last, recalled once, waited for in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from nightferry.copies.encode import open_copy
from nightferry.copies.side_files import proven_chunks
from nightferry.destination.base import Archived, Recalls
from nightferry.errors import CatalogError, CopyMissing, NeedsRecall, Unavailable
from nightferry.image.chunks import CheckedReader
from nightferry.model.names import choose
from nightferry.model.records import THERE, CopyRecord, ImageRecord, RecallRecord
from nightferry.plan.restore_order import STAGING, Choice, choose_copies
from nightferry.progress import Cancel, Progress
from nightferry.site.destinations import destination_of, offsite, speeds
from nightferry.site.nodes import require_disk
from nightferry.site.opened import OpenSite
from nightferry.staging.images import back_group_of, files_of, is_staged, seems_staged
from nightferry.transfer.base import ByteReader
from nightferry.units import format_duration

FIRST_LOOK_S = 15.0
LONGEST_LOOK_S = 300.0
"""Between two looks whether a recalled copy has arrived; the first ones come sooner."""
_SLICE_S = 0.5


def sources_of(
    site: OpenSite, image: ImageRecord, only: str | None = None, *, wanted_bytes: int | None = None
) -> tuple[Choice, ...]:
    """Where the image can be read from, the nearest first; not where the site file knows no way to any more.

    Raises:
        ConfigError: ``only`` is not the name of a destination.
        CopyMissing: there is no readable copy.
        NotOwner: only staging has it, and that is on another node.
    """
    staged = is_staged(site, image)
    names = [d.name for d in site.file.destinations]
    copies = [c for c in site.catalog.copies(image.image) if c.destination in names]
    if only == STAGING:
        copies = []
    elif only is not None:
        if only not in names:
            raise choose(only, [STAGING, *names], "source of copies")
        copies = [c for c in copies if c.destination == only]
        staged = False
    ordered = tuple(
        choose_copies(image, copies, staged, speeds(site), wanted_bytes=wanted_bytes, offsite=offsite(site))
    )
    if not ordered and only in (None, STAGING) and seems_staged(site, image):
        back_group = back_group_of(site, image)
        require_disk(site, back_group, f"reading {image.image} from the disk of {back_group}")
    if not ordered:
        raise nowhere(site, image, only)
    return ordered


def nowhere(site: OpenSite, image: ImageRecord, only: str | None) -> CopyMissing:
    """What became of the copies that were asked for."""
    copies = [c for c in site.catalog.copies(image.image) if only in (None, c.destination)]
    named = {destination.name for destination in site.file.destinations}
    unnamed = [c.destination for c in copies if c.destination not in named and c.state in THERE]
    states = [
        f"{c.destination} {c.state}" + (" (not in the site file)" if c.destination in unnamed else "")
        for c in copies
    ]
    if unnamed:
        hint = f"put the destination {unnamed[0]} back into the site file, under that name"
    elif only is not None:
        hint = f"leave --copy out to read another; `nightferry copies {image.image}` lists all"
    else:
        hint = f"`nightferry copies {image.image}` shows why; `nightferry images` lists the images"
    if only is not None:
        text = f"no readable copy of image {image.image} at {only}" + "".join(
            f": {state}" for state in states
        )
    else:
        text = f"no readable copy of image {image.image}: {', '.join(states) or 'none was ever made'}"
    return CopyMissing(text, hint=hint, subject=image.image)


@contextmanager
def open_image_from(site: OpenSite, image: ImageRecord, place: Choice) -> Iterator[ByteReader]:
    """The image's bytes at a place; each chunk is proved against the chunk table before it is handed out."""
    chunks = proven_chunks(site, image)
    if place.copy is None:
        back_group = back_group_of(site, image)
        with (
            site.claims.shared(back_group).read(f"restore of {image.image}", warn=site.warn),
            files_of(site, image).reader() as reader,
        ):
            yield CheckedReader(reader, chunks)
    else:
        with open_copy(site, place.copy) as reader:
            yield CheckedReader(reader, chunks)


class Turns:
    """The places to read an image from, each in its turn. One that turns out to lie in an archive has its turn
    after all others: a recall takes hours and costs money."""

    def __init__(self, site: OpenSite, places: Iterable[Choice]) -> None:
        self._opened = site
        self._first = list(places)
        self._archived: list[Choice] = []

    def __iter__(self) -> Iterator[Choice]:
        yield from self._first
        yield from self._archived

    def ready(self, place: Choice, *, progress: Progress, cancel: Cancel) -> None:
        """Returns when the place may be read: at its second turn after its recall.

        Raises:
            DestinationError: see ``recall``.
        """
        if place in self._archived and place.copy is not None:
            recall(self._opened, place.copy, progress=progress, cancel=cancel)

    def postpone(self, place: Choice, error: NeedsRecall, progress: Progress) -> bool:
        """Gives a place that must be recalled another turn; False when it has had that."""
        if place in self._archived:
            return False
        self._archived.append(place)
        if len(self._first) > 1:
            progress.say(f"{error}: other copies are tried first")
        return True


def archived_at(site: OpenSite, copy: CopyRecord) -> Archived | None:
    """Where a copy lies that must be recalled before it can be read; None for any other."""
    destination = destination_of(site, copy.destination)
    return destination.archived(copy.location) if isinstance(destination, Recalls) else None


def recall(site: OpenSite, copy: CopyRecord, *, progress: Progress, cancel: Cancel) -> None:
    """Asks for a copy, unless it is on its way already, and returns when it can be read.

    The wait is of this process alone: one that ends, or is ended, leaves the recall going on, and the next one
    waits for the same.

    Raises:
        Unavailable: it did not arrive within the destination's ``recall.wait``.
        DestinationError: the destination refuses.
        Cancelled: a stop was asked for.
    """
    destination = destination_of(site, copy.destination)
    away = archived_at(site, copy)
    if away is None or not isinstance(destination, Recalls):
        return
    if not away.asked:
        destination.recall(copy.location)
        record = RecallRecord(
            image=copy.image,
            destination=copy.destination,
            epoch=copy.epoch,
            storage_class=away.storage_class,
            asked=site.clock.now(),
        )
        try:
            site.catalog.append(record)
        except CatalogError as error:
            site.warn(f"cannot record that {copy.image} was recalled: {error.message}")
    site.catalog.refresh()
    asked = site.catalog.latest(RecallRecord, copy.subject)
    since = "earlier, by somebody else" if asked is None else _shown(site, asked.asked)
    _wait(site, copy, away, since, progress, cancel)


def _wait(
    site: OpenSite, copy: CopyRecord, away: Archived, since: str, progress: Progress, cancel: Cancel
) -> None:
    begun = site.clock.monotonic()
    until = site.clock.now() + timedelta(seconds=away.wait_s)
    subject = f"{copy.image} at {copy.destination}"
    waiting = (
        f"waiting for its recall from {away.storage_class} ({away.how}), asked {since}, "
        f"until {_shown(site, until)}"
    )
    progress.begin(subject, "recall")
    progress.say(waiting, subject=subject)
    pause_s = FIRST_LOOK_S
    try:
        while archived_at(site, copy) is not None:
            left_s = away.wait_s - (site.clock.monotonic() - begun)
            if left_s <= 0:
                raise Unavailable(
                    f"the recall of {copy.image} at {copy.destination} from {away.storage_class}, asked "
                    f"{since}, did not arrive within {format_duration(away.wait_s)}",
                    hint="run the same command again: it waits for the same recall, for as long "
                    "as recall.wait in the site file allows",
                    subject=copy.image,
                )
            _sleep(site, min(pause_s, left_s), lambda: progress.advance(subject, 0, waiting), cancel)
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
    except BaseException:
        progress.end(subject, "failed")
        raise
    progress.end(subject, "arrived")


def _sleep(site: OpenSite, seconds: float, show: Callable[[], None], cancel: Cancel) -> None:
    end = site.clock.monotonic() + seconds
    while (left_s := end - site.clock.monotonic()) > 0:
        cancel.check()
        show()
        site.clock.sleep(min(left_s, _SLICE_S))
    cancel.check()


def _shown(site: OpenSite, moment: datetime) -> str:
    return f"{moment.astimezone(site.file.tz):%Y-%m-%d %H:%M}"
