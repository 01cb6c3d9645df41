"""What the catalog remembers: frozen records, each the whole truth about its subject at one moment.

A record is never changed. A new event with a newer record of the same subject replaces it (the latest
sequence wins); the older ones stay readable. Times are aware UTC, digests lower-case hex.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from nightferry.model.catalog_records import DeliveryRecord, RebuildRecord, SiteRecord
from nightferry.model.claim_records import ConstraintRecord, DriveLeaseRecord, LeaseRecord, OwnerRecord
from nightferry.model.fields import (
    BackGroupName,
    BarcodeText,
    Count,
    ImageText,
    NodeText,
    PoolText,
    RunText,
    SafeName,
    StoreText,
)
from nightferry.model.names import parse_image_name
from nightferry.model.record import Record

ImageState = Literal["whole", "partial", "suspect"]
"""``suspect``: its files came out well, and it can hardly be what the store should be; whole once approved."""
CopyState = Literal["writing", "whole", "verified", "suspect", "damaged", "lost", "expiring", "expired"]
THERE: frozenset[CopyState] = frozenset({"whole", "verified", "suspect", "damaged"})
"""States of a copy whose bytes lie at the destination, good or bad."""
OUTLIVED: frozenset[CopyState] = frozenset({"expiring", "expired"})
"""States of a copy that the retention has taken: never read again, never owed again."""
RunState = Literal["staging", "held", "sealed", "streaming", "drained", "ended"]
CartridgeState = Literal[
    "unknown", "blank", "appendable", "full", "offsite", "expired", "retired", "cleaning", "foreign"
]
"""``unknown``: it was carried about, and nobody has looked what is on it."""


class RunRecord(Record):
    """One run: the work of one window of one BACK group."""

    kind: ClassVar[str] = "run"
    run: RunText
    back_group: BackGroupName
    window: str
    """Local date of the window's start, ``YYYYMMDD``."""
    state: RunState
    result: Literal["", "whole", "partial", "failed"] = ""
    groups: tuple[SafeName, ...]
    selection: dict[SafeName, tuple[SafeName, ...]]
    """Storage group → its stores, as fixed when the run began."""
    level: Count = 0
    node: NodeText
    """The active node that stages."""
    started: AwareDatetime
    ended: AwareDatetime | None = None
    flow_run: str = ""
    note: str = ""
    window_start: AwareDatetime | None = None
    """The instant the window began, which is what tells two windows of one date apart; None in records of before."""

    @property
    def subject(self) -> str:
        return self.run


class Outcomes(BaseModel):
    """How many files of an image came out how; ``whole`` are the rest.

    ``unlisted`` of the ``unreadable`` are directories that could not be listed, or may be: nobody knows what they hold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    whole: Count = 0
    vanished: Count = 0
    changed: Count = 0
    unreadable: Count = 0
    unlisted: Count = 0


class StoreOrigin(BaseModel):
    """Where a store lay when its image was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    path: str
    """The store's path, as the site file has it."""
    mount: str = ""
    """The mount point that it is below."""
    source: str = ""
    """What is mounted there: ``/dev/sdb1``, ``nas:/export``."""
    filesystem: str = ""
    """The file system's type."""
    uuid: str = ""
    """The file system's UUID; empty where none is to be had."""
    fsid: str = ""
    """What ``statvfs`` says of an ext file system, made from its UUID; else empty."""
    device: str = ""
    """``major:minor``. Another boot may give another one."""
    below: tuple[str, ...] = ()
    """Disks mounted inside the store, relative to its path."""


class ImageRecord(Record):
    """One store's backup of one run, immutable once recorded."""

    kind: ClassVar[str] = "image"
    image: ImageText
    run: RunText
    group: SafeName
    store: SafeName
    source_kind: str
    level: Count = 0
    state: ImageState
    size_bytes: Count
    """Bytes of the whole tar, as on staging."""
    payload_bytes: Count
    files: Count
    outcomes: Outcomes = Outcomes()
    digest: str
    """BLAKE3 of the chunk table followed by the index's bytes."""
    index_offset: Count
    index_bytes: Count
    index_digest: str
    path: str
    """``<group>/<store>/<image>.tar``, for readers of the catalog: where an image lies is made of its names."""
    node: NodeText
    started: AwareDatetime
    ended: AwareDatetime
    degraded: bool = False
    """The throughput fell by more than 10 % over 20 minutes while this was staged."""
    unbuffered: bool = True
    rate_bytes_per_s: float = 0.0
    cpu_s: float = 0.0
    cpu_system_s: float = 0.0
    notes: tuple[str, ...] = ()
    origin: StoreOrigin | None = None
    """None: of a release that did not record it."""
    suspect: str = ""
    """Why it can hardly be what the store should be; empty: nothing speaks against it."""
    policy: tuple[SafeName, ...] | None = None
    """Destinations that its storage group named when it was staged: copies are owed there. None: not recorded."""
    at_least: Count | None = None
    """How many of them let staging free it; None: all."""
    order: int = 0
    """Beside a copy: its place among the site's images, by which a catalog that is made from copies orders them.
    0: in the catalog that recorded it, whose log has the order."""

    @property
    def subject(self) -> str:
        return self.image

    @model_validator(mode="after")
    def _is_what_its_name_says(self) -> Self:
        """An image's name holds those of its run, group and store; nothing may say otherwise, its path neither."""
        name = parse_image_name(self.image)
        if (name.run, name.group, name.store, name.level) != (self.run, self.group, self.store, self.level):
            raise ValueError(f"run, group, store and level are not those of {self.image}")
        if self.path != f"{self.group}/{self.store}/{self.image}.tar":
            raise ValueError(f"{self.path!r} is not the path of {self.image}")
        return self


