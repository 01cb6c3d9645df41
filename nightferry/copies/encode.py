"""Copies that are encoded on their way out, and read as the image all the same.

Encoding happens between the image and the destination, on the node that streams; what a destination keeps and
gives back are bytes like any others. Nothing else in ops knows which copies are encoded.
"""

from __future__ import annotations

import json
import logging
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from nightferry.destination.base import (
    DATA_NAMES,
    Encoding,
    Measure,
    Outgoing,
    Source,
    Span,
    encoding_of,
    large_side_file,
)
from nightferry.errors import ConfigError, DestinationError
from nightferry.image.frames import FRAME_BYTES, FramedReader, encode, encoded_bound, frames_again, shrinks
from nightferry.model.destinations import S3Settings
from nightferry.model.records import CopyRecord, ImageRecord
from nightferry.progress import Cancel
from nightferry.site.destinations import destination_of
from nightferry.site.opened import OpenSite
from nightferry.transfer.base import CHUNK_BYTES, ByteReader
from nightferry.transfer.throttle import Throttle

log = logging.getLogger(__name__)


class Sampled(Outgoing, Protocol):
    """An image on its way out that can be looked into first."""

    def samples(self) -> Iterator[bytes]:
        """A few pieces of it from all over, unproved: enough to guess whether it shrinks."""


