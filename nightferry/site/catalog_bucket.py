"""A catalog in a bucket: what the catalog asks of its place, on the bucket of the S3 destinations.

Catalog and destination do not know each other; they meet here. Requests go through the endpoint's shared
back-off, and fail as `CatalogError`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from nightferry.clock import SYSTEM_CLOCK, Clock
from nightferry.destination.s3.bucket import Bucket, proof
from nightferry.destination.s3.client import connect
from nightferry.destination.s3.destination import backoff_of
from nightferry.destination.s3.parts import Memory
from nightferry.destination.s3.probe import claims_once
from nightferry.destination.s3.reader import READ_AHEAD_BYTES, ObjectReader
from nightferry.errors import CatalogError, DestinationError
from nightferry.model.destinations import S3Settings
from nightferry.transfer.spool import HELD_BYTES, Content, spooled, whole
from nightferry.units import GIB

READERS = 8
"""Objects read at once."""
_MOST_BYTES = GIB
"""No file of a catalog is longer."""
_MARK = "nightferry-claim"
"""User metadata of what was claimed: a random word by which a claim whose answer was lost is known again."""
_ERASED_AT_ONCE = 1000
_TRIES = 8

_honest: set[tuple[str, str]] = set()
"""Endpoints and buckets that were seen to honour claims in this process."""
_lock = threading.Lock()


def open_catalog_bucket(settings: S3Settings, *, clock: Clock = SYSTEM_CLOCK) -> BucketStorage:
    """The place of a catalog that a site file names. Nothing is sent yet.

    Raises:
        ConfigError: see ``client.connect``.
    """
    connection = connect(settings, who="the catalog")
    return BucketStorage(
        Bucket("the catalog", connection, backoff_of(connection.endpoint, clock)), settings.url
    )


class BucketStorage:
    """See ``Storage``.

    Before its first claim a process makes sure that the store honours claims; one that does not is refused,
    since two writers would overwrite each other there.

    Args:
        bucket: Where the objects lie.
        url: What people call it.
    """

    def __init__(self, bucket: Bucket, url: str) -> None:
        self.bucket = bucket
        self._url = url

    def __str__(self) -> str:
        return self._url

    def require(self) -> None:
        with self._errors("open"):
            self.bucket.require()

    def require_claims(self) -> None:
        """Raises:
        CatalogError: the store does not honour ``If-None-Match``, or cannot be asked.
        """
        where = (self.bucket.endpoint, self.bucket.bucket)
        with _lock:
            if where in _honest:
                return
            with self._errors("claim a name in"):
                honest = claims_once(self.bucket)
            if not honest:
                raise CatalogError(
                    f"the endpoint {self.bucket.endpoint} does not honour If-None-Match: two writers of the catalog "
                    f"{self} would overwrite each other",
                    hint="put the catalog in a store with conditional writes, or in a folder that all nodes share",
                    subject=str(self),
                )
            _honest.add(where)

    def names(self, folder: str) -> list[str]:
        with self._errors("list"):
            return [path.rpartition("/")[2] for path, _ in self.bucket.objects(folder)]

    def read(self, path: str) -> bytes | None:
        with self._errors("read"):
            return self.bucket.get(path, _MOST_BYTES)

    def open(self, path: str) -> Content | None:
        with self._errors("read"):
            head = self.bucket.head(path)
            if head is None or head.size_bytes <= HELD_BYTES:
                return self.bucket.get(path, HELD_BYTES)
            reader = ObjectReader(self.bucket, path, head, memory=Memory(READ_AHEAD_BYTES))
            return spooled(reader.stream(0, head.size_bytes))

    def read_all(self, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
        paths = [f"{folder}/{name}" for name in names]
        if len(paths) < 2:
            found = [self.read(path) for path in paths]
        else:
            with ThreadPoolExecutor(min(READERS, len(paths)), thread_name_prefix="catalog") as readers:
                found = list(readers.map(self.read, paths))
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    def create(self, path: str, data: bytes) -> bool:
        """See ``Storage.create``.

        A try whose answer was lost may have made the object; the next one is refused then. The object's mark
        says whose it is. An object that is gone again when it is asked was somebody's who took it back, or
        ours that was gathered meanwhile: the name is free, and is claimed again.
        """
        self.require_claims()
        mark = secrets.token_hex(16)
        claim = self._parameters(path, data) | {"Metadata": {_MARK: mark}}
        with self._errors("write"):
            for _ in range(_TRIES):
                made = self.bucket.call("put_object", IfNoneMatch="*", unless=(409, 412), **claim)
                if made is not None:
                    return True
                there = self.bucket.call("head_object", Key=claim["Key"], unless=(404,))
                if there is not None:
                    return bool(there.get("Metadata", {}).get(_MARK) == mark)
        raise CatalogError(
            f"{path} in {self} is reported as existing, but is not there",
            hint="check that nothing but nightferry writes there",
            subject=path,
        )

    def replace(self, path: str, data: Content) -> None:
        with self._errors("write"):
            self.bucket.call("put_object", **self._parameters(path, whole(data)))

    def remove(self, folder: str, names: Sequence[str]) -> None:
        keys = [{"Key": self.bucket.key(f"{folder}/{name}")} for name in names]
        with self._errors("remove from"):
            for at in range(0, len(keys), _ERASED_AT_ONCE):
                some = {"Objects": keys[at : at + _ERASED_AT_ONCE], "Quiet": True}
                refused = (self.bucket.call("delete_objects", Delete=some) or {}).get("Errors", [])
                if refused:
                    raise DestinationError(
                        f"{refused[0].get('Key')} is not removed: {refused[0].get('Code')}",
                        hint="give the key the right s3:DeleteObject",
                    )

    def tidy(self, folder: str) -> None:
        """An object is there whole or not at all: nothing is ever left unfinished."""

    @contextmanager
    def alone(self, work: str) -> Iterator[bool]:
        """Nobody is kept out: that would cost more than doing the work twice."""
        yield True

    def add_log(self, run: str, image: str, text: str) -> None:
        """``logs/<run>/<image>.log``: an object cannot be added to."""
        self.replace(f"logs/{run}/{image}.log", text.encode())

    def drop_logs(self, runs: Collection[str]) -> None:
        with self._errors("list"):
            paths = [path for path, _ in self.bucket.objects("logs")]
        of_runs: dict[str, list[str]] = {}
        for path in paths:
            run, _, name = path.removeprefix("logs/").partition("/")
            if run in runs:
                of_runs.setdefault(f"logs/{run}", []).append(name)
        for folder, names in of_runs.items():
            self.remove(folder, names)

    def contents(self) -> list[str]:
        """What lies below the URL: names of folders and objects, at least one when there is any."""
        with self._errors("list"):
            # Some stores keep an object for the folder itself.
            return [name for path in self.bucket.contents() if (name := path.rstrip("/"))]

    def close(self) -> None:
        """Closes the connections."""
        self.bucket.close()

    def _parameters(self, path: str, data: bytes) -> dict[str, Any]:
        return {"Key": self.bucket.key(path), "Body": data, **proof(data, checksums=False)}

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Turns a destination's errors into the catalog's."""
        try:
            yield
        except DestinationError as error:
            raise CatalogError(
                f"cannot {doing} the catalog {self}: {error.message.removeprefix(f'{self.bucket.name}: ')}",
                hint=error.hint if error.hint != error.default_hint else "check the endpoint and the network",
                subject=str(self),
            ) from error