class FailureRecord(Record):
    """A store that this run could not stage, and why. A later image of the same run and store outdates it."""

    kind: ClassVar[str] = "failure"
    run: RunText
    group: SafeName
    store: SafeName
    error: str
    hint: str = ""
    exit_code: int
    attempts: Count = 1
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return f"{self.run}/{self.group}/{self.store}"


class SealedStore(BaseModel):
    """One line of a seal."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    group: SafeName
    store: SafeName
    state: Literal["whole", "partial", "suspect", "missing"]
    image: ImageText | Literal[""] = ""
    size_bytes: Count = 0
    digest: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.group}/{self.store}"


class SealRecord(Record):
    """The manifest of a run's stage one: every due store with size and digest, or why it is missing."""

    kind: ClassVar[str] = "seal"
    run: RunText
    back_group: BackGroupName
    number: Count
    """1 for a run's first seal; a seal after `gate retry` has the next number and replaces it."""
    epoch: Count
    """Owner epoch of the BACK disk when it was sealed."""
    node: NodeText
    at: AwareDatetime
    stores: tuple[SealedStore, ...]
    digest: str = ""
    """BLAKE3 of the record's canonical JSON with an empty digest."""

    @property
    def subject(self) -> str:
        return self.run

    @property
    def missing(self) -> tuple[SealedStore, ...]:
        return tuple(s for s in self.stores if s.state != "whole")


class ApprovalRecord(Record):
    """An operator's word that a run may go on without the named stores being whole."""

    kind: ClassVar[str] = "approval"
    run: RunText
    seal_digest: str
    stores: tuple[StoreText, ...]
    """``GROUP/STORE``."""
    reason: str
    who: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return f"{self.run}/{self.seal_digest[:16]}/{'+'.join(self.stores)}"


class StreamStatistics(BaseModel):
    """How a copy went through its drive. ``seconds``: from its first record to the last acknowledgement, without
    changes of cartridges; ``waits``: how often the drive had nothing to write before the end, ``repositions``: those
    waits that a drive's own buffer does not bridge."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    size_bytes: Count
    seconds: float
    waits: Count = 0
    waited_s: float = 0.0
    repositions: Count = 0


class CopyRecord(Record):
    """An image at one destination. ``epoch`` counts the attempts that began to write there."""

    kind: ClassVar[str] = "copy"
    image: ImageText
    destination: SafeName
    epoch: Count
    state: CopyState
    run: RunText
    location: dict[str, Any] = Field(default_factory=dict)
    """What the destination needs to find it again; only the destination reads it."""
    size_bytes: Count = 0
    digest: str = ""
    lane: str = ""
    started: AwareDatetime
    ended: AwareDatetime | None = None
    """Of a copy that is ``writing``: the attempt has ended, and it is known that no whole copy came of it; ``location``
    then has its whole parts."""
    verified: AwareDatetime | None = None
    note: str = ""
    hint: str = ""
    """What to do about the note, where it is an error's."""
    streamed: StreamStatistics | None = None
    """Of a copy on tape that this process wrote."""

    @property
    def subject(self) -> str:
        return f"{self.image}@{self.destination}#{self.epoch}"


class CartridgeRecord(Record):
    """A cartridge we know."""

    kind: ClassVar[str] = "cartridge"
    barcode: BarcodeText
    destination: SafeName
    pool: PoolText | Literal[""]
    state: CartridgeState
    label: str = ""
    """The label's random id; empty while blank."""
    former_label: str = ""
    """The id that the medium may still bear while a cartridge is labelled again; else empty."""
    used_bytes: Count = 0
    tape_files: Count = 0
    """Tape files written, the label included; the next one is written at this number."""
    last_trailer: Count = 0
    """Tape file number of the newest whole trailer; 0 while there is none. Dead space may lie behind it."""
    images: tuple[ImageText, ...] = ()
    at: AwareDatetime
    note: str = ""
    mounts: Count = 0
    """How often it came out of a drive again."""
    errors: Count = 0
    """How often reading or writing it failed."""
    alerts: tuple[str, ...] = ()
    """What the drive said when it left it last."""
    written: AwareDatetime | None = None
    """When an image or a label was last written to it."""
    worm: bool = False
    """It is written once: never scratch again, whatever expires on it."""
    resumes: CartridgeState | None = None
    """While ``offsite``: the state that it takes up again when it comes back."""

    @property
    def subject(self) -> str:
        return f"{self.destination}/{self.barcode}"


