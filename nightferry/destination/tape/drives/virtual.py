"""A tape drive over a folder: one plain file per tape file, ``marks`` beside them (docs/tape-layout.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from nightferry.destination.durable import (
    WRITEBACK_BYTES,
    begin_writeback,
)
from nightferry.destination.failure import os_errors
from nightferry.destination.tape.drives.base import (
    LONGEST_RECORD,
    RECORD_BYTES,
    EndOfMedium,
    Mark,
    Position,
    Waiting,
    no_waiting,
)
from nightferry.errors import DestinationError, MediumDamaged, NotACartridge, Unavailable, WriteProtected
from nightferry.transfer.below import LINK, folder_below, name_really, open_folder
from nightferry.transfer.durable import remove_dead_drafts, replace_file, sync_folder, write_all
from nightferry.transfer.regular import NO_FILE, open_regular, read_regular

_MARKS = "marks"
PROTECTED, WORM = "write-protected", "worm"
"""Empty files in a cartridge's folder: its switch, and what kind of cartridge it is."""
CLEANER = "CLN"
"""How the barcode of a cleaning cartridge begins."""
_MARKS_STEP = 16 << 10
_MOST_MARKS_BYTES = 256 << 20
"""``marks`` is no longer: a hundred bytes for each tape file."""
_UNSYNCED_FILES = 16
"""Tape files ended without a commit before one is made anyway: bounds the open files."""


class Runs:
    """Record sizes of one tape file, run-length: 37 records of 1 MiB and one of 52,341 bytes are two
    runs."""

    __slots__ = ("bytes", "count", "runs")

    def __init__(self, runs: list[tuple[int, int]]) -> None:
        self.runs = runs
        self.count = sum(count for _, count in runs)
        self.bytes = sum(size * count for size, count in runs)

    def append(self, size: int) -> None:
        if self.runs and self.runs[-1][0] == size:
            self.runs[-1] = (size, self.runs[-1][1] + 1)
        else:
            self.runs.append((size, 1))
        self.count += 1
        self.bytes += size

    def locate(self, record: int) -> tuple[int, int]:
        """Offset and size of a record that is there."""
        offset = 0
        for size, count in self.runs:
            if record < count:
                return offset + record * size, size
            record -= count
            offset += count * size
        raise IndexError(record)

    def upto(self, record: int) -> Runs:
        kept = []
        for size, count in self.runs:
            take = min(count, record)
            if take:
                kept.append((size, take))
            record -= take
        return Runs(kept)

    def render(self) -> str:
        return " ".join(f"{size}x{count}" for size, count in self.runs) or "-"


def parse_runs(line: str) -> Runs:
    """A line of ``marks``.

    Raises:
        ValueError: it is none.
    """
    if line == "-":
        return Runs([])
    runs = []
    for item in line.split(" "):
        size, cross, count = item.partition("x")
        if not (
            cross
            and size.isdecimal()
            and count.isdecimal()
            and 0 < int(size) <= LONGEST_RECORD
            and int(count)
        ):
            raise ValueError(f"not a run of records: {item[:40]!r}")
        runs.append((int(size), int(count)))
    return Runs(runs)


def uniform(size_bytes: int) -> Runs:
    """What is assumed of bytes that no line of ``marks`` describes: 1 MiB records and a shorter rest."""
    whole, rest = divmod(size_bytes, RECORD_BYTES)
    return Runs([run for run in ((RECORD_BYTES, whole), (rest, 1 if rest else 0)) if run[1]])


_MOST_ALERTS_BYTES = 64 << 10
_NOT_OURS = frozenset({LINK, NO_FILE, errno.EFBIG})
"""What is said of something else in the place of a file or folder of ours."""


