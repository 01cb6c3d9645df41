"""Writing one large file past the page cache: the 2003 process's unbuffered copy, with digests on the way."""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from nightferry.errors import NightferryError, StagingFull
from nightferry.progress import Cancel
from nightferry.transfer.base import CHUNK_BYTES, PayloadHasher
from nightferry.transfer.digest import ChunkTable
from nightferry.transfer.engines import open_engine
from nightferry.transfer.files import ALIGNMENT, data_extents, reopen_direct, round_up
from nightferry.transfer.meter import Meter
from nightferry.transfer.newfile import NewFile
from nightferry.transfer.ring import Buffers, RingSettings, Transfer
from nightferry.transfer.throttle import Throttle

__all__ = ["DirectWriter", "RingSettings", "data_extents"]

_ZEROS = memoryview(bytes(64 << 10))


class DirectWriter:
    """A new file, written once and in order through a bounded ring of buffers (a ``ByteSink``).

    Every buffer is one place of the file's grid of ``buffer_bytes``. What is appended is copied, or read from
    its source directly, into the buffer at hand; a full buffer is digested by the caller's thread and written
    by the engine while the next ones fill. Writes may end in any order; digests see the bytes in theirs.

    Memory: ``settings.buffers * settings.buffer_bytes``, whatever is copied. Threads: the engine's only, and
    none after ``finish`` or ``abort``. One thread uses a writer at a time, the one that made it.

    An error of our own file (no room, a failing disk) is a ``NightferryError`` and final: every later call
    but ``abort`` raises it again. An error of a *source* is an ``OSError`` out of ``copy_from``, after which
    the writer goes on: ``position`` says how much was appended, ``rewind`` takes it back.

    Args:
        path: The file to create; it must not exist, its directory must.
        settings: Buffers and engine.
        expected_bytes: Room to allocate at once, so that a full disk shows before the copy; 0 when unknown.
            The file may grow beyond it, and is cut to what was written.
        meter: Told of every buffer.
        throttle: Asked before every buffer is written.
        cancel: Looked at before every buffer.
        fd: An empty file to write in place of a new one at ``path``, which then is only a name for messages.
            It stays the caller's, who also removes it.

    Raises:
        BusyError: the file exists.
        ConfigError: it cannot be created.
        StagingFull: ``expected_bytes`` do not fit; nothing is left behind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: RingSettings,
        expected_bytes: int = 0,
        meter: Meter | None = None,
        throttle: Throttle | None = None,
        cancel: Cancel | None = None,
        fd: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._settings = settings
        self._size = settings.buffer_bytes
        self._meter = meter
        self._throttle = throttle
        self._cancel = cancel or Cancel()
        self._chunks = ChunkTable()
        self._writes: deque[tuple[memoryview, Transfer]] = deque()
        self._current: memoryview | None = None
        self._base = 0
        self._fill = 0
        self._failure: NightferryError | None = None
        self._engine = open_engine(
            settings.engine, settings.buffers, readers=settings.readers, writers=settings.writers
        )
        try:
            self._buffers = Buffers(settings.buffers, settings.buffer_bytes)
            self._file = NewFile(
                self.path, unbuffered=settings.unbuffered, expected_bytes=expected_bytes, fd=fd
            )
        except BaseException:
            self._engine.close()
            raise

    @property
    def position(self) -> int:
        """Offset of the next byte; the file's size so far."""
        return self._base + self._fill

    @property
    def unbuffered(self) -> bool:
        """Whether the writes pass the page cache by; False once the file system has refused."""
        return self._file.direct

    @property
    def engine(self) -> str:
        """The engine at work: ``threads`` or ``io_uring``."""
        return self._engine.name

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends a copy of ``data``.

        Raises:
            StagingFull: no room is left; the room taken so far was given back.
            DestinationError: the disk failed.
            Cancelled: a stop was asked for.
        """
        self._require_open()
        rest = memoryview(data).cast("B")
        self._seal_if_full()  # it is full only when a cancelled call was taken up again
        while rest.nbytes:
            buffer = self._buffer()
            piece = rest[: self._size - self._fill]
            buffer[self._fill : self._fill + piece.nbytes] = piece
            self._fill += piece.nbytes
            rest = rest[piece.nbytes :]
            self._seal_if_full()

    def copy_from(self, fd: int, offset: int, length: int, hasher: PayloadHasher | None = None) -> int:
        """Appends ``length`` bytes of ``fd`` from ``offset``; returns when all were read and hashed.

        Where ``position`` and ``offset`` are both multiples of 4096 the bytes go from the source's disk
        straight into the ring, past the page cache; else through the cache, which is then asked to forget
        them.

        Returns how many bytes the source really had; the rest up to ``length`` is zeros, hashed as such.

        Raises:
            OSError: the source cannot be read; what was read before stays appended.
            StagingFull: no room is left.
            DestinationError: our own disk failed.
            Cancelled: a stop was asked for.
        """
        self._require_open()
        self._seal_if_full()  # it is full only when a cancelled call was taken up again
        aligned = self._fill % ALIGNMENT == 0 and offset % ALIGNMENT == 0
        direct = reopen_direct(fd) if self._settings.unbuffered and aligned else None
        pieces: deque[_Piece] = deque()
        try:
            return self._copy(_Source(fd, direct), offset, length, hasher, pieces)
        finally:
            for piece in pieces:  # only after an error: reads ahead of it are not wanted any more
                if piece.transfer is not None:
                    self._engine.wait(piece.transfer)
                if piece.buffer is not self._current:
                    self._buffers.free.append(piece.buffer)
            if direct is not None:
                os.close(direct)

    def patch(self, position: int, data: bytes) -> None:
        """Overwrites bytes already written; chunk digests follow.

        Raises:
            ValueError: the range is not all written yet.
            DestinationError: the disk failed.
        """
        self._require_open()
        end = position + len(data)
        if position < 0 or end > self.position:
            raise ValueError(f"cannot patch bytes {position} to {end} of {self.position} written")
        rest = memoryview(data)
        if position < self._base:
            sealed = rest[: self._base - position]
            self._drain()
            while sealed.nbytes:
                piece = sealed[: CHUNK_BYTES - position % CHUNK_BYTES]
                self._patch_chunk(position, piece)
                position += piece.nbytes
                sealed = sealed[piece.nbytes :]
                rest = rest[piece.nbytes :]
        if rest.nbytes:
            start = position - self._base
            self._buffer()[start : start + rest.nbytes] = rest

    def rewind(self, position: int) -> None:
        """Drops everything written from ``position`` on.

        Raises:
            ValueError: so much was not written.
            DestinationError: the disk failed.
        """
        self._require_open()
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot rewind to {position} of {self.position} written")
        if position < self._base:
            self._drain()
            if self._current is not None:
                self._buffers.free.append(self._current)
                self._current = None
            self._base = position // self._size * self._size
            self._fill = 0
            self._chunks.truncate(self._base // CHUNK_BYTES)
            kept = position - self._base
            if kept:
                self._read_back(self._buffer()[: round_up(kept)], self._base, kept)
        self._fill = position - self._base

    def finish(self) -> bytes:
        """Drains, cuts the tail to its exact length, fsyncs, closes; returns the chunk table.

        The name is not durable yet: ``durable_rename`` gives the final one.

        Raises:
            StagingFull: no room was left.
            DestinationError: the disk failed.
            Cancelled: a stop was asked for.
        """
        self._require_open()
        size = self.position
        if self._fill:
            self._seal()
        self._drain()
        try:
            self._file.complete(size, forget=self._settings.unbuffered)
        except NightferryError as failure:
            self._fail(failure)
            raise
        self._release()
        return self._chunks.table()

    def abort(self) -> None:
        """Closes and removes the file. May be called at any time, also twice, also after ``finish``."""
        self._release()
        self._file.close()
        self._file.remove()

    def abandon(self) -> None:
        """Closes the file and leaves it as it is: the disk is not this node's to change any more."""
        self._release()
        self._file.close()

    # Filling

    def _copy(
        self, source: _Source, offset: int, length: int, hasher: PayloadHasher | None, pieces: deque[_Piece]
    ) -> int:
        asked = had = 0
        while asked < length or pieces:
            while asked < length and (buffer := self._next_buffer(pieces)) is not None:
                start = self._fill if asked == 0 else 0
                piece = _Piece(buffer, start, min(self._size - start, length - asked), offset + asked)
                pieces.append(piece)
                asked += piece.length
                if not source.ended:
                    self._read(source, piece)
            self._cancel.check()
            piece = pieces[0]
            got = self._settle_read(source, piece)
            pieces.popleft()
            self._current = piece.buffer
            self._fill = piece.start + piece.length
            _zero(piece.buffer[piece.start + got : self._fill])
            had += got
            if hasher is not None:
                hasher.update(piece.buffer[piece.start : self._fill])
            self._seal_if_full()
        return had

    def _next_buffer(self, pieces: deque[_Piece]) -> memoryview | None:
        """The buffer for the next read; None when none is free and there is other work to do."""
        if not pieces:
            return self._buffer()
        if not self._buffers.free:
            self._engine.poll()
            self._reclaim()
        return self._buffers.free.pop() if self._buffers.free else None

    def _read(self, source: _Source, piece: _Piece) -> Transfer:
        direct = source.direct is not None
        length = round_up(piece.length) if direct else piece.length
        view = piece.buffer[piece.start : piece.start + length]
        fd = source.fd if source.direct is None else source.direct
        piece.transfer = Transfer(fd, view, piece.offset, writing=False, direct=direct)
        self._engine.start(piece.transfer)
        return piece.transfer

    def _settle_read(self, source: _Source, piece: _Piece) -> int:
        """Waits for a piece; returns how many of its bytes the source has."""
        if piece.transfer is None:
            return 0
        self._engine.wait(piece.transfer)
        refused = piece.transfer.error is not None and piece.transfer.error.errno == errno.EINVAL
        if refused and piece.transfer.direct and not source.ended:
            source.direct = None  # it could be opened unbuffered, but not read
            self._engine.wait(self._read(source, piece))
        transfer = piece.transfer
        if source.ended:  # what lies beyond a first end, in a file that grows meanwhile, was never announced
            return 0
        if transfer.error is not None:
            raise transfer.error
        if not transfer.direct and self._settings.unbuffered:
            os.posix_fadvise(source.fd, piece.offset, piece.length, os.POSIX_FADV_DONTNEED)
        got = min(transfer.done, piece.length)
        source.ended = got < piece.length
        return got

    def _buffer(self) -> memoryview:
        """The buffer at hand; waits for one when all are being written."""
        while self._current is None:
            if not self._buffers.free:
                self._engine.poll()
                self._reclaim()
            if self._buffers.free:
                self._current = self._buffers.free.pop()
            else:
                self._engine.wait(self._writes[0][1])
        return self._current

    # Emptying

    def _seal_if_full(self) -> None:
        if self._fill == self._size:
            self._seal()
            self._base += self._size
            self._fill = 0

    def _seal(self) -> None:
        """Digests the buffer at hand and starts its write."""
        self._cancel.check()
        if self._throttle is not None:
            self._throttle.take(self._fill, self._cancel)
        buffer = self._buffer()
        self._chunks.update(buffer[: self._fill])
        length = self._fill
        if self._file.direct:
            length = round_up(length)
            _zero(buffer[self._fill : length])
        transfer = Transfer(
            self._file.fd, buffer[:length], self._base, writing=True, direct=self._file.direct
        )
        self._engine.start(transfer)
        self._writes.append((buffer, transfer))
        self._current = None
        if self._meter is not None:
            self._meter.add(self._fill)

    def _reclaim(self) -> None:
        """Gives the buffers of ended writes back."""
        for _ in range(len(self._writes)):
            buffer, transfer = self._writes.popleft()
            waiting = self._settle_write(transfer) if transfer.ended else transfer
            if waiting is None:
                self._buffers.free.append(buffer)
            else:
                self._writes.append((buffer, waiting))

    def _settle_write(self, transfer: Transfer) -> Transfer | None:
        """Looks at an ended write; returns its second try when it must be written through the cache."""
        error = transfer.error
        if error is not None and error.errno == errno.EINVAL and transfer.direct:
            self._file.fall_back()
            again = Transfer(self._file.fd, transfer.view, transfer.offset, writing=True, direct=False)
            self._engine.start(again)
            return again
        if error is None and transfer.done < transfer.view.nbytes:
            error = OSError(errno.EIO, "the file system wrote nothing")
        if error is not None:
            raise self._fail(self._file.failure(error, transfer.at)) from error
        if not transfer.direct and self._settings.unbuffered:
            # The first advice starts the writing back, the next buffer's lets go of what is clean by then.
            start = max(0, transfer.offset - self._settings.memory_bytes)
            os.posix_fadvise(self._file.fd, start, transfer.at - start, os.POSIX_FADV_DONTNEED)
        return None

    def _drain(self) -> None:
        """Returns when every sealed buffer is written."""
        while self._writes:
            self._engine.wait(self._writes[0][1])
            self._reclaim()

    # Going back

    def _patch_chunk(self, position: int, data: memoryview) -> None:
        """Overwrites a part of one chunk of the sealed, drained part of the file."""
        start = position // CHUNK_BYTES * CHUNK_BYTES
        scratch = self._buffers.free[-1]  # after a drain there is one: a ring has at least two
        chunk = scratch[:CHUNK_BYTES]
        self._read_back(chunk, start, CHUNK_BYTES)
        chunk[position - start : position - start + data.nbytes] = data
        transfer = Transfer(self._file.fd, chunk, start, writing=True, direct=self._file.direct)
        self._now(transfer, CHUNK_BYTES)
        self._chunks.replace(start // CHUNK_BYTES, chunk)

    def _read_back(self, view: memoryview, offset: int, needed: int) -> None:
        """Reads bytes of our own file that were written before."""
        with self._file.readable() as fd:
            self._now(Transfer(fd, view, offset, writing=False, direct=self._file.direct), needed)

    def _now(self, transfer: Transfer, needed: int) -> None:
        """One transfer by itself, of at least ``needed`` bytes."""
        self._engine.start(transfer)
        self._engine.wait(transfer)
        error = transfer.error
        if error is None and transfer.done < needed:
            error = OSError(errno.EIO, "bytes written before are not there")
        if error is not None:
            raise self._fail(self._file.failure(error, transfer.at)) from error

    # The end

    def _fail(self, failure: NightferryError) -> NightferryError:
        """Makes a failure of our own file final. A full disk gets its room back at once."""
        self._failure = failure
        if isinstance(failure, StagingFull):
            self.abort()
        return failure

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._file.is_open:
            raise ValueError(f"{self.path} is closed")

    def _release(self) -> None:
        """Ends the threads and gives the memory back."""
        self._engine.close()
        self._buffers.close()
        self._current = None
        self._writes.clear()


@dataclass(slots=True)
class _Source:
    """Where a copy reads: the caller's descriptor, an unbuffered one of the same file, whether its end was
    met.
    """

    fd: int
    direct: int | None
    ended: bool = False


@dataclass(slots=True)
class _Piece:
    """A stretch of the source on its way into one buffer; without a transfer it lies beyond the source's
    end.
    """

    buffer: memoryview
    start: int
    length: int
    offset: int
    transfer: Transfer | None = None


def _zero(view: memoryview) -> None:
    for start in range(0, view.nbytes, _ZEROS.nbytes):
        part = view[start : start + _ZEROS.nbytes]
        part[:] = _ZEROS[: part.nbytes]
