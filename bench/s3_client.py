"""nightferry's side of ``bench.s3``: one image up, or down, as a process of its own.

python -m bench.s3_client start|up|down ENDPOINT BUCKET FILE
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nightferry.destination.base import Encoding, Measure, Span
from nightferry.destination.copies import plain_spans
from nightferry.destination.s3.destination import S3Destination, open_s3
from nightferry.model.destinations import S3Settings
from nightferry.progress import QUIET, Cancel
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import check_chunk
from nightferry.transfer.direct import DirectWriter, RingSettings
from nightferry.transfer.reading import FileReader


class Staged:
    """A file as an image on its way out, every chunk proved first."""

    image, digest = "bench", "bench"
    encoding: Encoding = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = self.most_bytes = path.stat().st_size
        self.table = Path(f"{path}.chunks").read_bytes()

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return {"index": b"i", "chunks": self.table, "meta.json": b"{}"}

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return plain_spans(self.chunks, span_bytes, measure)

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        number = first_chunk
        with FileReader(self.path) as reader:
            for piece in reader.stream(number * CHUNK_BYTES, self.size_bytes - number * CHUNK_BYTES):
                for at in range(0, len(piece), CHUNK_BYTES):
                    check_chunk(self.table, number, piece[at : at + CHUNK_BYTES])
                    yield piece[at : at + CHUNK_BYTES]
                    number += 1


def destination(endpoint: str, bucket: str) -> S3Destination:
    return open_s3(
        S3Settings(
            name="bench",
            kind="s3",
            url=f"s3://{bucket}/nightferry",
            endpoint=endpoint,
            access_key="env:AWS_ACCESS_KEY_ID",
            secret_key="env:AWS_SECRET_ACCESS_KEY",  # noqa: S106 - a reference
        )
    )


def start(endpoint: str, bucket: str, path: Path) -> None:
    """What every use of a bucket costs before the first byte."""
    if destination(endpoint, bucket).find(path.name, 1) is not None:
        raise SystemExit(f"the bucket has an image {path.name} already")


def up(endpoint: str, bucket: str, path: Path) -> None:
    to = destination(endpoint, bucket)
    with to.lane(progress=QUIET, cancel=Cancel()) as lane:
        if not lane.put(Staged(path), 1, progress=QUIET, cancel=Cancel()).verified:
            raise SystemExit("the store did not prove the copy")
    to.close()


def down(endpoint: str, bucket: str, path: Path) -> None:
    table = Path(f"{path}.chunks").read_bytes()
    size, number = path.stat().st_size, 0
    writer = DirectWriter(f"{path}.back", settings=RingSettings(buffers=8), expected_bytes=size)
    with destination(endpoint, bucket).open({"image": "bench", "epoch": 1, "size_bytes": size}) as reader:
        for piece in reader.stream(0, size):
            for at in range(0, len(piece), CHUNK_BYTES):
                check_chunk(table, number, piece[at : at + CHUNK_BYTES])
                number += 1
            writer.write(piece)
    writer.finish()


if __name__ == "__main__":
    {"start": start, "up": up, "down": down}[sys.argv[1]](sys.argv[2], sys.argv[3], Path(sys.argv[4]))
