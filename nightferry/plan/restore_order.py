"""Where to read from, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.units import MIB

STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Speed:
    """What a destination needs until the first byte (mount, wind, connect), and from there on."""

    first_byte_s: float
    bytes_per_s: float


TAPE_SPEED = Speed(first_byte_s=120.0, bytes_per_s=300 * MIB)
OFFSITE_S = 4 * 3600.0
"""Until somebody has brought a cartridge from its vault."""
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
    offsite: tuple[str, ...] = ()
    """Its cartridges that are offsite and must be brought back first."""
    needs_recall: bool = False
    """The copy lies in an archive: it is asked for when no other can be read."""

    def as_json(self) -> dict[str, object]:
        """The source as ``--dry-run`` shows it."""
        cartridges = [stop.barcode for stop in stops(self.copy)] if self.copy else []
        return {
            "copy": self.source,
            "predicted_s": round(self.expected_s, 1),
            "cartridges": cartridges,
            "offsite": list(self.offsite),
            "needs_recall": self.needs_recall,
        }


def choose_copies(
    image: ImageRecord,
    copies: Iterable[CopyRecord],
    staged: bool,
    speeds: Mapping[str, Speed],
    *,
    wanted_bytes: int | None = None,
    offsite: Mapping[str, Set[str]] = MappingProxyType({}),
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
        offsite: Destination → barcodes of its cartridges that are in a vault.
    """
    wanted = image.size_bytes if wanted_bytes is None else wanted_bytes
    choices = []
    for copy in copies:
        if copy.state in ("verified", "whole", "suspect"):
            speed = speeds.get(copy.destination, TAPE_SPEED)
            barcodes = list(dict.fromkeys(stop.barcode for stop in stops(copy)))
            # A little of a spanned image lies on one of its cartridges, all of it on all of them.
            mounts = max(1, len(barcodes) if wanted >= image.size_bytes else 1)
            away = tuple(b for b in barcodes if b in offsite.get(copy.destination, ()))
            expected = mounts * speed.first_byte_s + wanted / speed.bytes_per_s + OFFSITE_S * bool(away)
            choices.append(Choice(copy.destination, copy, expected, copy.state == "suspect", away))
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


@dataclass(frozen=True, slots=True, order=True)
class Stop:
    """One place on tape that a copy is read from: a cartridge, and the tape file on it."""

    barcode: str
    file: int


def stops(copy: CopyRecord) -> tuple[Stop, ...]:
    """Where a tape copy lies, part after part; nothing for a copy elsewhere."""
    parts = copy.location.get("parts", [])
    return tuple(
        Stop(part["barcode"], part["file"])
        for part in parts
        if isinstance(part, dict) and "barcode" in part and "file" in part
    )


C = TypeVar("C")


def by_cartridge(copies: Iterable[C], copy_of: Callable[[C], CopyRecord | None]) -> list[list[C]]:
    """Passes in which copies are read so that each cartridge is mounted once, and wound forward only.

    Every pass is for one drive: the copies that begin on one cartridge, by their place on it. What does not lie on
    tape is a pass of its own, so that nobody waits for it. The longest pass comes first; drives that take the next
    one when they are free end close together.
    """
    passes: dict[str, list[tuple[Stop, C]]] = {}
    alone: list[list[C]] = []
    for each in copies:
        copy = copy_of(each)
        places = stops(copy) if copy is not None else ()
        if copy is not None and places:
            passes.setdefault(f"{copy.destination}/{places[0].barcode}", []).append((places[0], each))
        else:
            alone.append([each])
    ordered = sorted(passes.values(), key=lambda one: (-len(one), one[0][0].barcode))
    return [[each for _, each in sorted(one, key=lambda item: item[0])] for one in ordered] + alone
