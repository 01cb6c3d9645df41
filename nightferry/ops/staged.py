"""A staged image on its way out of the disk, each chunk proved as it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nightferry.destination.base import Encoding
from nightferry.errors import IntegrityError, MediumDamaged
from nightferry.image.chunks import checked
from nightferry.model.records import ImageRecord
from nightferry.ops.room import side_path
from nightferry.ops.stage import read_index
from nightferry.progress import Cancel
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import image_digest
from nightferry.transfer.reading import FileReader

_SAMPLES = 16
_SAMPLE_BYTES = 256 << 10


class StagedDamage(IntegrityError):
    """A staged image is not what was recorded; no copy of it was made."""

    default_hint = "run the backup again: it stages the store anew"


class StagedOutgoing:
    """A staged image on its way out; implements ``destination.base.Outgoing`` and ``ops.encode.Sampled``.

    Memory: the index and the chunk table (8 bytes a MiB) and the reader's two buffers.

    Raises:
        StagedDamage: the image's side files and its record disagree.
    """

    encoding: Encoding = ""

    def __init__(
        self,
        record: ImageRecord,
        path: Path,
        *,
        chunks: bytes | None = None,
        cancel: Cancel,
    ) -> None:
        self.record = record
        self.done_bytes = 0
        """Bytes handed out so far."""
        self._path = path
        self._cancel = cancel
        try:
            self._chunks = side_path(path, "chunks").read_bytes() if chunks is None else chunks
            index = read_index(path, self._chunks)
        except (FileNotFoundError, MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error
        if image_digest(self._chunks, index) != record.digest:
            raise StagedDamage(f"staged image {record.image} is not what was recorded", subject=record.image)
        meta = record.model_dump_json(indent=1).encode() + b"\n"
        self._side_files = {"index": index, "chunks": self._chunks, "meta.json": meta}

    @property
    def image(self) -> str:
        return self.record.image

    @property
    def size_bytes(self) -> int:
        return self.record.size_bytes

    @property
    def digest(self) -> str:
        return self.record.digest

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return self._side_files

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        self.done_bytes = first_chunk * CHUNK_BYTES
        try:
            with FileReader(self._path) as reader:
                if reader.size_bytes != self.size_bytes:
                    raise IntegrityError(f"{reader.size_bytes} bytes instead of {self.size_bytes}")
                rest = self.size_bytes - self.done_bytes
                pieces = reader.stream(self.done_bytes, rest)
                for data in checked(pieces, self._chunks, first_chunk, rest):
                    self._cancel.check()
                    self.done_bytes += len(data)
                    yield memoryview(data)
        except (MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error

    def samples(self) -> Iterator[bytes]:
        """Pieces from evenly spread places, 4 MiB at most; all of a smaller image."""
        try:
            with FileReader(self._path) as reader:
                step = max(reader.size_bytes // _SAMPLES, _SAMPLE_BYTES)
                for offset in range(0, reader.size_bytes, step):
                    self._cancel.check()
                    yield reader.read(offset, min(_SAMPLE_BYTES, reader.size_bytes - offset))
        except (MediumDamaged, IntegrityError) as error:
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> StagedDamage:
        return StagedDamage(f"image {self.image} on staging is damaged: {error}", subject=self.image)
