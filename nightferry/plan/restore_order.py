"""Where to read from, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.units import MIB

STAGING = "staging"
NEAR_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Speed:
    """What a destination needs until the first byte (mount, wind, connect), and from there on."""

    first_byte_s: float
    bytes_per_s: float


TAPE_SPEED = Speed(first_byte_s=120.0, bytes_per_s=300 * MIB)
OBJECT_SPEED = Speed(first_byte_s=0.5, bytes_per_s=100 * MIB)
ARCHIVE_SPEED = Speed(first_byte_s=5 * 3600.0, bytes_per_s=100 * MIB)
FOLDER_SPEED = Speed(first_byte_s=0.05, bytes_per_s=200 * MIB)


@dataclass(frozen=True, slots=True)
class Choice:
    """One place an image can be read from. ``copy`` is None for staging."""

    source: str
    copy: CopyRecord | None
    expected_s: float
    doubtful: bool = False
    """The copy is suspect: it is read only when no other is left, and every byte of it is checked."""
    needs_recall: bool = False
    """The copy lies in an archive: it is asked for when no other can be read."""


def choose_copies(
    image: ImageRecord,
    copies: Iterable[CopyRecord],
    staged: bool,
    speeds: Mapping[str, Speed],
    *,
    wanted_bytes: int | None = None,
) -> list[Choice]:
    """The places to read an image from, the best first.

    Staging comes first. Then sound copies (verified or whole) by expected time, at equal times the verified
    one: a folder or an object store thus comes before a tape, unless so much is wanted that the tape is
    faster. Suspect copies come last; damaged, lost and unfinished ones not at all.

    Args:
        copies: The image's copies, one per destination.
        staged: Whether staging still holds the image.
        speeds: Destination → what it can do, measured or one of this module's; for one that is not in it
            tape's speed is taken, the slowest.
        wanted_bytes: How much is to be read; None means the whole image.
    """
    wanted = image.size_bytes if wanted_bytes is None else wanted_bytes
    choices = []
    for copy in copies:
        if copy.state in ("verified", "whole", "suspect"):
            speed = speeds.get(copy.destination, TAPE_SPEED)
            expected = speed.first_byte_s + wanted / speed.bytes_per_s
            choices.append(Choice(copy.destination, copy, expected, doubtful=copy.state == "suspect"))
    choices.sort(key=_rank)
    if staged:
        speed = speeds.get(STAGING, FOLDER_SPEED)
        choices.insert(0, Choice(STAGING, None, speed.first_byte_s + wanted / speed.bytes_per_s))
    return choices


def recalled_last(choices: Iterable[Choice], archived: Collection[str]) -> list[Choice]:
    """The places in the order in which they are read: those whose copy lies in an archive after all others.

    Args:
        choices: In the order of ``choose_copies``.
        archived: Destinations whose copy of the image must be recalled.
    """
    marked = [replace(c, needs_recall=c.copy is not None and c.source in archived) for c in choices]
    return sorted(marked, key=lambda choice: choice.needs_recall)


def _rank(choice: Choice) -> tuple[bool, float, bool, str]:
    verified = choice.copy is not None and choice.copy.state == "verified"
    return (choice.doubtful, choice.expected_s, not verified, choice.source)


class Extent(Protocol):
    """Anything with a place in an image: an index row."""

    @property
    def offset(self) -> int: ...
    @property
    def length(self) -> int: ...


E = TypeVar("E", bound=Extent)


@dataclass(frozen=True, slots=True)
class Read(Generic[E]):
    """One range to read, and the rows that lie in it, by offset."""

    offset: int
    length: int
    rows: tuple[E, ...]


def order_reads(rows: Iterable[E], *, near_bytes: int = NEAR_BYTES) -> list[Read[E]]:
    """Reads that cover all rows, forward through the image, each byte at most once.

    Ranges that overlap or lie at most ``near_bytes`` apart become one: reading over a small gap is cheaper
    than asking again, and on tape much cheaper than stopping. Rows without data (length 0) come too.
    """
    reads: list[Read[E]] = []
    begin = end = 0
    group: list[E] = []
    for row in sorted(rows, key=lambda row: (row.offset, row.length)):
        if group and row.offset > end + near_bytes:
            reads.append(Read(begin, end - begin, tuple(group)))
            group = []
        if not group:
            begin = end = row.offset
        group.append(row)
        end = max(end, row.offset + row.length)
    if group:
        reads.append(Read(begin, end - begin, tuple(group)))
    return reads
