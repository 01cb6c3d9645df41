"""A catalog in memory: for one that is put together before any of it may be seen, and thrown away after."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from nightferry.catalog.storage import folder_of
from nightferry.transfer.spool import Content, whole


class MemoryStorage:
    """See ``Storage``; one process, any number of threads."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "memory"

    def require(self) -> None:
        """It is always there."""

    def names(self, folder: str) -> list[str]:
        with self._lock:
            return [name for place, name in map(folder_of, self._files) if place == folder]

    def read(self, path: str) -> bytes | None:
        with self._lock:
            return self._files.get(path)

    def read_all(self, folder: str, names: Sequence[str]) -> Mapping[str, bytes]:
        found = {name: self.read(f"{folder}/{name}") for name in names}
        return {name: data for name, data in found.items() if data is not None}

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            if path in self._files:
                return False
            self._files[path] = data
            return True

    def open(self, path: str) -> Content | None:
        return self.read(path)

    def replace(self, path: str, data: Content) -> None:
        with self._lock:
            self._files[path] = whole(data)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._files.pop(f"{folder}/{name}", None)

    def tidy(self, folder: str) -> None:
        """Nothing is ever left unfinished."""

    @contextmanager
    def alone(self, work: str) -> Iterator[bool]:
        yield True

    def add_log(self, run: str, image: str, text: str) -> None:
        self.replace(f"logs/{run}/{image}.log", text.encode())

    def drop_logs(self, runs: Collection[str]) -> None:
        with self._lock:
            for path in [p for p in self._files if p.startswith("logs/") and p.split("/")[1] in runs]:
                del self._files[path]
