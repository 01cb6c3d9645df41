"""What became of a write whose outcome is not known: nothing is sent again before the medium was read."""

from __future__ import annotations

import xxhash

from nightferry.destination.tape.cartridge import Cartridge
from nightferry.destination.tape.drive import LONGEST_RECORD, Mark, Position, TapeDrive, Waiting
from nightferry.destination.tape.layout import CHUNK_DIGEST_BYTES
from nightferry.errors import MediumDamaged, WrongCartridge


def records_there(cartridge: Cartridge, file: int, sent: bytes, waiting: Waiting) -> int:
    """How many of the records sent to a tape file are on the medium, from its first one without a gap.

    The cartridge is loaded anew, and its label read: it may be another one by now. The last record that was
    acknowledged tells by its digest where the tape stands; only when it is not there, all before it are read. The
    tape stands behind the last record that matches.

    Args:
        cartridge: The cartridge in the drive.
        file: The tape file, which no filemark ends yet.
        sent: The digests (xxh3-64) of the records sent, 8 bytes each; the last one is in doubt.
        waiting: Is told of the wait for the drive.

    Raises:
        WrongCartridge: another cartridge is in the drive.
        MediumDamaged: the tape ends before the tape file.
        DestinationError: the drive does not answer, or cannot read.
    """
    drive = cartridge.drive
    drive.unload()
    drive.load(waiting)
    found = Cartridge(drive, cartridge.barcode).label
    if found != cartridge.label:
        raise WrongCartridge(
            f"another cartridge is in drive {drive.number}: {cartridge.barcode} had the label "
            f"{cartridge.label.label if cartridge.label else '-'}",
            subject=cartridge.barcode,
        )
    digests = [sent[at : at + CHUNK_DIGEST_BYTES] for at in range(0, len(sent), CHUNK_DIGEST_BYTES)]
    last = max(len(digests) - 2, 0)
    there = last + _matching(drive, file, last, digests[last:])
    if there == last > 0:
        there = _matching(drive, file, 0, digests)
    drive.locate(Position(file, there))
    return there


def _matching(drive: TapeDrive, file: int, first: int, digests: list[bytes]) -> int:
    """How many records from ``first`` on have these digests."""
    try:
        drive.locate(Position(file, first))
    except MediumDamaged:
        if first == 0:
            raise
        return 0  # what the drive had acknowledged did not reach the medium
    for number, digest in enumerate(digests):
        record = drive.read_record(LONGEST_RECORD)
        if isinstance(record, Mark) or xxhash.xxh3_64(record).digest() != digest:
            return number
    return len(digests)
