"""Parquet files put together by hand, as no writer would write them: pages and footers that lie.

Source: https://parquet.apache.org/docs/file-format; Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zstandard

TRUE, FALSE, I32, I64, BINARY, LIST, STRUCT = 1, 2, 5, 6, 8, 9, 12
ROW_GROUPS, NUM_ROWS = 4, 3
"""Fields of FileMetaData."""
GROUP_COLUMNS, GROUP_BYTES, GROUP_ROWS = 1, 2, 3
"""Fields of RowGroup."""

Struct = dict[int, tuple[int, Any]]


def decode(data: bytes) -> Struct:
    """A struct as field → (type, value)."""
    return _struct(data, 0)[0]


def encode(struct: Struct) -> bytes:
    out, last = bytearray(), 0
    for number in sorted(struct):
        kind, value = struct[number]
        delta = number - last
        out += bytes([delta << 4 | kind]) if delta < 16 else bytes([kind]) + _varint(number << 1)
        out += _value_bytes(kind, value)
        last = number
    return bytes(out) + b"\0"


def footer_of(data: bytes) -> Struct:
    length = int.from_bytes(data[-8:-4], "little")
    return decode(data[-8 - length : -8])


def with_footer(data: bytes, footer: Struct) -> bytes:
    """The same pages with another footer."""
    length = int.from_bytes(data[-8:-4], "little")
    text = encode(footer)
    return data[: -8 - length] + text + len(text).to_bytes(4, "little") + b"PAR1"


def with_column(data: bytes, name: bytes, pages: bytes, *, dictionary_bytes: int = 0, values: int) -> bytes:
    """The file with other pages for a column of its first row group.

    Args:
        data: A file whose columns lie flat.
        name: The column's.
        pages: What takes the place of its pages.
        dictionary_bytes: How long the first of them is, when it is the dictionary.
        values: How many values the footer says there are.
    """
    footer = footer_of(data)
    length = int.from_bytes(data[-8:-4], "little")
    begin = len(data) - 8 - length
    for chunk in footer[ROW_GROUPS][1][1][0][GROUP_COLUMNS][1][1]:
        meta = chunk[3][1]
        if meta[3][1][1] == [name]:
            meta[5] = (I64, values)
            meta[6] = meta[7] = (I64, len(pages))
            meta[9] = (I64, begin + dictionary_bytes)
            meta.pop(11, None)
            if dictionary_bytes:
                meta[11] = (I64, begin)
            meta.pop(12, None)
    return with_footer(data[:begin] + pages + data[begin:], footer)


def data_page(payload: bytes, plain_bytes: int, values: int, encoding: int) -> bytes:
    """A page of version 1: ``encoding`` 0 is PLAIN, 8 RLE_DICTIONARY."""
    header: Struct = {
        1: (I32, 0),
        2: (I32, plain_bytes),
        3: (I32, len(payload)),
        5: (STRUCT, {1: (I32, values), 2: (I32, encoding), 3: (I32, 3), 4: (I32, 3)}),
    }
    return encode(header) + payload


def dictionary_page(payload: bytes, plain_bytes: int, values: int) -> bytes:
    header: Struct = {
        1: (I32, 2),
        2: (I32, plain_bytes),
        3: (I32, len(payload)),
        7: (STRUCT, {1: (I32, values), 2: (I32, 0)}),
    }
    return encode(header) + payload


def packed(data: bytes) -> bytes:
    """zstd, as the pages of an index are."""
    return zstandard.ZstdCompressor().compress(data)


def packed_zeros(begin: bytes, count: int) -> bytes:
    """``begin`` and so many zeros, packed without ever being in memory."""
    packer = zstandard.ZstdCompressor().compressobj()
    out = [packer.compress(begin)]
    piece = bytes(1 << 20)
    out += [packer.compress(piece) for _ in range(count >> 20)]
    return b"".join(out) + packer.flush()


def rle_run(count: int, width: int = 1) -> bytes:
    """A run of ``count`` times index 0 as RLE_DICTIONARY has it, in front the width in bits."""
    return bytes([width]) + _varint(count << 1) + b"\0"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _struct(data: bytes, at: int) -> tuple[Struct, int]:
    found: Struct = {}
    last = 0
    while data[at]:
        delta, kind = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            last += delta
        else:
            zigzag, at = _read_varint(data, at)
            last = zigzag >> 1
        value: Any = kind == TRUE
        if kind > FALSE:
            value, at = _value(data, at, kind)
        found[last] = (kind, value)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return _struct(data, at)
    if kind == BINARY:
        length, at = _read_varint(data, at)
        return data[at : at + length], at + length
    if kind == LIST:
        count, inner = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _read_varint(data, at)
        values = []
        for _ in range(count):
            value, at = (data[at], at + 1) if inner < 3 else _value(data, at, inner)
            values.append(value)
        return (inner, values), at
    if kind == 3:
        return data[at], at + 1
    number, at = _read_varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _value_bytes(kind: int, value: Any) -> bytes:
    writers: dict[int, Callable[[Any], bytes]] = {
        TRUE: lambda _: b"",
        FALSE: lambda _: b"",
        3: lambda byte: bytes([byte]),
        BINARY: lambda text: _varint(len(text)) + text,
        LIST: _list_bytes,
        STRUCT: encode,
    }
    zigzag: Callable[[int], bytes] = lambda number: _varint((number << 1) ^ (number >> 63))  # noqa: E731
    return writers.get(kind, zigzag)(value)


def _list_bytes(values: tuple[int, list[Any]]) -> bytes:
    kind, each = values
    head = bytes([len(each) << 4 | kind]) if len(each) < 15 else bytes([15 << 4 | kind]) + _varint(len(each))
    if kind < 3:
        return head + bytes(each)
    if all(one is each[0] for one in each):
        return head + b"".join(_value_bytes(kind, one) for one in each[:1]) * len(each)
    return head + b"".join(_value_bytes(kind, value) for value in each)
