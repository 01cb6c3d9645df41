"""Reading a staged file by range: exact, ahead of its user, past the page cache."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from nightferry.errors import IntegrityError, MediumDamaged, Unavailable
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.engines import open_engine
from nightferry.transfer.files import ALIGNMENT, reopen_direct, round_up
from nightferry.transfer.ring import Buffers, Engine, EngineName, InlineEngine, Transfer

_DAMAGED = frozenset({errno.EIO, errno.EILSEQ, errno.ENODATA})


class FileReader:
    """A file as a ``ByteReader``. Its size is fixed when it is opened.

    ``read`` and ``stream`` may be used from several threads at once. A stream's memory is
    ``buffers * buffer_bytes``; it reads ahead by an engine of its own, which ends with it.

    Args:
        path: The file.
        unbuffered: Whether streams pass the page cache by where the file system allows it.
        buffer_bytes: Bytes of one piece, a multiple of 4096.
        buffers: Pieces read ahead, the one handed out included; at least 3.
        engine: What streams read ahead with.
        opened: Opens it in place of ``path``, which then is only a name for messages.

    Raises:
        MediumDamaged: the file is not there.
        Unavailable: it cannot be opened, perhaps only for now.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        unbuffered: bool = True,
        buffer_bytes: int = 2 << 20,
        buffers: int = 4,
        engine: EngineName = "auto",
        opened: Callable[[], int] | None = None,
    ) -> None:
        if buffer_bytes <= 0 or buffer_bytes % ALIGNMENT:
            raise ValueError(f"buffer_bytes must be a multiple of {ALIGNMENT}: {buffer_bytes}")
        if buffers < 3:
            raise ValueError(f"buffers must be at least 3: {buffers}")
        self.path = os.fspath(path)
        self._unbuffered = unbuffered
        self._buffer_bytes = buffer_bytes
        self._buffers = buffers
        self._engine: EngineName = engine
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if opened is None else opened()
        except FileNotFoundError as error:
            raise MediumDamaged(f"{self.path} is not there", hint="use another copy with --copy") from error
        except OSError as error:
            raise Unavailable(f"cannot open {self.path}: {error.strerror}") from error
        self._size = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        """The file's size when it was opened."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``.

        Raises:
            IntegrityError: the range ends beyond the end, or the file is shorter by now.
            MediumDamaged: the disk cannot read them.
            Unavailable: the file does not answer for now.
        """
        self._require_inside(offset, length)
        data = bytearray(length)
        view, done = memoryview(data), 0
        try:
            while done < length:
                count = os.preadv(self._fd, [view[done:]], offset + done)
                if count == 0:
                    raise self._shorter(offset + done)
                done += count
            if self._unbuffered and length >= CHUNK_BYTES:
                os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._unreadable(error, offset + done) from error
        return bytes(data)

    def stream(self, offset: int, length: int) -> Iterator[memoryview]:
        """The same bytes in order, read ahead; a piece is valid until the next is asked for.

        From an offset that is a multiple of 4096 every piece but the last is ``buffer_bytes`` long.

        Raises:
            IntegrityError, MediumDamaged, Unavailable: as ``read``; pieces handed out before are good.
        """
        self._require_inside(offset, length)
        return self._stream(offset, length)

    def close(self) -> None:
        """Closes the file; streams must have ended. May be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _stream(self, offset: int, length: int) -> Iterator[memoryview]:
        # Unbuffered reads begin and end on the alignment, so the range is widened and the pieces are cut.
        start, end = offset // ALIGNMENT * ALIGNMENT, offset + length
        count = min(self._buffers, -(-(end - start) // self._buffer_bytes))
        if not length:
            return
        direct = reopen_direct(self._fd) if self._unbuffered else None
        engine = self._open_engine(count)
        buffers = Buffers(count, self._buffer_bytes)
        ahead: deque[tuple[memoryview, Transfer]] = deque()
        asked = start
        try:
            while asked < end or ahead:
                while asked < end and buffers.free:
                    buffer = buffers.free.pop()
                    view = buffer[: min(self._buffer_bytes, round_up(end - asked))]
                    ahead.append((buffer, self._start(engine, direct, view, asked)))
                    asked += view.nbytes
                buffer, transfer = ahead.popleft()
                transfer = self._settle(engine, transfer)
                first, last = (
                    max(offset - transfer.offset, 0),
                    min(end - transfer.offset, transfer.view.nbytes),
                )
                if transfer.done < last:
                    raise self._shorter(transfer.at)
                yield buffer[first:last]
                buffers.free.append(buffer)
        finally:
            engine.close()
            ahead.clear()
            buffers.close()
            if direct is not None:
                os.close(direct)

    def _open_engine(self, pieces: int) -> Engine:
        if pieces == 1:
            return InlineEngine()
        return open_engine(self._engine, pieces, readers=min(pieces, 2), writers=1)

    def _start(self, engine: Engine, direct: int | None, view: memoryview, offset: int) -> Transfer:
        fd = self._fd if direct is None else direct
        transfer = Transfer(fd, view, offset, writing=False, direct=direct is not None)
        engine.start(transfer)
        return transfer

    def _settle(self, engine: Engine, transfer: Transfer) -> Transfer:
        engine.wait(transfer)
        if transfer.error is not None and transfer.error.errno == errno.EINVAL and transfer.direct:
            transfer = self._start(engine, None, transfer.view, transfer.offset)
            engine.wait(transfer)
        if transfer.error is not None:
            raise self._unreadable(transfer.error, transfer.at) from transfer.error
        if self._unbuffered and not transfer.direct:
            os.posix_fadvise(self._fd, transfer.offset, transfer.view.nbytes, os.POSIX_FADV_DONTNEED)
        return transfer

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise IntegrityError(
                f"bytes {offset} to {offset + length} are not all inside {self.path}, which has {self._size}"
            )

    def _shorter(self, offset: int) -> IntegrityError:
        return IntegrityError(f"{self.path} ends at byte {offset}, it had {self._size} when it was opened")

    def _unreadable(self, error: OSError, offset: int) -> MediumDamaged | Unavailable:
        message = f"cannot read {self.path} at byte {offset}: {error.strerror}"
        if error.errno in _DAMAGED:
            return MediumDamaged(message, hint="use another copy with --copy, and check the disk")
        return Unavailable(message)
