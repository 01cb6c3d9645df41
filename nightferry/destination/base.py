"""The seam of the destination room: what every place that copies go to can do.

A destination moves bytes and side files; it never knows what an image contains. One contract suite
(tests/contract/test_destination.py) holds every kind to what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from nightferry.errors import MediumDamaged, NotInThisRelease
from nightferry.model.findings import Finding
from nightferry.model.records import CartridgeRecord, DriveRecord, StreamStatistics
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import ByteReader
from nightferry.transfer.spool import Content

SIDE_FILES = ("index", "chunks", "meta.json")
"""What stands beside an image's data at every destination, so that each copy describes itself."""

MAXIMUM = 1 << 63
"""No limit but the format's."""

Encoding = Literal["", "zstd"]
"""What was done to an image's bytes on their way out: nothing, or docs/image-format.md, "Encoded copies"."""

DATA_NAMES: Mapping[Encoding, str] = {"": "data", "zstd": "data.zst"}
"""What a copy's data is called where it is an object: the name says which program decodes it."""


def encoding_of(said: Mapping[str, Any]) -> Encoding:
    """The encoding that a copy's location, or its record at the destination, names; none when it is silent.

    Raises:
        NotInThisRelease: this release cannot read it.
    """
    for known in DATA_NAMES:
        if said.get("encoding", "") == known:
            return known
    raise NotInThisRelease(
        f"a copy encoded as {said['encoding']!r}",
        hint="read it with a newer nightferry, or decode it by hand: docs/recovery.md",
    )


@dataclass(frozen=True, slots=True)
class SiteMark:
    """A site, told from every other one by its random id: two sites may have one name."""

    site: str
    id: str

    def __str__(self) -> str:
        return f"site {self.site} (id {self.id[:8]})"


def nobody() -> SiteMark:
    """The mark of no site: to whom it belongs, nothing at a destination does."""
    return SiteMark("", "")


Measure = Callable[[bytes | memoryview, int], int]
"""A checksum of what had the checksum of its second argument, and then these bytes; of nothing it is 0."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an image's data on its way out that can be read alone, any number of times, by any thread."""

    size_bytes: int
    checksum: int
    """By the ``Measure`` that was handed in."""
    opened: Callable[[], Iterator[memoryview]]


class Outgoing(Protocol):
    """One image on its way out. Reading it checks every chunk against the chunk table first."""

    @property
    def image(self) -> str: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of the image. ``chunks`` gives as many, unless there is an ``encoding``."""

    @property
    def most_bytes(self) -> int:
        """What ``chunks`` gives at most: the image's bytes, or the longest that its encoding can make of them."""

    @property
    def digest(self) -> str:
        """The image's, whatever the encoding."""

    @property
    def encoding(self) -> Encoding:
        """With an encoding ``chunks`` gives the data of another length, known when it has ended: that one is
        stored as ``DATA_NAMES`` says, goes into the receipt, and the location says ``"encoding"``."""

    @property
    def side_files(self) -> Mapping[str, bytes]:
        """``index``, ``chunks`` and ``meta.json``."""

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        """The data in pieces of 1 MiB (the last may be shorter), proved before they are handed out.

        Raises:
            IntegrityError: a staged chunk is not what its digest says.
        """

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        """The same data in spans of ``span_bytes`` (whole MiB; the last may be shorter), each read once for its
        checksum before it is handed out.

        Raises:
            IntegrityError: as ``chunks``; so do the spans.
        """


class Source(Protocol):
    """Bytes that can be read again from any MiB on."""

    @property
    def size_bytes(self) -> int: ...
    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        """As ``Outgoing.chunks``."""


@runtime_checkable
class LargeSideFiles(Protocol):
    """What an ``Outgoing`` can do besides whose side files need not be held in memory."""

    def large_side_file(self, name: str) -> Source | None:
        """A side file to be streamed; None: it is small enough for ``side_files``."""


def large_side_file(outgoing: Outgoing, name: str) -> Source | None:
    """See ``LargeSideFiles``; None where all side files are held."""
    return outgoing.large_side_file(name) if isinstance(outgoing, LargeSideFiles) else None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a destination says after a whole image arrived. ``location`` is plain JSON."""

    location: dict[str, Any]
    size_bytes: int
    """Bytes of the data as they lie there."""
    lane: str = ""
    verified: bool = False
    """True only when the destination's own full checksum equals ours, or every byte was read back."""
    notes: tuple[str, ...] = field(default=())
    streamed: StreamStatistics | None = None
    """How it went through a tape drive."""


@dataclass(frozen=True, slots=True)
class Found:
    """An image that a scan of the destination met. ``meta`` is the text of its ``meta.json``."""

    image: str
    epoch: int
    location: dict[str, Any]
    meta: bytes
    site: SiteMark | None = None
    """Whose it is, where that is said."""
    records: bytes = b""
    """What people decided about it, where that stands with it."""
    note: str = ""
    """What beside it cannot be read; empty when all can be."""
    digest: str = ""
    """The image's, as it was written down beside ``meta``."""


