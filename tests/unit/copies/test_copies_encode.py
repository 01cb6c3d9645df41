"""What stands between an image and a destination: pieces of one length, side files that say so, a pace."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import zstandard

from nightferry.copies.encode import EncodedOutgoing, PacedOutgoing
from nightferry.destination.base import Encoding, Measure, Span, encoding_of
from nightferry.destination.copies import plain_spans
from nightferry.errors import Cancelled, IntegrityError, NotInThisRelease
from nightferry.image.frames import encode, encoded_bound
from nightferry.progress import Cancel
from nightferry.transfer.throttle import Throttle

MIB = 1 << 20


class Image:
    """Half text, half noise."""

    image, digest = "i1", "d1"
    encoding: Encoding = ""

    def __init__(self, size: int, broken_at: int = -1) -> None:
        self.data = random.Random(size).randbytes(size // 2) + b"night ferry " * (size // 24 + 1)
        self.size_bytes = self.most_bytes = size
        self.broken_at = broken_at
        self.side_files = {"index": b"index", "chunks": b"chunks", "meta.json": b'{"image": "i1"}'}

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for number, at in enumerate(range(first_chunk * MIB, self.size_bytes, MIB), first_chunk):
            if number == self.broken_at:
                raise IntegrityError(f"chunk {number} is damaged")
            yield memoryview(self.data)[at : min(at + MIB, self.size_bytes)]

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        return plain_spans(self.chunks, span_bytes, measure)


class HandClock:
    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 10, tzinfo=UTC) + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


@pytest.mark.parametrize("size", [1, 3 * MIB, 9 * MIB + 77])
def test_what_goes_out_is_the_zst_file_in_pieces_of_one_mib(size: int) -> None:
    image = Image(size)
    pieces = [bytes(piece) for piece in EncodedOutgoing(image, 1).chunks()]
    assert {len(piece) for piece in pieces[:-1]} <= {MIB}
    assert 0 < len(pieces[-1]) <= MIB
    stream = zstandard.ZstdDecompressor().stream_reader(b"".join(pieces), read_across_frames=True)
    assert stream.read() == image.data[:size]


def test_it_can_be_asked_for_again_from_any_piece() -> None:
    outgoing = EncodedOutgoing(Image(9 * MIB + 77), 1)
    whole = [bytes(piece) for piece in outgoing.chunks()]
    assert len(whole) == 5
    for first in range(len(whole) + 1):
        assert [bytes(piece) for piece in outgoing.chunks(first)] == whole[first:]


def test_the_image_stays_what_it_is_and_only_meta_says_how_it_lies_there() -> None:
    image = Image(MIB)
    outgoing = EncodedOutgoing(image, 1)
    assert (outgoing.image, outgoing.size_bytes, outgoing.digest) == ("i1", MIB, "d1")
    assert outgoing.encoding == "zstd"
    assert json.loads(outgoing.side_files["meta.json"]) == {
        "image": "i1",
        "encoding": "zstd",
        "data": "data.zst",
    }
    assert {**outgoing.side_files, "meta.json": b""} == {**image.side_files, "meta.json": b""}


def test_damage_of_the_image_comes_through() -> None:
    with pytest.raises(IntegrityError, match="chunk 6"):
        list(EncodedOutgoing(Image(9 * MIB, broken_at=6), 1).chunks())


def test_the_timetable_counts_the_bytes_that_travel() -> None:
    clock = HandClock()
    outgoing = EncodedOutgoing(Image(8 * MIB), 1)
    travelled = sum(len(piece) for piece in outgoing.chunks())
    assert travelled < 5 * MIB
    paced = PacedOutgoing(outgoing, Throttle(MIB, clock=clock), Cancel())
    assert sum(len(piece) for piece in paced.chunks()) == travelled
    assert clock.passed == pytest.approx(travelled / MIB - 0.25, abs=0.3)
    assert (paced.encoding, paced.size_bytes) == ("zstd", 8 * MIB)


def test_a_stop_is_seen_while_the_timetable_holds_it_back() -> None:
    cancel = Cancel()
    cancel.set("enough")
    with pytest.raises(Cancelled):
        next(PacedOutgoing(Image(MIB), Throttle(1.0, clock=HandClock()), cancel).chunks())


def test_a_copy_of_a_later_release_is_named() -> None:
    assert encoding_of({"image": "i1"}) == ""
    assert encoding_of({"encoding": "zstd"}) == "zstd"
    with pytest.raises(NotInThisRelease, match="'zstd\\+age'"):
        encoding_of({"encoding": "zstd+age"})


def summed(data: bytes | memoryview, before: int) -> int:
    return zlib.crc32(data, before)


@pytest.mark.parametrize("is_encoded", [False, True])
@pytest.mark.parametrize("span_mib", [1, 2, 3, 5, 64])
def test_spans_are_the_data_and_each_can_be_read_alone(span_mib: int, is_encoded: bool) -> None:
    image = Image(13 * MIB + 77)
    outgoing = EncodedOutgoing(image, 1) if is_encoded else image
    whole = b"".join(bytes(piece) for piece in outgoing.chunks())
    spans = list(outgoing.spans(span_mib * MIB, summed))
    assert [span.size_bytes for span in spans[:-1]] == [span_mib * MIB] * (len(spans) - 1)
    assert sum(span.size_bytes for span in spans) == len(whole) <= outgoing.most_bytes
    for _ in range(2):  # again and again, in any order
        for number, span in reversed(list(enumerate(spans))):
            at = number * span_mib * MIB
            data = b"".join(bytes(piece) for piece in span.opened())
            assert data == whole[at : at + span.size_bytes]
            assert zlib.crc32(data) == span.checksum


def test_what_is_measured_is_not_paced_and_what_leaves_is() -> None:
    clock = HandClock()
    paced = PacedOutgoing(Image(8 * MIB), Throttle(MIB, clock=clock), Cancel())
    spans = list(paced.spans(4 * MIB, summed))
    assert clock.passed == 0
    for span in spans:
        assert sum(len(piece) for piece in span.opened()) == 4 * MIB
    assert clock.passed >= 6


@pytest.mark.parametrize("size", [0, 1, 4 * MIB, 4 * MIB + 1, 9 * MIB])
def test_no_noise_becomes_longer_than_its_bound(size: int) -> None:
    noise = random.Random(size).randbytes(size)
    assert sum(len(frame) for frame in encode([noise], 1)) <= encoded_bound(size)
