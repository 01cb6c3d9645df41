"""What is on the cartridges of a library behind iSCSI, tape file by tape file, as ``dd`` would read them."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from pathlib import Path

from nightferry.clock import SYSTEM_CLOCK
from nightferry.destination.tape.drives.base import Mark
from nightferry.destination.tape.library.changer import Address, Library
from nightferry.destination.tape.library.scsi_open import Options, open_iscsi
from nightferry.scsi.iscsi import Portal
from tests.servers.tgtd import TARGET, Tgtd


def dump(server: Tgtd, locks: Path) -> dict[str, list[bytes]]:
    """Barcode → its tape files; what no filemark ends comes last. Cartridges that are blank are left out."""
    library = open_iscsi(Portal(server.portal, TARGET), (), Options(locks=(locks,)), SYSTEM_CLOCK)
    found: dict[str, list[bytes]] = {}
    try:
        drive, into = library.drives[0], Address("drive", 0)
        for place in [e for e in library.changer.inventory() if e.barcode and e.address.kind == "drive"]:
            library.drives[place.address.number].unload()
            library.changer.move(place.address, _empty_slot(library))
        for place in [e for e in library.changer.inventory() if e.barcode]:
            library.changer.move(place.address, into)
            drive.load()
            files = [b""]
            while (record := drive.read_record()) is not Mark.END_OF_DATA:
                if isinstance(record, Mark):
                    files.append(b"")
                else:
                    files[-1] += record
            if files != [b""]:
                found[place.barcode] = files if files[-1] else files[:-1]
            drive.unload()
            library.changer.move(into, _empty_slot(library))
    finally:
        library.close()
    return found


def _empty_slot(library: Library) -> Address:
    return next(e.address for e in library.changer.inventory() if e.address.kind == "slot" and not e.barcode)


def whole_copies(tapes: dict[str, list[bytes]]) -> Counter[str]:
    """How often each image is whole on the tapes: its final trailers, by Python's own tar reader."""
    found: Counter[str] = Counter()
    for files in tapes.values():
        for data in files[1:]:
            try:
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    member = tar.extractfile(".nightferry/trailer.json")
                    trailer = json.loads(member.read()) if member is not None else {}
            except (tarfile.TarError, KeyError):
                continue
            if trailer.get("kind") == "image" and trailer["location"] is not None:
                found[trailer["image"]] += 1
    return found
