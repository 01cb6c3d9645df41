"""Whatever is written, copied, patched and rewound, the file and its chunk table are those of a bytearray."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.digest import ChunkTable
from nightferry.transfer.direct import DirectWriter, RingSettings
from nightferry.transfer.engines import why_not
from nightferry.transfer.reading import FileReader
from tests.support.outgoing import table_of

SIZE = CHUNK_BYTES
SOURCE = os.urandom(3 * SIZE + 4097)
ENGINES = ["threads"] if why_not() else ["threads", "io_uring"]

lengths = st.one_of(
    st.integers(0, 3 * SIZE),
    st.sampled_from([0, 1, 511, 512, 4095, 4096, 4097, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE]),
)
offsets = st.one_of(st.integers(0, 3 * SIZE), st.sampled_from([0, 512, 4096, SIZE]))
steps = st.one_of(
    st.tuples(st.just("write"), lengths, st.just(0)),
    st.tuples(st.just("copy"), lengths, offsets),
    st.tuples(st.just("patch"), st.integers(0, 5000), st.floats(0, 1)),
    st.tuples(st.just("rewind"), st.just(0), st.floats(0, 1)),
    st.tuples(st.just("align"), st.just(0), st.just(0)),
)


@settings(max_examples=60)
@given(
    script=st.lists(steps, max_size=6),
    engine=st.sampled_from(ENGINES),
    expected=st.sampled_from([0, 5 * SIZE]),
    unbuffered=st.booleans(),
)
def test_writer_is_a_bytearray(
    script: list[tuple[str, int, float]], engine: str, expected: int, unbuffered: bool
) -> None:
    model = bytearray()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_bytes(SOURCE)
        fd = os.open(source, os.O_RDONLY)
        ring = RingSettings(SIZE, 2, unbuffered=unbuffered, engine=engine)  # type: ignore[arg-type]  # of ENGINES
        writer = DirectWriter(Path(folder) / "out", settings=ring, expected_bytes=expected)
        try:
            for action, length, place in script:
                if action == "write":
                    writer.write(SOURCE[:length])
                    model += SOURCE[:length]
                elif action == "copy":
                    start, hasher = int(place), blake3.blake3()
                    found = SOURCE[start : start + length]
                    padded = found + bytes(length - len(found))
                    assert writer.copy_from(fd, start, length, hasher) == len(found)
                    assert hasher.digest() == blake3.blake3(padded).digest()
                    model += padded
                elif action == "patch":
                    start = int(place * len(model))
                    data = os.urandom(min(length, len(model) - start))
                    writer.patch(start, data)
                    model[start : start + len(data)] = data
                elif action == "rewind":
                    start = int(place * len(model))
                    writer.rewind(start)
                    del model[start:]
                else:
                    padding = bytes(-len(model) % 4096)
                    writer.write(padding)
                    model += padding
                assert writer.position == len(model)
            assert writer.finish() == table_of(bytes(model))
            assert (Path(folder) / "out").read_bytes() == model
        finally:
            writer.abort()
            os.close(fd)


@settings(max_examples=40)
@given(start=st.floats(0, 1), share=st.floats(0, 1), unbuffered=st.booleans())
def test_reader_is_a_slice(start: float, share: float, unbuffered: bool) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(SOURCE)
        file.flush()
        offset = int(start * len(SOURCE))
        length = int(share * (len(SOURCE) - offset))
        with FileReader(file.name, unbuffered=unbuffered, buffer_bytes=1 << 18) as reader:
            streamed = b"".join(bytes(piece) for piece in reader.stream(offset, length))
            assert streamed == SOURCE[offset : offset + length] == reader.read(offset, length)


@given(st.lists(st.integers(0, SIZE + 10), max_size=5))
def test_chunk_table_does_not_depend_on_the_pieces(pieces: list[int]) -> None:
    chunks, data = ChunkTable(), b""
    for length in pieces:
        chunks.update(SOURCE[:length])
        data += SOURCE[:length]
    assert chunks.table() == table_of(data)
    assert chunks.size_bytes == len(data)