@contextmanager
def _of_the_cartridge(where: str, barcode: str) -> Iterator[None]:
    """What is no file of ours on a cartridge is the cartridge's damage: any drive would meet it.

    Raises:
        NotACartridge: something else lies in the place of a file or folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        name_really(error)
        raise NotACartridge(f"{where}: {error.strerror} ({error.filename})", subject=barcode) from error


class VirtualDrive:
    """See ``TapeDrive``. Opens the cartridge that the changer put in when it is loaded.

    Args:
        number: The drive's number.
        cartridges: The folder of the cartridges' folders.
        cartridge_bytes: Where the hard end is.
        reserve_bytes: What is surely left after early warning.
        occupant: Says which barcode the changer put into this drive; empty when none.
        alerts: File with the names of the alerts that are set, one a line; absent when none is.
    """

    def __init__(
        self,
        number: int,
        cartridges: Path,
        cartridge_bytes: int,
        reserve_bytes: int,
        occupant: Callable[[], str],
        alerts: Path,
    ) -> None:
        self._number = number
        self._cartridges = cartridges
        self._cartridge_bytes = cartridge_bytes
        self._reserve_bytes = reserve_bytes
        self._occupant = occupant
        self._alerts = alerts
        self._barcode = ""
        self._folder_fd = -1
        """Of the loaded cartridge's folder: what is moved there meanwhile leads nowhere else."""
        self._protected = self._worm = False
        self._files: list[Runs] = []
        self._tail = Runs([])
        self._used = 0
        self._file = self._record = 0
        self._out = -1
        self._writeback = WRITEBACK_BYTES
        self._in, self._in_file = -1, -1
        self._unsynced: list[tuple[int, str]] = []
        self._marks_bytes = self._marks_room = 0
        self._strays = False

    @property
    def number(self) -> int:
        return self._number

    @property
    def reserve_bytes(self) -> int:
        return self._reserve_bytes

    @property
    def _subject(self) -> str:
        return f"{self._barcode} in drive {self._number}"

    def is_loaded(self) -> bool:
        return bool(self._barcode)

    def load(self, waiting: Waiting = no_waiting) -> None:
        if self._barcode:
            return
        barcode = self._occupant()
        if not barcode:
            raise Unavailable(f"drive {self._number} is empty", subject=f"drive {self._number}")
        where = f"{barcode} in drive {self._number}"
        with os_errors(where), _of_the_cartridge(where, barcode):
            self._folder_fd = self._opened_folder(barcode)
        try:
            with os_errors(where), _of_the_cartridge(where, barcode):
                self._read_marks(barcode)
        except BaseException:
            self._close_folder()
            raise
        if barcode.startswith(CLEANER):
            self._close_folder()
            return
        self._used = sum(runs.bytes for runs in self._files) + self._tail.bytes
        self._barcode = barcode
        self._file = self._record = 0

    def _opened_folder(self, barcode: str) -> int:
        try:
            return open_folder(self._cartridges.parent, (self._cartridges.name, barcode))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MediumDamaged(
                f"cartridge {barcode} has no folder {self._cartridges / barcode}", subject=barcode
            ) from error

    def _read_marks(self, barcode: str) -> None:
        """What the cartridge is, and which records are on it; a cleaning one cleans."""
        folder = self._folder
        if barcode.startswith(CLEANER):
            with self._alerts_folder() as drives:
                (drives / self._alerts.name).unlink(missing_ok=True)
            return
        self._protected, self._worm = (folder / PROTECTED).exists(), (folder / WORM).exists()
        try:
            text = read_regular(folder / _MARKS, _MOST_MARKS_BYTES)
        except FileNotFoundError:
            text = b""
        room = len(text)
        torn = text.partition(b"\0")[0]
        text = torn[: torn.rfind(b"\n") + 1]
        try:
            self._files = [parse_runs(line) for line in text.decode("ascii").splitlines()]
        except ValueError as error:
            raise MediumDamaged(
                f"{self._cartridges / barcode / _MARKS} cannot be read: {error}", subject=barcode
            ) from error
        self._marks_bytes = len(text)
        self._marks_room = room if torn == text else 0
        self._strays = True
        try:
            self._tail = uniform(self._path(len(self._files)).lstat().st_size)
        except FileNotFoundError:
            self._tail = Runs([])

    def unload(self) -> None:
        if not self._barcode:
            return
        try:
            self._commit()
        finally:
            self._close_files()
            self._close_folder()
            self._barcode = ""

    @property
    def _folder(self) -> Path:
        """The loaded cartridge's, by its descriptor."""
        return Path(f"/proc/self/fd/{self._folder_fd}")

    def _close_folder(self) -> None:
        os.close(self._folder_fd)
        self._folder_fd = -1

    def alerts(self) -> tuple[str, ...]:
        with os_errors(f"drive {self._number}"):
            try:
                with self._alerts_folder() as drives:
                    text = read_regular(drives / self._alerts.name, _MOST_ALERTS_BYTES)
            except FileNotFoundError:
                return ()
        return tuple(text.decode(errors="replace").split("\n")[:-1])

    def _alerts_folder(self) -> AbstractContextManager[Path]:
        """The library's folder of drives, by its descriptor."""
        folder = self._alerts.parent
        return folder_below(folder.parent, [folder.name])

    def is_write_protected(self) -> bool:
        self._loaded()
        return self._protected

    def rewind(self) -> None:
        self._loaded()
        self._file = self._record = 0

    def position(self) -> Position:
        self._loaded()
        return Position(self._file, self._record)

    def locate(self, target: Position) -> None:
        self._loaded()
        if target.file > len(self._files):
            raise MediumDamaged(
                f"{self._subject} ends after {len(self._files)} tape files, before tape file {target.file}",
                subject=self._barcode,
            )
        self._file, self._record = target.file, 0
        if self.space_records(target.record) != target.record:
            raise MediumDamaged(
                f"tape file {target.file} of {self._subject} ends before record {target.record}",
                subject=self._barcode,
            )

    def space_filemarks(self, count: int) -> int:
        self._loaded()
        passed = min(count, len(self._files) - self._file)
        self._file += passed
        if passed < count:
            self._record = self._tail.count
        elif count:
            self._record = 0
        return passed

    def space_records(self, count: int) -> int:
        self._loaded()
        passed = min(count, self._runs().count - self._record)
        self._record += passed
        return passed

    def read_record(self, limit: int = RECORD_BYTES) -> bytes | Mark:
        self._loaded()
        runs = self._runs()
        if self._record >= runs.count:
            if self._file >= len(self._files):
                return Mark.END_OF_DATA
            self._file, self._record = self._file + 1, 0
            return Mark.FILEMARK
        offset, size = runs.locate(self._record)
        self._record += 1
        where = f"tape file {self._file}, record {self._record - 1} of {self._subject}"
        if size > limit:
            raise MediumDamaged(
                f"{where} has {size} bytes, more than the {limit} asked for", subject=self._barcode
            )
        with os_errors(where), _of_the_cartridge(where, self._barcode):
            try:
                data = os.pread(self._open_for_reading(), size, offset)
            except FileNotFoundError as error:
                raise MediumDamaged(
                    f"{where} is not there: {self._cartridges / self._barcode}", subject=self._barcode
                ) from error
        if len(data) != size:
            raise MediumDamaged(f"{where} ends after {len(data)} of {size} bytes", subject=self._barcode)
        return data

    def write_record(self, data: bytes | memoryview) -> bool:
        self._loaded()
        size = len(data)
        if not 0 < size <= LONGEST_RECORD:
            raise ValueError(f"a record has 1 to {LONGEST_RECORD} bytes, not {size}")
        self._writable()
        self._cut()
        if self._used + size > self._cartridge_bytes:
            raise EndOfMedium(f"{self._subject} is at its end", subject=self._barcode)
        with os_errors(self._subject):
            try:
                self._open_for_writing()
                write_all(self._out, data)
            except OSError:
                self._drop_half_record()
                raise
        self._tail.append(size)
        self._used += size
        self._record += 1
        if self._tail.bytes >= self._writeback:
            self._writeback = begin_writeback(self._out, self._tail.bytes)
        return self._early()

    def write_filemarks(self, count: int, *, immediate: bool = False) -> bool:
        self._loaded()
        if count:
            self._writable()
        with os_errors(self._subject):
            for _ in range(count):
                self._cut()
                self._open_for_writing()
                self._unsynced.append((self._out, self._tail.render()))
                self._out = -1
                self._files.append(self._tail)
                self._tail = Runs([])
                self._file, self._record = self._file + 1, 0
            if not immediate or len(self._unsynced) > _UNSYNCED_FILES:
                self._commit()
        return self._early()

    def _writable(self) -> None:
        if self._protected:
            raise WriteProtected(f"{self._subject} is write-protected", subject=self._barcode)
        at_end = self._file == len(self._files) and self._record == self._tail.count
        if self._worm and not at_end:
            raise WriteProtected(f"{self._subject} is WORM and is not written over", subject=self._barcode)

    def _early(self) -> bool:
        return self._cartridge_bytes - self._used < self._reserve_bytes + RECORD_BYTES

    def _loaded(self) -> None:
        if not self._barcode:
            raise DestinationError(
                f"drive {self._number} has no cartridge loaded", subject=f"drive {self._number}"
            )

    def _runs(self) -> Runs:
        return self._files[self._file] if self._file < len(self._files) else self._tail

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04d}.tape"

    def _open_for_reading(self) -> int:
        if self._in_file != self._file:
            self._close_reading()
            self._in = open_regular(self._path(self._file))
            self._in_file = self._file
        return self._in

    def _open_for_writing(self) -> None:
        """The file at the position, which is the end of data; what a cut-off write left in it is kept."""
        if self._strays:
            # Tape files that were never committed must not come back when those before them are.
            for number in range(len(self._files) + 1, len(self._files) + _UNSYNCED_FILES + 2):
                self._path(number).unlink(missing_ok=True)
            self._strays = False
        if self._out < 0:
            flags = os.O_WRONLY | os.O_CREAT | (0 if self._record else os.O_TRUNC)
            self._out = open_regular(self._path(self._file), flags)
            os.lseek(self._out, self._tail.bytes, os.SEEK_SET)
            self._writeback = self._tail.bytes + WRITEBACK_BYTES

    def _drop_half_record(self) -> None:
        if self._out >= 0:
            os.ftruncate(self._out, self._tail.bytes)
            os.lseek(self._out, self._tail.bytes, os.SEEK_SET)

    def _commit(self) -> None:
        """Data first, then its line in ``marks``: a line says that the tape file is on the disk."""
        if self._out >= 0:
            os.fdatasync(self._out)
        if not self._unsynced:
            return
        for fd, _ in self._unsynced:
            # Begun together, one commit of the file system's journal serves them all.
            begin_writeback(fd, 0)
        for fd, _ in self._unsynced:
            os.fdatasync(fd)
        sync_folder(self._folder)
        self._append_marks("".join(f"{line}\n" for _, line in self._unsynced).encode())
        for fd, _ in self._unsynced:
            os.close(fd)
        self._unsynced.clear()

    def _append_marks(self, lines: bytes) -> None:
        """Durably. The file grows in steps of NUL bytes, so that most lines change no metadata."""
        marks = open_regular(self._folder / _MARKS, os.O_WRONLY | os.O_CREAT)
        end = self._marks_bytes + len(lines)
        try:
            if end > self._marks_room:
                os.ftruncate(marks, self._marks_bytes)
                self._marks_room = -(-end // _MARKS_STEP) * _MARKS_STEP
                lines = lines.ljust(self._marks_room - self._marks_bytes, b"\0")
            os.lseek(marks, self._marks_bytes, os.SEEK_SET)
            write_all(marks, lines)
            os.fdatasync(marks)
        finally:
            os.close(marks)
        if not self._marks_bytes:
            sync_folder(self._folder)
        self._marks_bytes = end

    def _cut(self) -> None:
        """Writing anywhere but at the end drops what lay behind, as on tape."""
        if self._file == len(self._files) and self._record == self._tail.count:
            return
        with os_errors(self._subject):
            self._commit()
            self._close_files()
            last = len(self._files)
            kept = self._runs().upto(self._record)
            del self._files[self._file :]
            lines = "".join(f"{runs.render()}\n" for runs in self._files).encode()
            remove_dead_drafts(self._folder)
            replace_file(self._folder / _MARKS, lines)
            self._marks_bytes = self._marks_room = len(lines)
            for number in range(last, self._file - 1, -1):
                if number > self._file or not kept.count:
                    self._path(number).unlink(missing_ok=True)
                else:
                    fd = open_regular(self._path(number), os.O_WRONLY)
                    try:
                        os.ftruncate(fd, kept.bytes)
                    finally:
                        os.close(fd)
        self._tail = kept
        self._used = sum(runs.bytes for runs in self._files) + kept.bytes

    def _close_reading(self) -> None:
        if self._in >= 0:
            os.close(self._in)
        self._in, self._in_file = -1, -1

    def _close_files(self) -> None:
        self._close_reading()
        for fd in [self._out, *(fd for fd, _ in self._unsynced)]:
            if fd >= 0:
                os.close(fd)
        self._out = -1
        self._unsynced.clear()