class Passed:
    """Another outgoing under its own names; the base of what stands before a destination."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing

    @property
    def image(self) -> str:
        return self._outgoing.image

    @property
    def size_bytes(self) -> int:
        return self._outgoing.size_bytes

    @property
    def most_bytes(self) -> int:
        return self._outgoing.most_bytes

    @property
    def digest(self) -> str:
        return self._outgoing.digest

    @property
    def encoding(self) -> Encoding:
        return self._outgoing.encoding

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return self._outgoing.side_files

    def large_side_file(self, name: str) -> Source | None:
        return large_side_file(self._outgoing, name)


class EncodedOutgoing(Passed):
    """Another outgoing as zstd frames; implements ``destination.base.Outgoing``.

    Its ``meta.json`` says so; the other side files stay as they are: they speak of the image.

    Args:
        plain: The image's own bytes.
        level: zstd's, 1 to 19.
        proved: Whether each frame is decoded again and compared before it goes out.
    """

    def __init__(self, plain: Outgoing, level: int, *, proved: bool = False) -> None:
        super().__init__(plain)
        self._level = level
        self._proved = proved
        self._meta = encoded_meta(plain.side_files["meta.json"], self.encoding)

    @property
    def encoding(self) -> Encoding:
        return "zstd"

    @property
    def most_bytes(self) -> int:
        return encoded_bound(self.size_bytes)

    @property
    def side_files(self) -> Mapping[str, bytes]:
        return ChainMap(
            {"meta.json": self._meta}, cast("MutableMapping[str, bytes]", self._outgoing.side_files)
        )

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        """The ``.zst`` file in pieces of 1 MiB. It is encoded from its start whatever the first one asked for:
        the same image gives the same file."""
        skip = first_chunk * CHUNK_BYTES
        held = bytearray()
        for frame in encode(self._outgoing.chunks(), self._level, proved=self._proved):
            held += frame
            if skip:
                gone = min(skip, len(held))
                del held[:gone]
                skip -= gone
            whole = len(held) - len(held) % CHUNK_BYTES
            yield from _cut(bytes(memoryview(held)[:whole]))
            del held[:whole]
        yield from _cut(bytes(held))

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        """See ``Outgoing.spans``. A span is encoded again, from the frame it begins in, each time it is read: the
        same bytes and level always give the same frames."""
        frames = -(-self.size_bytes // FRAME_BYTES)
        table = bytearray()
        first = skip = done = checksum = 0
        for number, piece in enumerate(encode(self._outgoing.chunks(), self._level, proved=self._proved)):
            if number == frames:
                table += piece
            rest = memoryview(piece)
            while rest:
                step = rest[: span_bytes - done]
                checksum = measure(step, checksum)
                done += len(step)
                rest = rest[len(step) :]
                if done == span_bytes:
                    yield Span(done, checksum, partial(self._again, first, skip, done, table))
                    first, skip, done, checksum = number, len(piece) - len(rest), 0, 0
        if done:
            yield Span(done, checksum, partial(self._again, first, skip, done, table))

    def _again(self, frame: int, skip: int, left: int, table: bytearray) -> Iterator[memoryview]:
        """``left`` bytes of the ``.zst`` file, from ``skip`` bytes behind a frame's beginning on."""
        for piece in self._from_frame(frame, table):
            rest = memoryview(piece)[skip : skip + left]
            skip = 0
            left -= len(rest)
            yield from _cut(rest)
            if not left:
                return
            del piece, rest  # or it would still be there while the next one is made

    def _from_frame(self, frame: int, table: bytearray) -> Iterator[bytes | bytearray]:
        start = frame * FRAME_BYTES
        if start < self.size_bytes:
            yield from frames_again(self._outgoing.chunks(start // CHUNK_BYTES), self._level)
        yield table


def encoded_meta(meta: bytes, encoding: Encoding) -> bytes:
    """``meta.json`` of a copy with that encoding, from that of a plain one."""
    if not encoding:
        return meta
    said = json.loads(meta) | {"encoding": encoding, "data": DATA_NAMES[encoding]}
    return json.dumps(said, indent=1).encode() + b"\n"


class _Meta(ImageRecord):
    """``meta.json`` of an encoded copy."""

    encoding: str = ""
    data: str = ""


def image_of(meta: bytes) -> ImageRecord:
    """The image's record from a copy's ``meta.json``, whatever that says of the copy's encoding.

    Raises:
        ValidationError: it is none.
    """
    said = _Meta.model_validate_json(meta)
    return ImageRecord(**said.model_dump(include=set(ImageRecord.model_fields)))


def _cut(data: bytes | memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield memoryview(data)[start : start + CHUNK_BYTES]


class PacedOutgoing(Passed):
    """Another outgoing, no faster than a bandwidth timetable allows; implements ``Outgoing``."""

    def __init__(self, outgoing: Outgoing, throttle: Throttle, cancel: Cancel) -> None:
        super().__init__(outgoing)
        self._throttle = throttle
        self._cancel = cancel

    def chunks(self, first_chunk: int = 0) -> Iterator[memoryview]:
        for chunk in self._outgoing.chunks(first_chunk):
            self._throttle.take(len(chunk), self._cancel)
            yield chunk

    def spans(self, span_bytes: int, measure: Measure) -> Iterator[Span]:
        """See ``Outgoing.spans``. What counts is what leaves, not what is read to be measured."""
        for span in self._outgoing.spans(span_bytes, measure):
            yield replace(span, opened=partial(self._paced, span.opened))

    def _paced(self, site: Callable[[], Iterator[memoryview]]) -> Iterator[memoryview]:
        for piece in site():
            self._throttle.take(len(piece), self._cancel)
            yield piece


def encoded(site: OpenSite, outgoing: Sampled, destination: str) -> Outgoing:
    """The outgoing as the destination wants it: encoded when the site file says so and it is worth its time."""
    settings = site.file.destination(destination).encode
    if settings is None or settings.level is None:
        return outgoing
    if not shrinks(outgoing.samples()):
        log.info("image %s does not compress: its copy at %s stays plain", outgoing.image, destination)
        return outgoing
    return EncodedOutgoing(outgoing, settings.level, proved=decodes_at_once(site, destination))


def decodes_at_once(site: OpenSite, destination: str) -> bool:
    """Whether what is encoded for a destination is decoded and compared before it goes out: where it cannot be
    read back without a recall, its arrival must be proof enough."""
    settings = site.file.destination(destination)
    return isinstance(settings, S3Settings) and settings.archives


@contextmanager
def open_copy(site: OpenSite, copy: CopyRecord) -> Iterator[ByteReader]:
    """The image's bytes as a copy has them, decoded where it is encoded; not yet checked against its chunk
    table.

    Raises:
        IntegrityError: an encoded copy is none of the image.
        DestinationError: the site file does not name the destination any more.
        MediumDamaged, Unavailable: see ``Destination.open``.
    """
    if copy.destination not in {d.name for d in site.file.destinations}:
        raise DestinationError(
            f"the site file no longer names destination {copy.destination}, but {copy.image} has a copy there",
            hint="put the destination back into the site file to read it",
            subject=copy.image,
        )
    encoding = encoding_of(copy.location)
    try:
        destination = destination_of(site, copy.destination)
    except ConfigError as error:
        # To who reads, a destination that this node cannot open is one that is away: another copy may do.
        raise DestinationError(error.message, hint=error.hint, subject=error.subject) from error
    with destination.open(copy.location) as reader:
        match encoding:
            case "":
                yield reader
            case "zstd":
                yield FramedReader(reader, site.catalog.image(copy.image).size_bytes)
