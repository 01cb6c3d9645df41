"""The label: the first record of a cartridge, plain text (docs/tape-layout.md)."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from nightferry.errors import ConfigError
from nightferry.model.names import BARCODE, POOL

_MAGIC = "NIGHTFERRY TAPE LABEL "
_VERSION = 1
LABEL_BYTES = 4096
"""What a label takes at most."""
_FIELDS = {
    "barcode": BARCODE,
    "pool": POOL,
    "label": r"[0-9a-f]{32}",
    "created": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z",
}
_PROSE = """
This cartridge was written by nightferry, a two-stage backup. Tape file 0 is this label. Then, for every
image, one tape file of the image's own bytes and one small tape file that describes it (the trailer).
Every tape file ends with a filemark; records are 1 MiB, the last of a tape file may be shorter. Images and
trailers are POSIX tar archives:

    mt -f /dev/nst0 rewind
    mt -f /dev/nst0 fsf 1                       # 1 for the first image, 3 for the second, ...
    dd if=/dev/nst0 bs=1M | tar tvf -

A trailer (fsf 2, 4, ...) unpacks the same way; .nightferry/trailer.json in it names the image. An image that
did not fit goes on on another cartridge, which its trailer names: join the parts in order,
`cat part1 part2 | tar xf -`. To read a cartridge, set its write-protect switch first.
"""


class NotALabel(ValueError):
    """The record is not a label of ours."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a cartridge says it is. ``label`` is its random id; ``created`` aware UTC, whole seconds."""

    barcode: str
    pool: str
    label: str
    created: datetime

    def render(self) -> bytes:
        """The record to write: below 4 KiB of UTF-8.

        Raises:
            ConfigError: a field cannot stand in a label.
        """
        text = (
            f"{_MAGIC}{_VERSION}\nbarcode: {self.barcode}\npool: {self.pool}\nlabel: {self.label}\n"
            f"created: {self.created.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}\n{_PROSE}"
        ).encode()
        try:
            same = parse(text) == self
        except NotALabel:
            same = False
        if not same:
            raise ConfigError(
                f"barcode {self.barcode!r} and pool {self.pool!r} cannot be written on a label",
                hint="use letters, digits, '.', '_' and '-'",
            )
        return text


def new_label(barcode: str, pool: str, created: datetime) -> Label:
    """A label with a fresh random id."""
    return Label(barcode, pool, secrets.token_hex(16), created.astimezone(UTC).replace(microsecond=0))


def parse(record: bytes) -> Label:
    """Reads a label, strictly: known version, the four fields in order and well formed, then an empty line.

    Raises:
        NotALabel: saying what is not as it must be.
    """
    head, found, _ = record[:LABEL_BYTES].partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise NotALabel("not plain text") from None
    if not lines[0].startswith(_MAGIC):
        raise NotALabel("does not begin like a nightferry label")
    if lines[0] != f"{_MAGIC}{_VERSION}":
        raise NotALabel(f"a label of another version: {lines[0][len(_MAGIC) :][:16]!r}")
    if not found or len(lines) != 1 + len(_FIELDS):
        raise NotALabel("its fields are incomplete")
    values = {}
    for line, (key, pattern) in zip(lines[1:], _FIELDS.items(), strict=True):
        if not re.fullmatch(f"{key}: (?:{pattern})", line):
            raise NotALabel(f"its {key} is not well formed")
        values[key] = line[len(key) + 2 :]
    try:
        created = datetime.strptime(values["created"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise NotALabel("its created is not a time") from None
    return Label(values["barcode"], values["pool"], values["label"], created)
