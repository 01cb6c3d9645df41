"""A staged image on its way out of the disk, each chunk proved as it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from blake3 import blake3

from nightferry.destination.base import SIDE_FILES, Encoding, Measure, Source, Span
from nightferry.destination.copies import plain_spans
from nightferry.errors import IntegrityError, MediumDamaged
from nightferry.image.chunks import checked
from nightferry.image.reader import ImageReader
from nightferry.model.records import ImageRecord
from nightferry.progress import Cancel
from nightferry.staging.staged_files import StagedFiles
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import table_bytes
from nightferry.transfer.reading import FileReader
from nightferry.transfer.spool import HELD_BYTES

_SAMPLES = 16
_SAMPLE_BYTES = 256 << 10


class StagedDamage(IntegrityError):
    """A staged image is not what was recorded; no copy of it was made."""

    default_hint = "run the backup again: it stages the store again"


def meta_of(record: ImageRecord, order: int) -> bytes:
    """``meta.json`` beside a plain copy; ``order`` is the image's place in the catalog's log."""
    beside = record.model_copy(update={"order": order or record.order})
    return beside.model_dump_json(indent=1).encode() + b"\n"


class StagedOutgoing:
    """A staged image on its way out; implements ``destination.base.Outgoing`` and ``copies.encode.Sampled``.

    Memory: the chunk table (8 bytes a MiB), the index unless it is larger than ``HELD_BYTES``, and the buffers of
    each reading.

    Raises:
        StagedDamage: the image's side files and its record disagree.
    """

    encoding: Encoding = ""

    def __init__(
        self,
        record: ImageRecord,
        place: StagedFiles | Path,
        *,
        chunks: bytes | None = None,
        order: int = 0,
        cancel: Cancel,
    ) -> None:
        self.record = record
        self.done_bytes = 0
        """How far it has been handed out."""
        self._place = place
        self._cancel = cancel
        try:
            self._chunks = self._own_chunks() if chunks is None else chunks
            self._index = _StagedIndex(self)
            digest = self._index.image_digest()
        except (OSError, MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error
        if digest != record.digest:
            raise StagedDamage(f"staged image {record.image} differs from its record", subject=record.image)
        meta = meta_of(record, order)
        self._side_files = _SideFiles({"chunks": self._chunks, "meta.json": meta}, self._index)

    @property
    def side_table(self) -> bytes:
        """The chunk table."""
        return self._chunks

    @property
    def image(self) -> str:
        return self.record.image

    @property
    def size_bytes(self) -> int:
        return self.record.size_bytes

    @property
    def most_bytes(self) -> int:
        return self.record.size_bytes

    @property
    def digest(self) -> str:
        return self.record.digest

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return self._side_files

    def large_side_file(self, name: str) -> Source | None:
        return self._index if name == "index" and self._index.size_bytes > HELD_BYTES else None

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        done = first_chunk * CHUNK_BYTES
        try:
            with self._reader() as reader:
                if reader.size_bytes != self.size_bytes:
                    raise IntegrityError(f"{reader.size_bytes} bytes instead of {self.size_bytes}")
                rest = self.size_bytes - done
                pieces = reader.stream(done, rest)
                for data in checked(pieces, self._chunks, first_chunk, rest):
                    self._cancel.check()
                    done += len(data)
                    self.done_bytes = max(self.done_bytes, done)  # parts of it may be read again meanwhile
                    yield memoryview(data)
        except (MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return plain_spans(self.chunks, span_bytes, measure)

    def samples(self) -> Iterator[bytes]:
        """Pieces from evenly spread places, 4 MiB at most; all of a smaller image."""
        try:
            with self._reader() as reader:
                step = max(reader.size_bytes // _SAMPLES, _SAMPLE_BYTES)
                for offset in range(0, reader.size_bytes, step):
                    self._cancel.check()
                    yield reader.read(offset, min(_SAMPLE_BYTES, reader.size_bytes - offset))
        except (MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error

    def checked_reader(self) -> AbstractContextManager[ImageReader]:
        """The image, every byte of it proved by the chunk table."""

        @contextmanager
        def opened() -> Iterator[ImageReader]:
            try:
                with self._reader() as reader:
                    yield ImageReader(reader, self._chunks)
            except (MediumDamaged, IntegrityError) as error:
                raise self._damage(error) from error

        return opened()

    def _reader(self) -> FileReader:
        return self._place.reader() if isinstance(self._place, StagedFiles) else FileReader(self._place)

    def _own_chunks(self) -> bytes:
        if not isinstance(self._place, StagedFiles):
            raise IntegrityError(f"there is no chunk table beside {self._place}")
        return self._place.read(".chunks", table_bytes(self.record.size_bytes))

    def _damage(self, error: Exception) -> StagedDamage:
        return StagedDamage(f"image {self.image} on staging is damaged: {error}", subject=self.image)


class _StagedIndex:
    """An image's index as it lies in the image itself; implements ``destination.base.Source``."""

    def __init__(self, staged: StagedOutgoing) -> None:
        self._staged = staged
        with staged.checked_reader() as image:
            self._offset, self.size_bytes = image.end.index_offset, image.end.index_bytes

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        begun = first_chunk * CHUNK_BYTES
        held = bytearray()
        with self._staged.checked_reader() as image:
            for piece in image.reader.stream(self._offset + begun, self.size_bytes - begun):
                held += piece
                while len(held) >= CHUNK_BYTES:
                    yield memoryview(bytes(memoryview(held)[:CHUNK_BYTES]))
                    del held[:CHUNK_BYTES]
        if held:
            yield memoryview(bytes(held))

    def image_digest(self) -> str:
        """The image's, by this index; see ``transfer.digest.image_digest``."""
        hasher = blake3(self._staged.side_table)
        for piece in self.chunks():
            hasher.update(piece)
        return hasher.hexdigest()


class _SideFiles(Mapping[str, bytes]):
    """Side files by name; the index is read when it is asked for, and kept when it is small."""

    def __init__(self, held: dict[str, bytes], index: _StagedIndex) -> None:
        self._held = held
        self._index = index

    def __getitem__(self, name: str) -> bytes:
        if name != "index" or name in self._held:
            return self._held[name]
        data = b"".join(self._index.chunks())
        if len(data) <= HELD_BYTES:
            self._held[name] = data
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(SIDE_FILES)

    def __len__(self) -> int:
        return len(SIDE_FILES)
