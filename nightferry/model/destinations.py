"""What the site file says of the places copies go to, and how long they stay there."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nightferry.model.fields import (
    AbsolutePath,
    Bandwidth,
    Deadline,
    DriverOptions,
    Duration,
    SafeName,
    SecretRef,
    Section,
    Share,
    Size,
    StringList,
    TimeOfDay,
    Url,
)
from nightferry.units import GIB, KIB, MIB, TIB

_COMPRESSION = re.compile(r"zstd(:([1-9]|1[0-9]))?")
_ZSTD_DEFAULT_LEVEL = 3  # what the zstd program does without a level

ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects cannot be read where they are; ``GLACIER_IR`` is none."""

ExactCount = Annotated[int, Field(strict=True, ge=0)]
StreamCount = Annotated[int, Field(strict=True, ge=1, le=64)]


class Retention(Section):
    """How many images of a store stay. All zero: nothing ever expires."""

    keep_last: ExactCount = 0
    keep_daily: ExactCount = 0
    keep_weekly: ExactCount = 0
    keep_monthly: ExactCount = 0
    keep_yearly: ExactCount = 0

    @property
    def _numbers(self) -> tuple[int, ...]:
        return (self.keep_last, self.keep_daily, self.keep_weekly, self.keep_monthly, self.keep_yearly)

    @property
    def keeps_everything(self) -> bool:
        """No number is given."""
        return not any(self._numbers)

    @property
    def keeps_one(self) -> bool:
        """Every rule is content with the newest image."""
        return max(self._numbers) == 1


class SiteRetention(Retention):
    """``[retention]``: what holds where a destination says nothing else, and when and how much at once."""

    at_most: Share = 0.5
    """The share of a destination's copies that may expire at once without somebody's word for it."""
    expire_at: TimeOfDay | None = None
    """When the deployment runs each day, site time; None: only when it is asked for."""


def _compression(value: str) -> str:
    if value and _COMPRESSION.fullmatch(value) is None:
        raise ValueError(
            f"unknown compression {value!r}; write 'zstd', or with a level 'zstd:1' to 'zstd:19'"
        )
    return value


class Encode(Section):
    """How a copy is compressed and encrypted on the passive node."""

    compress: Annotated[str, AfterValidator(_compression)] = ""
    encrypt_to: StringList = ()

    @property
    def level(self) -> int | None:
        """zstd's level; None when copies stay plain."""
        if not self.compress:
            return None
        return int(self.compress.partition(":")[2] or _ZSTD_DEFAULT_LEVEL)


class Lock(Section):
    """Object lock."""

    mode: Literal["governance", "compliance"] = "governance"
    days: Annotated[int, Field(strict=True, ge=1, le=36_500)]


class Recall(Section):
    """How a copy in an archived storage class is asked for before it is read."""

    tier: Literal["expedited", "standard", "bulk"] = "standard"
    """How fast, and how dear; deep archives know no ``expedited``."""
    days: Annotated[int, Field(strict=True, ge=1, le=365)] = 3
    """How long the store keeps the recalled bytes readable."""
    wait: Duration = 48 * 3600.0
    """Seconds a restore waits for it; bulk recalls from deep archives take two days."""


class PoolSettings(Section):
    """Cartridges for one use."""

    name: SafeName = "default"
    barcodes: StringList = ("*",)
    """Shell patterns; a cartridge belongs to the pool when one matches its barcode."""
    autolabel: Literal["blank", "never"] = "blank"
    wait_for_media: Duration = 8 * 3600.0
    """Seconds to wait, shown, for a scratch cartridge, or for one that is to be read and is elsewhere."""
    cleaning: StringList = ("CLN*",)
    """Shell patterns of the barcodes of cleaning cartridges."""


class VirtualLibrarySettings(Section):
    """A tape library made of folders."""

    kind: Literal["virtual"]
    path: AbsolutePath
    drives: Annotated[int, Field(strict=True, ge=1, le=64)] = 2
    slots: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 20
    ports: Annotated[int, Field(strict=True, ge=1, le=64)] = 2
    """Import/export ports, where a hand takes cartridges out and puts them in."""
    cartridge_bytes: Annotated[Size, Field(ge=64 * KIB)] = 2 * GIB


class _RealLibrary(Section):
    """What real libraries have in common."""

    elements: tuple[Annotated[int, Field(strict=True, ge=0, le=0xFFFF)], ...] = ()
    """At which data transfer element of the changer each of ``drives`` stands; only needed where the changer
    does not tell the drives' serial numbers."""
    cartridge_bytes: Annotated[Size, Field(ge=64 * KIB)] | None = None
    """What a cartridge holds, for planning; None: by the generation that the barcodes name."""
    early_warning_reserve: Annotated[Size, Field(ge=1 << 20)] = 160 << 20
    """What the drives surely still take after early warning."""


class ScsiLibrarySettings(_RealLibrary):
    """A library behind the kernel's own SCSI devices."""

    kind: Literal["scsi"]
    changer: AbsolutePath
    drives: Annotated[tuple[AbsolutePath, ...], Field(min_length=1)]
    """``/dev/nst*`` (the kernel's tape driver) or ``/dev/sg*`` (its generic one)."""


