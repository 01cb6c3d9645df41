"""What all destinations that keep copies as objects share: names, ``copy.json``, locations, lanes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from nightferry.destination.base import DATA_NAMES, SIDE_FILES, Measure, Outgoing, Receipt, Span, encoding_of
from nightferry.errors import ConfigError, DestinationError, IntegrityError, MediumDamaged
from nightferry.progress import Cancel, Progress
from nightferry.transfer.base import CHUNK_BYTES
from nightferry.transfer.spool import Content
from nightferry.units import GIB, KIB, MIB

COPY = "copy.json"
META = "meta.json"
CRC = "crc64nvme"
CATALOGS_KEPT = 3
MOST_BYTES = {"index": 8 * GIB, "chunks": 512 * MIB, META: MIB, COPY: 64 * KIB}
"""What side files may have at most: a longer one is damage, and never read."""
MOST_CATALOG_BYTES = 4 * GIB
"""The same for a copy of the catalog."""
MOST_RECORDS_BYTES = 32 * MIB
"""The same for records beside the copies, which take about eight times as much in memory."""
_MOST_EPOCH = 1 << 31
_KEYS = {"image", "epoch", "size_bytes", "digest"}
_MORE_KEYS = {"encoding", CRC}
"""What is there for some copies: how the data is encoded, and the checksum that its store compared it with."""


class Lanes:
    """Numbers of parallel writers, leased one by one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count, 0, -1))
        self._turn = threading.Condition()

    @contextmanager
    def lease(self, cancel: Cancel) -> Iterator[str]:
        """The name of a free lane; waits while all are taken.

        Raises:
            Cancelled: a stop was asked for meanwhile.
        """
        with self._turn:
            while not self._free:
                cancel.check()
                self._turn.wait(0.2)
            number = self._free.pop()
        try:
            yield f"writer {number}"
        finally:
            with self._turn:
                self._free.append(number)
                self._turn.notify()


class ObjectLane:
    """See ``Lane``: one of the images that are written at once.

    Args:
        put: The destination's own put, which is told the lane's name.
        name: What the lane is called.
    """

    def __init__(self, put: Callable[[Outgoing, int, str, Progress, Cancel], Receipt], name: str) -> None:
        self._put = put
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def put(self, outgoing: Outgoing, epoch: int, *, progress: Progress, cancel: Cancel) -> Receipt:
        return self._put(outgoing, epoch, self._name, progress, cancel)


def watched(
    outgoing: Outgoing, said: dict[str, Any], progress: Progress, cancel: Cancel
) -> Iterator[memoryview]:
    """The data on its way, stopped between two chunks; ``said`` has its ``size_bytes`` when it has passed.

    Raises:
        IntegrityError: an image's plain bytes are not as many as were recorded.
        Cancelled: a stop was asked for.
    """
    done = 0
    for chunk in outgoing.chunks():
        cancel.check()
        yield chunk
        done += len(chunk)
        progress.advance(outgoing.image, done)
    cancel.check()
    _require_all(outgoing, done)
    said["size_bytes"] = done


def watched_spans(
    outgoing: Outgoing,
    said: dict[str, Any],
    progress: Progress,
    cancel: Cancel,
    span_bytes: int,
    measure: Measure,
) -> Iterator[Span]:
    """The same in spans, each when it has been measured.

    Raises:
        IntegrityError, Cancelled: see ``watched``.
    """
    done = 0
    for span in outgoing.spans(span_bytes, measure):
        cancel.check()
        yield span
        done += span.size_bytes
        progress.advance(outgoing.image, done)
    _require_all(outgoing, done)
    said["size_bytes"] = done


def plain_spans(
    chunks: Callable[[int], Iterator[memoryview]], span_bytes: int, measure: Measure
) -> Iterator[Span]:
    """``Outgoing.spans`` of what is not encoded, from its ``chunks``."""
    first = done = checksum = 0
    for number, chunk in enumerate(chunks(0), 1):
        checksum = measure(chunk, checksum)
        done += len(chunk)
        if done >= span_bytes:
            yield Span(done, checksum, partial(_range_of, chunks, first, done))
            first, done, checksum = number, 0, 0
    if done or not first:
        yield Span(done, checksum, partial(_range_of, chunks, first, done))


