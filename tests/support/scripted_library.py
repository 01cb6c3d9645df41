"""A tape library that lives in memory and speaks SCSI: what no target on loopback does can be made to happen in it.

``ScriptedDrive`` and ``ScriptedChanger`` are transports. They follow SSC-5 and SMC-3 where tgtd does not: the
position is told, SPACE stops at filemarks with a residual count, the end of the medium is hard. ``Script``
makes the next command of a kind answer something else, before or after it was done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from nightferry.errors import NightferryError
from nightferry.scsi.transport import CHECK_CONDITION, GOOD, Answer

TEST_UNIT_READY, REWIND, READ_BLOCK_LIMITS, READ, WRITE, FILEMARKS, SPACE = (
    0x00,
    0x01,
    0x05,
    0x08,
    0x0A,
    0x10,
    0x11,
)
INQUIRY, MODE_SELECT, MODE_SENSE, LOAD, PREVENT = 0x12, 0x15, 0x1A, 0x1B, 0x1E
READ_POSITION, LOG_SENSE, LOCATE, MOVE, READ_ELEMENTS = 0x34, 0x4D, 0x92, 0xA5, 0xB8

CHANGED, RESET = (0x6, 0x28, 0x00), (0x6, 0x29, 0x00)
EMPTY, BECOMING_READY, CLEANING = (0x2, 0x3A, 0x00), (0x2, 0x04, 0x01), (0x2, 0x30, 0x03)
UNSUPPORTED, BAD_FIELD = (0x5, 0x20, 0x00), (0x5, 0x24, 0x00)
PROTECTED, WORM_OVERWRITE = (0x7, 0x27, 0x00), (0x7, 0x30, 0x0C)


def sense(
    code: tuple[int, int, int],
    *,
    information: int | None = None,
    filemark: bool = False,
    eom: bool = False,
    ili: bool = False,
    deferred: bool = False,
    descriptor: bool = False,
) -> bytes:
    """Sense data in fixed or descriptor form."""
    key, asc, ascq = code
    bits = filemark << 7 | eom << 6 | ili << 5
    if descriptor:
        body = (
            b""
            if information is None
            else bytes((0, 10, 0x80, 0)) + information.to_bytes(8, "big", signed=True)
        )
        body += bytes((4, 2, 0, bits))
        return bytes((0x73 if deferred else 0x72, key, asc, ascq, 0, 0, 0, len(body))) + body
    raw = bytearray(18)
    raw[0] = (0x71 if deferred else 0x70) | (0x80 if information is not None else 0)
    raw[2] = key | bits
    raw[3:7] = (information or 0).to_bytes(4, "big", signed=True)
    raw[7], raw[12], raw[13] = 10, asc, ascq
    return bytes(raw)


def check(code: tuple[int, int, int], **more: object) -> Answer:
    """CHECK CONDITION with this sense."""
    return Answer(CHECK_CONDITION, sense(code, **more))  # type: ignore[arg-type]


Said = Answer | NightferryError


@dataclass
class Script:
    """What is to happen out of turn: per operation code a list of (answer or error, whether the command was
    done before it)."""

    steps: dict[int, list[tuple[Said, bool]]] = field(default_factory=dict)
    sent: list[bytes] = field(default_factory=list)

    def instead(self, code: int, *answers: Said) -> None:
        """The next commands with this code are not done, and answer this."""
        self.steps.setdefault(code, []).extend((answer, False) for answer in answers)

    def afterwards(self, code: int, *answers: Said) -> None:
        """The next commands with this code are done, and answer this all the same."""
        self.steps.setdefault(code, []).extend((answer, True) for answer in answers)

    def play(self, cdb: bytes, do: Callable[[], Answer]) -> Answer:
        self.sent.append(cdb)
        steps = self.steps.get(cdb[0])
        if not steps:
            return do()
        said, done = steps.pop(0)
        if done:
            do()
        if isinstance(said, NightferryError):
            raise said
        return said

    def count(self, code: int) -> int:
        return sum(cdb[0] == code for cdb in self.sent)


@dataclass
class Tape:
    """A cartridge: blocks, and None for a filemark."""

    barcode: str
    capacity: int = 8 << 20
    reserve: int = 256 << 10
    blocks: list[bytes | None] = field(default_factory=list)
    write_protected: bool = False
    worm: bool = False
    cleaning: bool = False

    @property
    def used(self) -> int:
        return sum(len(block) for block in self.blocks if block is not None)


class _Scripted(ABC):
    """What answers commands by a script, and by ``_do`` where that leaves it to it."""

    most_bytes = (1 << 24) - 1
    attentions: list[tuple[int, int, int]]

    def __init__(self) -> None:
        self.script = Script()
        self.attentions = [RESET]

    def reset(self, timeout_s: float) -> None:
        self.attentions.append(RESET)

    def close(self) -> None:
        self.attentions = [RESET]

    def execute(
        self,
        cdb: bytes,
        *,
        data_out: bytes | memoryview | None = None,
        data_in_len: int = 0,
        timeout_s: float,
    ) -> Answer:
        return self.script.play(cdb, lambda: self._do(cdb, bytes(data_out or b""), data_in_len))

    @abstractmethod
    def _do(self, cdb: bytes, data: bytes, room: int) -> Answer:
        """What the device does of a command, and answers."""


class ScriptedDrive(_Scripted):
    """A drive that keeps to SSC-5."""

    def __init__(self, serial: str, *, tells_position: bool = True) -> None:
        self.serial = serial
        super().__init__()
        self.tape: Tape | None = None
        self.threaded = False
        self.at = 0
        self.alerts: set[int] = set()
        self.block_bytes = 0
        self.prevented = False
        self.resets = 0
        self.descriptor = False
        self._tells_position = tells_position

    @property
    def name(self) -> str:
        return f"scripted {self.serial}"

    def put_in(self, tape: Tape) -> None:
        """What the changer does."""
        self.tape, self.threaded, self.at = tape, True, 0
        self.attentions.append(CHANGED)

    def take_out(self) -> Tape | None:
        tape, self.tape, self.threaded = self.tape, None, False
        return tape

    def reset(self, timeout_s: float) -> None:
        super().reset(timeout_s)
        self.resets += 1
        self.prevented = False

    def _do(self, cdb: bytes, data: bytes, room: int) -> Answer:
        if cdb[0] == INQUIRY:
            return _inquiry(1, self.serial, cdb, room)
        if self.attentions:
            return check(self.attentions.pop(0))
        if cdb[0] == LOG_SENSE:
            return self._log(room)
        if cdb[0] in (PREVENT, LOAD):
            return self._load(cdb)
        if self.tape is None or not self.threaded:
            return check(EMPTY)
        if self.tape.cleaning:
            # One look while it cleans; then the drive puts it out.
            self.threaded = False
            self.alerts -= {20, 21}
            return check(CLEANING)
        verbs: dict[int, Callable[[], Answer]] = {
            TEST_UNIT_READY: lambda: Answer(GOOD),
            READ_BLOCK_LIMITS: lambda: Answer(GOOD, b"", _fit(bytes((0, 0xFF, 0xFF, 0xFF, 0, 1)), room)),
            MODE_SENSE: lambda: self._mode(room),
            MODE_SELECT: lambda: self._select(data),
            READ_POSITION: lambda: self._position(room),
            REWIND: lambda: self._go(0),
            LOCATE: lambda: self._locate(int.from_bytes(cdb[4:12], "big")),
            SPACE: lambda: self._space(cdb[1] & 0x0F, int.from_bytes(cdb[2:5], "big", signed=True)),
            READ: lambda: self._read(room),
            WRITE: lambda: self._write(data),
            FILEMARKS: lambda: self._filemarks(int.from_bytes(cdb[2:5], "big")),
        }
        return verbs[cdb[0]]() if cdb[0] in verbs else check(UNSUPPORTED)

    def _check(self, code: tuple[int, int, int], **more: object) -> Answer:
        return check(code, descriptor=self.descriptor, **more)

    def _load(self, cdb: bytes) -> Answer:
        if cdb[0] == PREVENT:
            self.prevented = bool(cdb[4] & 1)
            return Answer(GOOD)
        if self.tape is None:
            return check(EMPTY)
        self.threaded, self.at = bool(cdb[4] & 1), 0
        return Answer(GOOD)

    def _log(self, room: int) -> Answer:
        flags = b"".join(
            number.to_bytes(2, "big") + bytes((0, 1, number in self.alerts)) for number in range(1, 65)
        )
        return Answer(GOOD, b"", _fit(bytes((0x2E, 0)) + len(flags).to_bytes(2, "big") + flags, room))

    def _mode(self, room: int) -> Answer:
        assert self.tape is not None
        head = bytes((11, 0, 0x10 | (0x80 if self.tape.write_protected else 0), 8, 0x58, 0, 0, 0, 0))
        return Answer(GOOD, b"", _fit(head + self.block_bytes.to_bytes(3, "big"), room))

    def _select(self, data: bytes) -> Answer:
        self.block_bytes = int.from_bytes(data[9:12], "big")
        return Answer(GOOD)

    @property
    def _blocks(self) -> list[bytes | None]:
        assert self.tape is not None
        return self.tape.blocks

    def _position(self, room: int) -> Answer:
        if not self._tells_position:
            # As tgtd does: an answer that says nothing.
            return Answer(GOOD, b"", _fit(b"\x20", room))
        raw = bytes((0x80 if self.at == 0 else 0, 0, 0, 0, 0, 0, 0, 0)) + self.at.to_bytes(8, "big")
        raw += self._blocks[: self.at].count(None).to_bytes(8, "big")
        return Answer(GOOD, b"", _fit(raw, room))

    def _go(self, at: int) -> Answer:
        self.at = at
        return Answer(GOOD)

    def _locate(self, file: int) -> Answer:
        if not self._tells_position:
            return check(UNSUPPORTED)
        starts = [0] + [at + 1 for at, block in enumerate(self._blocks) if block is None]
        if file >= len(starts):
            self.at = len(self._blocks)
            return self._check((0x8, 0x00, 0x05))
        return self._go(starts[file])

    def _space(self, over: int, count: int) -> Answer:
        if over == 3:
            return self._go(len(self._blocks))
        step = 1 if count > 0 else -1
        left = abs(count)
        while left:
            at = self.at if step > 0 else self.at - 1
            if at >= len(self._blocks):
                return self._check((0x8, 0x00, 0x05), information=left)
            if at < 0:
                return self._check((0x0, 0x00, 0x04), information=left, eom=True)
            self.at += step
            is_filemark = self._blocks[at] is None
            if over == 0 and is_filemark:
                return self._check((0x0, 0x00, 0x01), information=left, filemark=True)
            left -= over == 0 or is_filemark
        return Answer(GOOD)

    def _read(self, room: int) -> Answer:
        if self.at >= len(self._blocks):
            return self._check((0x8, 0x00, 0x05), information=room)
        block = self._blocks[self.at]
        self.at += 1
        if block is None:
            return self._check((0x0, 0x00, 0x01), information=room, filemark=True)
        if len(block) == room:
            return Answer(GOOD, b"", block, room)
        said = self._check((0x0, 0x00, 0x00), information=room - len(block), ili=True)
        return Answer(said.status, said.sense, block[:room].ljust(room, b"\0"), min(len(block), room))

    def _write(self, data: bytes) -> Answer:
        tape = self.tape
        assert tape is not None
        if tape.write_protected:
            return self._check(PROTECTED)
        if tape.worm and self.at < len(tape.blocks):
            return self._check(WORM_OVERWRITE)
        del tape.blocks[self.at :]
        if tape.used + len(data) > tape.capacity:
            return self._check((0xD, 0x00, 0x02), information=len(data), eom=True)
        tape.blocks.append(data)
        self.at += 1
        return self._early()

    def _filemarks(self, count: int) -> Answer:
        tape = self.tape
        assert tape is not None
        if tape.write_protected:
            return self._check(PROTECTED)
        if count:
            del tape.blocks[self.at :]
            tape.blocks += [None] * count
            self.at += count
        return self._early()

    def _early(self) -> Answer:
        assert self.tape is not None
        if self.tape.capacity - self.tape.used < self.tape.reserve + (1 << 20):
            return self._check((0x0, 0x00, 0x02), eom=True, information=0)
        return Answer(GOOD)


class ScriptedChanger(_Scripted):
    """A changer over scripted drives, with element addresses as tgtd's rig has them."""

    name = "scripted changer"
    first: ClassVar = {2: 1000, 3: 10, 4: 500}

    def __init__(self, drives: list[ScriptedDrive], tapes: list[Tape], slots: int, ports: int = 1) -> None:
        super().__init__()
        self.drives = drives
        self.slots: list[Tape | None] = [*tapes, *[None] * (slots - len(tapes))]
        self.ports: list[Tape | None] = [None] * ports
        self.tells_serials = True
        self.sources: dict[int, int] = {}

    def _do(self, cdb: bytes, data: bytes, room: int) -> Answer:
        if cdb[0] == INQUIRY:
            return _inquiry(8, "CHANGER1", cdb, room)
        if self.attentions:
            return check(self.attentions.pop(0))
        if cdb[0] == READ_ELEMENTS:
            return Answer(GOOD, b"", _fit(self._report(cdb[1] & 0x0F, bool(cdb[6] & 1)), room))
        if cdb[0] == MOVE:
            source, target = (int.from_bytes(cdb[at : at + 2], "big") for at in (4, 6))
            return self._move(source, target)
        return Answer(GOOD) if cdb[0] == TEST_UNIT_READY else check(UNSUPPORTED)

    def _content(self, kind: int) -> list[Tape | None]:
        return {2: self.slots, 3: self.ports, 4: [drive.tape for drive in self.drives]}.get(kind, [None])

    def _report(self, kind: int, identifiers: bool) -> bytes:
        content = self._content(kind)
        body = b""
        for number, tape in enumerate(content):
            address = self.first.get(kind, 1) + number
            source = self.sources.get(address)
            tag = (tape.barcode if tape else "").encode().ljust(32) + bytes(4)
            told = kind == 4 and identifiers and self.tells_serials
            name = f"SCRIPTED{'DRIVE':<16}{self.drives[number].serial}".encode() if told else b""
            body += address.to_bytes(2, "big") + bytes((0x08 | (tape is not None), 0, 0, 0, 0, 0, 0))
            body += bytes((0x80 if source is not None else 0,)) + (source or 0).to_bytes(2, "big")
            body += tag + bytes((2, 1, 0, len(name))) + name
        each = len(body) // len(content)
        page = bytes((kind, 0x80)) + each.to_bytes(2, "big") + b"\0" + len(body).to_bytes(3, "big") + body
        head = self.first.get(kind, 1).to_bytes(2, "big") + len(content).to_bytes(2, "big")
        return head + b"\0" + len(page).to_bytes(3, "big") + page

    def _place(self, address: int) -> tuple[int, int] | None:
        for kind, first in self.first.items():
            if first <= address < first + len(self._content(kind)):
                return kind, address - first
        return None

    def _move(self, source: int, target: int) -> Answer:
        from_, to = self._place(source), self._place(target)
        if from_ is None or to is None:
            return check((0x5, 0x21, 0x01))
        tape = self._content(from_[0])[from_[1]]
        if tape is None:
            return check((0x5, 0x3B, 0x0E))
        if self._content(to[0])[to[1]] is not None:
            return check((0x5, 0x3B, 0x0D))
        if from_[0] == 4:
            drive = self.drives[from_[1]]
            if drive.threaded or drive.prevented:
                return check((0x5, 0x53, 0x02))
            drive.take_out()
        else:
            self._content(from_[0])[from_[1]] = None
        if to[0] == 4:
            self.drives[to[1]].put_in(tape)
            self.sources[target] = source
        else:
            self._content(to[0])[to[1]] = tape
        self.sources.pop(source, None)
        return Answer(GOOD)


def _inquiry(kind: int, serial: str, cdb: bytes, room: int) -> Answer:
    if cdb[1] & 1:
        raw = serial.encode()
        return Answer(GOOD, b"", _fit(bytes((kind, 0x80, 0, len(raw))) + raw, room))
    raw = bytes((kind, 0x80, 6, 2, 31, 0, 0, 0)) + b"SCRIPTED" + b"DRIVE".ljust(16) + b"1   "
    return Answer(GOOD, b"", _fit(raw, room))


def _fit(data: bytes, room: int) -> bytes:
    return data[:room].ljust(room, b"\0")