class IscsiLibrarySettings(_RealLibrary):
    """A library behind iSCSI."""

    kind: Literal["iscsi"]
    portal: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[^\s:/,\[\]]+)(:[0-9]{1,5})?$")]
    """``host``, ``host:port`` or ``[v6 address]:port``; the port is 3260 when it is not given."""
    target: Annotated[str, Field(min_length=1, max_length=223)]
    user: str = ""
    password: SecretRef | None = None
    initiator: str = ""
    """The name this host logs in by; empty: open-iscsi's, else one made of the host's name."""
    drives: tuple[str, ...] = ()
    """Serial numbers of the drives to use, in the order they are numbered; none: all that the target has."""

    @model_validator(mode="after")
    def _credentials_go_together(self) -> IscsiLibrarySettings:
        if bool(self.user) != (self.password is not None):
            raise ValueError("user and password go together")
        return self


class NdmpLibrarySettings(Section):
    """A library behind a NAS that speaks NDMP."""

    kind: Literal["ndmp"]
    server: SafeName
    robot: str
    drives: Annotated[tuple[str, ...], Field(min_length=1)]


LibrarySettings = Annotated[
    VirtualLibrarySettings | ScsiLibrarySettings | IscsiLibrarySettings | NdmpLibrarySettings,
    Field(discriminator="kind"),
]


class ExpiryKeys(Section):
    """The credentials that remove expired copies, so that those of the nights need not be able to."""

    access_key: SecretRef | None = None
    secret_key: SecretRef | None = None
    profile: str | None = None

    @model_validator(mode="after")
    def _name_one(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None) or (
            (self.access_key is None) == (self.profile is None)
        ):
            raise ValueError("give access_key and secret_key, or a profile")
        return self


class _DestinationBase(Section):
    name: SafeName
    description: str = ""
    streams: StreamCount | None = None
    """Images written at once; None: a tape library's drives, four elsewhere."""
    bandwidth: Bandwidth = ()
    deadline: Deadline | None = None
    """When an owed copy counts as missing: a time of day after the window's start, or a span from it."""
    retention: Retention | None = None
    """Overrides the site's."""
    encode: Encode | None = None

    def deadline_after(self, window_start: datetime) -> datetime | None:
        """The first moment after ``window_start`` (aware, in site time) at which an owed copy is missing."""
        if self.deadline is None or isinstance(self.deadline, timedelta):
            return None if self.deadline is None else window_start + self.deadline
        due = datetime.combine(window_start.date(), self.deadline, tzinfo=window_start.tzinfo)
        if due <= window_start:
            due = datetime.combine(
                window_start.date() + timedelta(days=1), self.deadline, tzinfo=window_start.tzinfo
            )
        return due


class TapeSettings(_DestinationBase):
    """A tape library."""

    kind: Literal["tape"]
    library: LibrarySettings
    pool: PoolSettings = PoolSettings()
    buffer_bytes: Annotated[Size, Field(ge=2 * MIB, le=4 * GIB)] = 32 * MIB
    """Of each drive: what is read ahead of it, so that it streams."""


class S3Access(Section):
    """How an S3 store is reached. What is not given here follows boto3's own chain."""

    endpoint: Url | None = None
    region: str | None = None
    profile: str | None = None
    ca_file: AbsolutePath | None = None
    access_key: SecretRef | None = None
    secret_key: SecretRef | None = None
    path_style: bool | None = None
    """``endpoint/bucket/key`` instead of ``bucket.endpoint/key``; None: with an endpoint of one's own."""


class S3Settings(_DestinationBase, S3Access):
    """An object store that speaks S3."""

    kind: Literal["s3"]
    url: Url
    max_parts: Annotated[int, Field(strict=True, ge=100, le=10_000)] = 10_000
    """Parts of one upload that the provider takes; some take 1,000."""
    max_object: Annotated[Size, Field(ge=100 * MIB)] = 5 * TIB
    """The largest image that the provider takes as one object; some take 48 TiB."""
    storage_class: Annotated[str, Field(pattern=r"[A-Z0-9_]+")] | None = None
    """Of the images' data, in the provider's words; the small files beside it stay in the bucket's own."""
    lock: Lock | None = None
    recall: Recall = Recall()
    expire: ExpiryKeys | None = None
    """Who removes what has expired; None: the same key as writes."""

    @property
    def archives(self) -> bool:
        """Whether images' data goes where it must be recalled from."""
        return self.storage_class in ARCHIVE_CLASSES


def _fsspec_url(value: str) -> str:
    scheme = value.partition("://")[0]
    if scheme in ("s3", "s3a"):
        raise ValueError('a bucket is a destination of kind = "s3", which proves and resumes its uploads')
    if scheme == "local":
        raise ValueError("write file:///… for a folder")
    return value


class FsspecSettings(_DestinationBase):
    """Any other URL that fsspec opens; ``file:///…`` is a folder."""

    kind: Literal["fsspec"]
    url: Annotated[Url, AfterValidator(_fsspec_url)]
    options: DriverOptions = Field(default_factory=dict)
    """Given to the fsspec file system; secrets among them are references."""

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]


DestinationSettings = Annotated[
    TapeSettings | S3Settings | FsspecSettings,
    Field(discriminator="kind"),
]