def _range_of(
    chunks: Callable[[int], Iterator[memoryview]], first: int, size_bytes: int
) -> Iterator[memoryview]:
    return islice(chunks(first), -(-size_bytes // CHUNK_BYTES))


def _require_all(outgoing: Outgoing, done: int) -> None:
    if not outgoing.encoding and done != outgoing.size_bytes:
        raise IntegrityError(
            f"{outgoing.image} has {done} bytes on staging, {outgoing.size_bytes} were recorded"
        )


def safe_name(name: str) -> str:
    """Names come from validated places; one that could leave its folder is refused all the same.

    Raises:
        ConfigError: it could.
    """
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise ConfigError(f"not a name for an object: {name!r}", subject=name)
    return name


def about(image: str, epoch: int, outgoing: Outgoing) -> dict[str, Any]:
    """What ``copy.json`` says, but for ``size_bytes``: see ``watched``."""
    said: dict[str, Any] = {"image": image, "epoch": epoch, "digest": outgoing.digest}
    return said | ({"encoding": outgoing.encoding} if outgoing.encoding else {})


def described_again(
    location: Mapping[str, Any], digest: str, side_files: Mapping[str, Content]
) -> dict[str, Content]:
    """The objects that describe a copy whose data is there, in the order in which they are written. What its store
    compared when the data arrived is not among them: nobody compares it now."""
    said = {"image": location["image"], "epoch": location["epoch"], "digest": digest} | location_of(location)
    first = {name: side_files[name] for name in SIDE_FILES if name != META}
    return {**first, COPY: json.dumps(said).encode(), META: side_files[META]}


def parse_about(image: str, text: bytes) -> dict[str, Any] | None:
    """``copy.json`` of an image; None when it is not one."""
    try:
        said = json.loads(text)
        sound = said["image"] == image and {*said} - _MORE_KEYS == _KEYS
        sound = sound and type(said["epoch"]) is int and 0 < said["epoch"] < _MOST_EPOCH
        sound = sound and type(said["size_bytes"]) is int and 0 <= said["size_bytes"] < 1 << 63
        sound = sound and isinstance(said["digest"], str)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return dict(said) if sound else None


def data_name(said: Mapping[str, Any]) -> str:
    """What the data of the copy with this ``copy.json`` or location is called.

    Raises:
        NotInThisRelease: it is encoded in a way this release does not know.
    """
    return DATA_NAMES[encoding_of(said)]


def location_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """A copy's location from its ``copy.json``."""
    keys = ("image", "epoch", "size_bytes", "encoding")
    return {key: said[key] for key in keys if key in said}


def receipt_of(said: Mapping[str, Any], lane: str = "") -> Receipt:
    return Receipt(location_of(said), said["size_bytes"], lane=lane)


def made_before(
    name: str, said: Mapping[str, Any], outgoing: Outgoing, epoch: int, lane: str
) -> Receipt | None:
    """The receipt of a whole copy that is there, when it is the very one to be put.

    None asks for a new one: a new epoch comes because what is there was found damaged, and only looks whole.

    Raises:
        DestinationError: it is another image of the same name.
    """
    if said["digest"] != outgoing.digest:
        raise DestinationError(
            f"{name} holds another {outgoing.image}: digest {said['digest']}, not {outgoing.digest}",
            subject=outgoing.image,
            hint="two images have the same name; compare both with `nightferry copies`",
        )
    return receipt_of(said, lane) if said["epoch"] == epoch else None


def data_path(location: Mapping[str, Any]) -> str:
    """Where the data of a copy lies.

    Raises:
        ConfigError: it is not a location.
        NotInThisRelease: see ``data_name``.
    """
    return f"images/{place_of(location)[0]}/{data_name(location)}"


def side_path(location: Mapping[str, Any], name: str) -> str:
    """Where one of a copy's side files lies.

    Raises:
        ConfigError: it is not a location.
        DestinationError: there is no such side file.
    """
    if name not in SIDE_FILES:
        raise DestinationError(f"{name!r} is not a side file", subject=name)
    return f"images/{place_of(location)[0]}/{name}"


def require_length(name: str, path: str, size_bytes: int | None, most_bytes: int) -> int:
    """How long an object is.

    Raises:
        MediumDamaged: it is not there, or so long that it is none of ours.
    """
    if size_bytes is None:
        raise MediumDamaged(f"{name}: {path} is not there", subject=name)
    if size_bytes > most_bytes:
        raise MediumDamaged(f"{name}: {path} has {size_bytes} bytes, and may have {most_bytes}", subject=name)
    return size_bytes


def misfit(name: str, path: str, size_bytes: int | None, location: Mapping[str, Any]) -> MediumDamaged:
    """An object that is not as long as its copy's location says; None: it is not there."""
    image, recorded = place_of(location)
    found = "is not there" if size_bytes is None else f"has {size_bytes} bytes, {recorded} were recorded"
    return MediumDamaged(f"{name}: {path} {found}", subject=image)


def place_of(location: Mapping[str, Any]) -> tuple[str, int]:
    """Image and size from a copy's location, as the catalog has it.

    Raises:
        MediumDamaged: it is not one: nothing can be found by it.
    """
    image, size_bytes = location.get("image"), location.get("size_bytes")
    try:
        if isinstance(image, str) and isinstance(size_bytes, int):
            return safe_name(image), size_bytes
    except ConfigError:
        pass
    raise MediumDamaged(f"the record of a copy names no place: {dict(location)!r}")
