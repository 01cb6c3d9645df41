"""Records of pax extended headers (IEEE Std 1003.1-2001, *pax*, "pax Extended Header")."""

from __future__ import annotations

from typing import Final

from nightferry.errors import IntegrityError

MAX_INT64: Final = (1 << 63) - 1


def pax_record(keyword: bytes, value: bytes) -> bytes:
    """One record of an extended header: its length in decimal, a space, keyword, ``=``, value, newline."""
    rest = len(keyword) + len(value) + 3
    length = rest + len(str(rest))
    if rest + len(str(length)) != length:
        length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, keyword, value)


def format_time(time_ns: int) -> bytes:
    """Nanoseconds → decimal seconds, exact."""
    seconds, fraction = divmod(abs(time_ns), 1_000_000_000)
    sign = b"-" if time_ns < 0 else b""
    if not fraction:
        return b"%s%d" % (sign, seconds)
    return b"%s%d.%s" % (sign, seconds, (b"%09d" % fraction).rstrip(b"0"))


def parse_time(text: bytes) -> int:
    """Decimal seconds → nanoseconds; digits after the ninth are dropped.

    Raises:
        IntegrityError: not a time.
    """
    sign = -1 if text[:1] == b"-" else 1
    seconds, _, fraction = text.removeprefix(b"-").partition(b".")
    if not seconds.isdigit() or len(seconds) > 20 or (fraction and not fraction.isdigit()):
        raise IntegrityError(f"not a time in a tar header: {text[:40]!r}")
    return sign * (int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0")))


def parse_decimal(text: bytes) -> int:
    """Plain digits → a number that fits 63 bits.

    Raises:
        IntegrityError: anything else.
    """
    if not text.isdigit() or len(text) > 20 or int(text) > MAX_INT64:
        raise IntegrityError(f"not a number in a tar header: {text[:40]!r}")
    return int(text)


def parse_records(body: bytes, offset: int) -> dict[bytes, bytes]:
    """An extended header → its records; of equal keywords the last counts.

    Raises:
        IntegrityError: a broken record; ``offset`` names the header.
    """
    records = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 21)
        length = parse_decimal(body[at:space]) if space > at else 0
        end = at + length
        equals = body.find(b"=", space, end)
        if not length or end > len(body) or equals < 0 or body[end - 1 : end] != b"\n":
            raise IntegrityError(f"tar header at byte {offset}: a broken extended header record")
        records[body[space + 1 : equals]] = body[equals + 1 : end - 1]
        at = end
    return records