class DriveRecord(Record):
    """What a tape drive said of itself, or why it is not used."""

    kind: ClassVar[str] = "drive"
    destination: SafeName
    drive: Count
    state: Literal["ready", "wants cleaning", "cleaned", "set aside"]
    alerts: tuple[str, ...] = ()
    barcode: BarcodeText | Literal["", "?"] = ""
    """The cartridge that was in it; ``?``: its barcode cannot be read."""
    at: AwareDatetime
    note: str = ""

    @property
    def subject(self) -> str:
        return f"{self.destination}/drive {self.drive}"


class SelectionRecord(Record):
    """A storage group's fixed list of stores."""

    kind: ClassVar[str] = "selection"
    group: SafeName
    stores: tuple[SafeName, ...]
    rule: Literal["list", "all"] = "list"
    at: AwareDatetime
    who: str = ""

    @property
    def subject(self) -> str:
        return self.group


class FreedRecord(Record):
    """Staging gave an image's room back, after its copies were verified."""

    kind: ClassVar[str] = "freed"
    image: ImageText
    reason: str
    at: AwareDatetime
    expired: bool = False
    """The retention took it: it has no copy, and nobody is meant to miss it."""

    @property
    def subject(self) -> str:
        return self.image


class AwayRecord(Record):
    """Why no copy could be begun at a destination; an empty error: it answers again."""

    kind: ClassVar[str] = "away"
    destination: SafeName
    error: str
    hint: str = ""
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.destination


class ForgottenRecord(Record):
    """An operator's word that what an image owes, or that it is lost, is given up."""

    kind: ClassVar[str] = "forgotten"
    image: ImageText
    reason: str
    who: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.image


class StagingLossRecord(Record):
    """An image was found damaged or gone on staging. A later record of the image outdates it: it was made again."""

    kind: ClassVar[str] = "staging-loss"
    image: str
    reason: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.image


class AdoptionRecord(Record):
    """An operator's word that one store goes on as another: their images are one line."""

    kind: ClassVar[str] = "adoption"
    old: StoreText
    """``GROUP/STORE`` before."""
    new: StoreText
    """``GROUP/STORE`` from then on."""
    who: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.old


class ClockRecord(Record):
    """An operator's word that the clock was right when it was given, and that later stamps are wrong."""

    kind: ClassVar[str] = "clock"
    wrong: tuple[RunText, ...]
    """Runs whose stamps, and nights, are wrong."""
    reason: str
    who: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return f"{self.at:%Y%m%dT%H%M%S.%fZ}"


class HoldRecord(Record):
    """Whether the retention must leave an image alone, and why."""

    kind: ClassVar[str] = "hold"
    image: ImageText
    held: bool
    reason: str
    who: str
    at: AwareDatetime

    @property
    def subject(self) -> str:
        return self.image


class ExpiryRecord(Record):
    """One application of the retention: an intent before anything goes, a result when all of it has gone."""

    kind: ClassVar[str] = "expiry"
    expiry: str
    """Its name: when it began, UTC."""
    who: str
    reason: str
    """Why it was right to expire so much at once; empty when it was not much."""
    copies: tuple[str, ...]
    """Subjects of the copies: before, those that are to go; afterwards, those that went."""
    staged: tuple[ImageText, ...] = ()
    """Images that staging is to free, or has freed."""
    at: AwareDatetime
    note: str = ""

    @property
    def subject(self) -> str:
        return self.expiry


class RecallRecord(Record):
    """A copy that was asked back from an archive, so that it is asked for once and its wait has a beginning."""

    kind: ClassVar[str] = "recall"
    image: ImageText
    destination: SafeName
    epoch: Count
    """The copy's."""
    storage_class: str
    asked: AwareDatetime

    @property
    def subject(self) -> str:
        return f"{self.image}@{self.destination}#{self.epoch}"


RECORDS: dict[str, type[Record]] = {
    record.kind: record
    for record in (
        RunRecord,
        ImageRecord,
        FailureRecord,
        SealRecord,
        ApprovalRecord,
        OwnerRecord,
        ConstraintRecord,
        CopyRecord,
        CartridgeRecord,
        DriveRecord,
        LeaseRecord,
        DriveLeaseRecord,
        SelectionRecord,
        FreedRecord,
        AwayRecord,
        ForgottenRecord,
        StagingLossRecord,
        AdoptionRecord,
        ClockRecord,
        HoldRecord,
        ExpiryRecord,
        SiteRecord,
        RebuildRecord,
        DeliveryRecord,
        RecallRecord,
    )
}


class Event(BaseModel):
    """One line of the catalog's log. ``sequence`` is one total order over the whole catalog."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    sequence: int
    at: datetime
    writer: str
    """``node:pid`` of the process that wrote it."""
    phase: Literal["intent", "result"]
    kind: str
    subject: str
    body: dict[str, Any]
