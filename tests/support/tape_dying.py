"""A process that writes an image to tape and is killed in the middle: ``tape_dying FOLDER PORTAL IMAGE POINT``.

A program of its own: a fork of a test's process has its threads' locks and none of its threads.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from nightferry.destination.tape.library.changer import Library
from nightferry.model.records import CartridgeRecord
from tests.support.outgoing import PlainImage as Image
from tests.support.outgoing import at_chunk, put
from tests.support.tape_process import LastingRegister, Process
from tests.support.tape_shops import BARCODES, open_library


def die(library: Library, register: LastingRegister, image: Image, at: str) -> None:
    """Puts the image, and is killed while its second part is under way, or just when that is closed."""

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    trailers = 0
    labels = 0
    for drive in library.drives:

        def write(data: bytes, write: Callable[[bytes], bool] = drive.write_record) -> bool:
            nonlocal trailers, labels
            head = bytes(data[:30])
            trailers += head.startswith(b".nightferry/trailer.json")
            labels += head.startswith(b"NIGHTFERRY TAPE LABEL")
            early = write(data)
            if (at, trailers) == ("trailer", 2) or (at, labels) == ("label", 2):
                kill()
            return early

        drive.write_record = write  # type: ignore[method-assign]

    def recorded(cartridge: CartridgeRecord) -> None:
        if at == "record" and cartridge.barcode == BARCODES[1] and cartridge.state == "full":
            kill()
        if at == "claim" and cartridge.barcode == BARCODES[2]:
            kill()

    register.on_record = recorded
    if at == "part":
        image.on_chunk = at_chunk(12, kill)
    put(Process(library, register, BARCODES).tape, image)


def main(folder: str, portal: str, image: str, at: str) -> None:
    tmp = Path(folder)
    register = LastingRegister(tmp / "register")
    die(open_library(tmp, portal), register, Image(image, (tmp / "image.tar").read_bytes()), at)


if __name__ == "__main__":
    main(*sys.argv[1:])