@dataclass(frozen=True, slots=True)
class Odd:
    """Something that a scan met and could not take for a whole copy."""

    path: str
    why: str
    image: str = ""
    """Empty when its name is not an image's: then it is foreign."""
    epoch: int = 0
    """0: it does not say."""
    digest: str = ""
    """The image's, where that is said."""
    location: dict[str, Any] | None = None
    """Where its data, index and chunk table can be read, when all three are there."""
    site: SiteMark | None = None


def ignore(odd: Odd) -> None:
    """For whoever scans and wants whole copies alone."""


@dataclass(frozen=True, slots=True)
class Locked:
    """The destination keeps a copy from being removed: by which ``mode``, and until when (None: for ever,
    until somebody takes the mark away)."""

    mode: str
    until: datetime | None

    def __str__(self) -> str:
        return f"{self.mode} until " + (
            f"{self.until:%Y-%m-%d %H:%M} UTC" if self.until else "it is taken away"
        )


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something at a destination that belongs to no copy.

    ``what``: ``upload`` (parts of an object that was never completed), ``data`` (an image's data in another
    encoding than its copy's), ``unfinished`` (what a put left that did not complete); these are this
    site's by their first side file. ``foreign``: nothing proves that it is ours, and it is never removed.
    """

    what: Literal["upload", "data", "unfinished", "foreign"]
    image: str
    """Empty when it is foreign."""
    path: str
    since: datetime
    """When it was last written to."""
    size_bytes: int = 0
    upload_id: str = ""


class Lane(Protocol):
    """One stream into a destination: a leased drive, or one of a folder's or bucket's parallel writers."""

    @property
    def name(self) -> str: ...

    def put(self, outgoing: Outgoing, epoch: int, *, progress: Progress, cancel: Cancel) -> Receipt:
        """Writes the image and its side files, whole or not at all; what proves the copy ours comes first.

        Calling it again for the same image and epoch after an interruption never leaves two whole copies; a
        orphan of an interrupted epoch is never taken for a whole copy.

        Raises:
            DestinationError: with ``retryable`` saying whether another try can help.
            NotOurs: what lies under the image's name there is not this site's; it was not touched.
            IntegrityError: the staged bytes are damaged; nothing whole was left behind.
            Cancelled: stopped between two chunks.
        """


class Destination(Protocol):
    """A place copies go to, opened for one process."""

    @property
    def name(self) -> str: ...

    @property
    def lanes(self) -> int:
        """How many images can be written at once."""

    def check(self) -> list[Finding]:
        """What could fail tonight. Writes nothing but a scratch file that it removes."""

    def lane(self, *, progress: Progress, cancel: Cancel) -> AbstractContextManager[Lane]:
        """Leases a free lane; blocks while all are taken. A drive keeps its cartridge between leases."""

    def find(self, image: str, epoch: int) -> Receipt | None:
        """A whole copy that an earlier, perhaps interrupted, ``put`` left; None when there is none."""

    def open(self, location: Mapping[str, Any]) -> AbstractContextManager[ByteReader]:
        """The copy's data for range reads.

        Raises:
            MediumDamaged: it is not there, or shorter than recorded.
            Unavailable: the destination does not answer.
        """

    def side_file(
        self,
        location: Mapping[str, Any],
        name: str,
        *,
        most_bytes: int = MAXIMUM,
        cancel: Cancel | None = None,
    ) -> Content:
        """One of ``SIDE_FILES`` of a copy. One that is too large for memory is in a temporary file.

        Args:
            location: The copy's.
            name: Which.
            most_bytes: How long it can be; the format's limit at most.
            cancel: Seen while it is read.

        Raises:
            MediumDamaged: it is not there, cannot be read, or is longer.
        """

    def describe(self, location: Mapping[str, Any]) -> Found:
        """The copy as a scan would find it now. Its data, index and chunk table are not read.

        Raises:
            MediumDamaged: a scan would not find it whole.
            Unavailable: the destination does not answer.
        """

    def remove(self, location: Mapping[str, Any]) -> None:
        """Gives the room of a copy that was found damaged back (a tape copy's room comes back when its whole
        cartridge expires)."""

    def locked(self, location: Mapping[str, Any]) -> Locked | None:
        """What keeps the copy from being removed now, as far as the key may see it; None: nothing does."""

    def expire(self, location: Mapping[str, Any], digest: str) -> str:
        """Removes a copy for good; one that is gone already is fine. The copy's other objects go after its
        data, so that a crash leaves nothing that looks whole; what proves them ours goes last. Only objects
        of a copy are removed: whatever else lies beside them stays.

        Args:
            location: The copy's.
            digest: The image's on record: it proves a copy from before there were first side files.

        Returns:
            What stays all the same, in words; empty when all its room comes back.

        Raises:
            Retained: the destination keeps it, as it was asked to; nothing was removed.
            NotOurs: nothing proves that what lies there is the copy; nothing was removed.
            NotRemoved: nothing was removed for want of rights.
        """

    def orphans(self, before: datetime) -> Iterator[Orphan]:
        """What belongs to no copy and was last written to before that time; and, of whatever age, what is
        foreign beside the copies."""

    def clear(self, orphan: Orphan) -> None:
        """Removes one of ``orphans``; gone already is fine.

        Raises:
            NotOurs: it is foreign.
        """

    def scan(self, odd: Callable[[Odd], None] = ignore) -> Iterator[Found]:
        """Every whole copy here, found from the medium alone.

        Args:
            odd: Is told of everything else that lies among the copies. None of it ends the scan.
        """

    def put_catalog(self, name: str, data: bytes) -> None:
        """Keeps a copy of the catalog; of those with such a name the newest few are kept."""

    def catalog_copies(self) -> list[str]:
        """Names of the copies of the catalog that are here, those with the latest name first, found from the
        medium alone."""

    def get_catalog(self, name: str, *, cancel: Cancel | None = None) -> Content:
        """One of ``catalog_copies``.

        Raises:
            MediumDamaged: it cannot be read back as it was written.
        """

    def close(self) -> None:
        """Gives every lease and lock back and unloads what it loaded. May be called twice."""


@dataclass(frozen=True, slots=True)
class Archived:
    """Where a copy lies that must be recalled before it can be read."""

    storage_class: str
    asked: bool
    """Whether the destination is bringing it back already."""
    wait_s: float
    """How long the site file says to wait for it."""
    how: str
    """In words: ``standard``."""


@runtime_checkable
class Recalls(Protocol):
    """What a ``Destination`` can do besides when its copies may lie in an archive.

    ``open`` of such a copy raises ``NeedsRecall``, and asks for nothing.
    """

    def archived(self, location: Mapping[str, Any]) -> Archived | None:
        """None when the copy can be read now."""

    def recall(self, location: Mapping[str, Any]) -> None:
        """Asks for a copy; asking again while it is on its way is fine.

        Raises:
            DestinationError: it is refused.
        """


@runtime_checkable
class Marked(Protocol):
    """What a ``Destination`` can do besides when one site has it to itself. A tape library is none: each of its
    cartridges is known by its label."""

    @property
    def name(self) -> str: ...

    def marker(self) -> bytes | None:
        """What it says of whose it is; None when it does not.

        Raises:
            NotVisible: the key may not look.
        """

    def put_marker(self, text: bytes) -> None:
        """Puts a marker where there is none; one that is there stays. Who must know reads it afterwards."""

    def put_records(self, name: str, data: bytes) -> None:
        """Lays records beside the copies; of those with such a name the newest few are kept."""

    def records(self) -> Iterator[bytes | MediumDamaged]:
        """What ``put_records`` laid there; of what cannot be read, why."""

    def images(self) -> Iterator[str]:
        """Names of the images that something lies of, whole or not."""

    def has_copy(self, location: Mapping[str, Any], digest: str, mark: SiteMark) -> bool:
        """Whether the copy that the catalog knows is there; see ``ours.is_proved``."""


@runtime_checkable
class Redescribes(Protocol):
    """What a ``Destination`` can do besides where side files are objects of their own beside the data."""

    def redescribe(self, location: Mapping[str, Any], digest: str, side_files: Mapping[str, Content]) -> None:
        """Writes what describes a copy again, ``meta.json`` last. Its data is neither read nor touched.

        Args:
            location: The copy's.
            digest: The image's.
            side_files: All of ``SIDE_FILES``.

        Raises:
            MediumDamaged: its data is not there, or not as long as recorded.
            NotOurs: it is another site's, or something that is not a copy's is in the way.
        """


@runtime_checkable
class Continues(Protocol):
    """What a ``Destination`` can do besides when a copy that was cut off is gone on with in its epoch."""

    def remember(self, image: str, epoch: int, location: Mapping[str, Any]) -> None:
        """Says what the catalog has of an attempt that is about to be gone on with, as ``unfinished`` answered."""

    def unfinished(self, image: str, epoch: int) -> dict[str, Any] | None:
        """What lies here of a copy that is known not to be whole: the location of its whole parts, empty when there
        are none. None: it is not known; it may be whole, or somebody be at work with it."""


class Register(Protocol):
    """What a tape library asks of the catalog; ops hands it in, as destination and catalog never meet."""

    def cartridge(self, barcode: str) -> CartridgeRecord | None: ...
    def cartridges(self) -> list[CartridgeRecord]: ...
    def record(self, cartridge: CartridgeRecord, phase: Literal["intent", "result"] = "result") -> None: ...
    def record_after(self, known: CartridgeRecord, cartridge: CartridgeRecord) -> bool:
        """Records a cartridge if ``known`` is still the newest that was recorded of it; else nothing, and
        False."""

    def record_drive(self, drive: DriveRecord) -> None: ...
    def live_images(self, barcode: str, given_up: Collection[str] = ()) -> list[str]:
        """Images with a copy here that is neither lost nor expired: the cartridge must not be overwritten. What is
        not finished of those ``given_up`` does not count."""
