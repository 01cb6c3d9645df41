"""Changes to valid samples: of bytes, JSON, XML, lines of text. All by one ``Random``, so that a seed repeats them."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from random import Random
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    511,
    512,
    4095,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
WORDS = (
    b"\0",
    b"\xff\xfe",
    b"../../x",
    b"/etc/passwd",
    b"%s%n",
    b"1e999",
    b"NaN",
    b"-1",
    b"99999999999999999999999",
    b"\xc0\xaf",
    b"\r\n",
    b'"',
    b"'" * 3,
    b"[" * 64,
    b"{",
    b"<!--",
    b"&amp;",
    b"=",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b"9" * 400,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.0,
    float("inf"),
    float("nan"),
    "",
    "0",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "x" * 5000,
    "2026-13-45T99:99:99Z",
    "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00:00+23:59",
    [],
    {},
    [[]],
    [{}],
    {"": None},
    ["x"] * 100,
    {"image": "x"},
)


def change_bytes(data: bytes, random: Random, others: tuple[bytes, ...] = ()) -> bytes:
    """One to eight changes: of bits, of numbers of 1 to 8 bytes, of ranges, with pieces of other samples."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(out) + 1)
        length = min(random.choice((1, 2, 4, 8, 16, 64, 512, 4096)), len(out) - at)
        match random.randrange(9):
            case 0 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
            case 1 if at < len(out):
                out[at] = random.randrange(256)
            case 2:
                size = random.choice((1, 2, 4, 8))
                order = random.choice("<>")
                number = random.choice(NUMBERS) & (1 << 8 * size) - 1
                out[at : at + size] = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size], number)
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length] * random.choice((1, 1, 2, 16))
            case 5:
                out[at : at + length] = bytes([random.choice((0, 255, 32))]) * length
            case 6:
                out[at : at + random.choice((0, length))] = random.choice(WORDS)
            case 7 if others:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                out[at : at + length] = other[start : start + length]
            case 8:
                del out[at:]
    return bytes(out)


def change_json(text: bytes, random: Random) -> bytes:
    """One to three values of a JSON document replaced, taken out, doubled or renamed; at times its bytes."""
    if random.random() < 0.15:
        return change_bytes(text, random)
    document = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        document = _changed(document, random)
    dumped = json.dumps(document)
    if random.random() < 0.1 and isinstance(document, dict) and document:
        key = random.choice(list(document))
        dumped = f"{{{json.dumps(key)}: {json.dumps(random.choice(VALUES))}, {dumped[1:]}"
    return dumped.encode("utf-8", "surrogatepass")


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        match random.randrange(8):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, random.choice(("", "x", key + "s", "../x")): value[key]}
            case _:
                return {**value, key: _changed(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.85:
        at = random.randrange(len(value))
        match random.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + [value[at]] * random.choice((2, 3, 50)) + value[at:]
            case _:
                return [*value[:at], _changed(value[at], random), *value[at + 1 :]]
    if isinstance(value, str) and value and random.random() < 0.3:
        at = random.randrange(len(value))
        return value[:at] + random.choice(("", "/", "\0", "..", "é", "\n", "0", "\u202e")) + value[at + 1 :]
    return random.choice(VALUES)


def change_lines(text: bytes, random: Random) -> bytes:
    """Lines cut, doubled, moved; the value behind a ``=`` or ``:`` replaced; at times the bytes."""
    if random.random() < 0.3:
        return change_bytes(text, random)
    lines = text.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        match random.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(random.randrange(len(lines) + 1), lines[at])
            case 2:
                other = random.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                mark = b"=" if b"=" in lines[at] else b":"
                head, found, _ = lines[at].partition(mark)
                if found:
                    value = json.dumps(random.choice(VALUES)).encode()
                    lines[at] = head + found + b" " + random.choice((value, value, random.choice(WORDS)))
        lines = lines or [b""]
    return b"\n".join(lines)


def change_xml(text: bytes, random: Random) -> bytes:
    """Elements cut, doubled, moved or renamed, attributes replaced or dropped; at times the bytes or the encoding."""
    chance = random.random()
    if chance < 0.2:
        return change_bytes(text, random)
    root = ET.fromstring(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        parent = random.choice(list(root.iter()))
        match random.randrange(7):
            case 0 if len(parent):
                parent.remove(random.choice(list(parent)))
            case 1 if len(parent):
                parent.append(random.choice(list(parent)))
            case 2:
                parent.tag = random.choice(("x", "group", "resource", "node", "primitive", "summary"))
            case 3 if parent.attrib:
                del parent.attrib[random.choice(list(parent.attrib))]
            case _ if parent.attrib:
                odd = ("", "x", "-1", "true", "INFINITY", "1e999", "9" * 5000, "é\u202e", "../../x")
                parent.attrib[random.choice(list(parent.attrib))] = random.choice(odd)
    body = ET.tostring(root)
    if chance < 0.3:
        encoding = random.choice(
            ("x", "utf-16", "utf-7", "idna", "punycode", "ucs4", "base64", "shift_jis", "mbcs")
        )
        return f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + body
    return body
